"""Confidence: the chosen reject score against max-softmax, and the outlier score against all others.

Each file is split by seed. The map is fitted to 60% of its rows. Of the others, half choose the reject score (and learn
the one that is learned), half measure it; all of them are the known rows against which foreign ones are found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from darksight_core.evaluation.failure import ood_figures
from darksight_core.fit import FitConfig
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.gate.certify import candidates
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.predictions import Predictions, from_arrays, read_predictions
from darksight_core.predictions.split import make_split
from darksight_core.rows.simplex import Floats
from darksight_core.runtime.scorer import Scorer
from darksight_core.scores.choice import choose_score
from darksight_core.scores.learned import Learned, densities_of
from darksight_core.scores.registry import map_scores, row_scores
from tests.bench import results

FILES = ("mnist_lenet", "cifar10_resnet56", "cifar100_resnet56", "news20", "imdb", "mnist_paper", "cifar10_vgg16")
OUTLIER_SCORES = ("msp", "entropy", "gen", "log_density", "log_kde", "outlier_score")
Z = 1.96
# Student's t at 97.5% by number of seeds, for the spread over seeds.
T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


@dataclass(frozen=True, slots=True)
class Failure:
    """One file and seed: the chosen score, AUGRC of it and of max-softmax, and the standard error of the difference."""

    chosen: str
    errors: int
    msp: float
    augrc: float
    standard_error: float

    @property
    def loss(self) -> float:
        """How much worse than max-softmax; negative is better."""
        return self.augrc - self.msp


def data_sets() -> dict[str, tuple[Predictions, dict[str, Predictions]]]:
    """Labelled and foreign predictions by name; digits where there are none."""
    found = {}
    for name in FILES:
        path = results.DATA / name / "test.npz"
        if path.exists():
            foreign = {file.stem.removeprefix("ood_"): read_predictions(file) for file in path.parent.glob("ood_*.npz")}
            found[name] = (read_predictions(path), dict(sorted(foreign.items())))
    if found:
        return found
    probs, labels = results.digits_probs()
    return {"digits": (from_arrays(probs, labels=labels), {})}


def run(predictions: Predictions, foreign: dict[str, Predictions], seed: int) -> tuple[Failure, dict[str, Floats]]:
    """Figures of one file and seed: failure, and AUROC by `OUTLIER_SCORES` for each kind of foreign rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bundle.safetensors")
        fit_bundle(
            predictions, path, config=FitConfig(seed=seed), distil_config=DistilConfig(tune_theta=False, tune_epochs=20)
        )
        scorer = Scorer.load(path)
    split = make_split(len(predictions), seed)
    held = predictions.take(np.random.default_rng(seed).permutation(np.concatenate([split.calibrate, split.test])))
    known = ScoredPredictions.of(held, scorer.score(held.probs))
    half = len(known) // 2
    failure = measure_failure(known.take(np.arange(half)), known.take(np.arange(half, len(known))), seed)

    def scores(rows: ScoredPredictions) -> dict[str, Floats]:
        return map_scores(rows.scores) | row_scores(rows.log_pi)

    aurocs, inside = {}, scores(known)
    for name, rows in foreign.items():
        outside = scores(ScoredPredictions.of(rows, scorer.score(rows.probs)))
        found = [ood_figures(inside[score], outside[score], resamples=0).auroc for score in OUTLIER_SCORES]
        aurocs[name] = np.array(found)
    return failure, aurocs


def measure_failure(choosing: ScoredPredictions, measured: ScoredPredictions, seed: int) -> Failure:
    """Choose on some rows, measure on others."""
    assert choosing.errors is not None
    assert measured.errors is not None
    chosen = choose_score(candidates(choosing, seed=seed), choosing.errors).chosen
    learned = None
    if chosen == "learned":
        learned = Learned.fit(choosing.log_pi, ~choosing.errors, seed=seed, **densities_of(choosing.scores))
    pair = {
        "msp": Gate(reject_score="msp").reject_scores(measured.log_pi, measured.scores),
        "chosen": Gate(reject_score=chosen, learned=learned).reject_scores(measured.log_pi, measured.scores),
    }
    table = {row.name: row for row in choose_score(pair, measured.errors).rows}
    return Failure(
        chosen,
        int(measured.errors.sum()),
        table["msp"].augrc,
        table["chosen"].augrc,
        table["chosen"].standard_error,
    )


def failure_table(found: dict[str, list[Failure]]) -> results.Parts:
    """Means over seeds. Seeds share their rows, so the standard error is taken as if they agreed wholly."""
    rows = []
    for name, runs in found.items():
        loss = 1000 * float(np.mean([run.loss for run in runs]))
        noise = 1000 * Z * float(np.mean([run.standard_error for run in runs]))
        worse = sum(run.loss > Z * run.standard_error for run in runs)
        picks = Counter(run.chosen for run in runs)
        rows.append(
            (
                name,
                round(np.mean([run.errors for run in runs])),
                1000 * float(np.mean([run.msp for run in runs])),
                1000 * float(np.mean([run.augrc for run in runs])),
                f"{loss:+.3f} [{loss - noise:+.3f}, {loss + noise:+.3f}]",
                f"{worse} of {len(runs)}",
                ", ".join(f"{score} {count}" for score, count in picks.most_common()),
            )
        )
    header = ("file", "errors", "msp", "chosen", "chosen - msp, 95%", "worse beyond interval", "chosen, times")
    return (
        "AUGRC x1000, lower is better; rows that measure are not those that choose. "
        f"Means of {max(len(runs) for runs in found.values())} seeds.",
        results.Table(header, rows),
    )


def outlier_table(found: dict[str, list[Floats]]) -> results.Parts:
    """AUROC of every pair, mean over seeds; then the mean over pairs with its interval over seeds."""
    pairs = {name: np.mean(runs, axis=0) for name, runs in found.items()}
    rows: list[Sequence[object]] = [
        (name, *(float(value) for value in values), float(values[-1] - values[0])) for name, values in pairs.items()
    ]
    by_seed = np.mean(list(found.values()), axis=0)
    mean, seeds = by_seed.mean(axis=0), len(by_seed)
    gain = by_seed[:, -1] - by_seed[:, 0]
    spread = T.get(seeds, 2.0) * float(gain.std(ddof=1)) / np.sqrt(seeds) if seeds > 1 else 0.0
    rows.append(("**mean**", *(float(value) for value in mean), f"{gain.mean():+.4f} ± {spread:.4f}"))
    worst, gap = min(((name, values[-1] - values[0]) for name, values in pairs.items()), key=lambda pair: pair[1])
    table = results.Table(("pair", *OUTLIER_SCORES, "outlier_score - msp"), rows)
    title = f"AUROC of known against foreign rows, mean of {seeds} seeds."
    return title, table, f"Worst pair against msp: {worst}, {gap:+.4f}."


def main(argv: list[str]) -> int:
    """Fit every file with every seed and write both tables."""
    parser = argparse.ArgumentParser(prog="./dev bench confidence", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of split and fit (default 5)")
    parser.add_argument("files", nargs="*", help="some of the files (default: all)")
    args = parser.parse_args(argv)
    failures: dict[str, list[Failure]] = {}
    aurocs: dict[str, list[Floats]] = {}
    for name, (predictions, foreign) in data_sets().items():
        if args.files and name not in args.files:
            continue
        for seed in range(args.seeds):
            started = time.perf_counter()
            failure, found = run(predictions, foreign, seed)
            failures.setdefault(name, []).append(failure)
            for kind, values in found.items():
                aurocs.setdefault(f"{name} / {kind}", []).append(values)
            print(
                f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s, {failure.chosen} "
                f"{1000 * failure.augrc:.3f} against msp {1000 * failure.msp:.3f}",
                file=sys.stderr,
            )
    results.save("confidence: finding wrong predictions", failure_table(failures))
    if aurocs:
        results.save("confidence: finding foreign rows", outlier_table(aurocs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
