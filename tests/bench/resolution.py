"""Resolution: the same rows with fewer digits or known classes, flagged shares, AUROC and certificates.

Each file is fitted once for each seed, in full precision, with levels for the 20, 10 and 5 most probable classes. The
test rows are then scored as they are, as float16, with few decimals, and with their most probable classes alone, all by
the same bundle and without a word about what they resolve. Foreign rows are those of the file, or blends: the geometric
mean of two rows. Certificates: labelled rows are drawn with replacement from those that were not fitted, and the true
accuracy of the rows that a gate accepts is that among all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from darksight_core.evaluation.failure import ood_figures
from darksight_core.fit import FitConfig
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.gate.certify import Targets, certify
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.predictions import Predictions, read_predictions
from darksight_core.predictions.split import make_split
from darksight_core.rows.partial import TopRows, top_rows
from darksight_core.rows.simplex import Floats, log_probs, log_softmax
from darksight_core.runtime.scorer import Scorer
from tests.bench import results

FILES = {"mnist_lenet": 0.99, "cifar10_resnet56": 0.97, "cifar100_resnet56": 0.9, "news20": 0.97}
TOPS = (20, 10, 5)
ALPHA, DELTA, LABELS = 0.01, 0.05, 1_000
FORMS: dict[str, Callable[[Floats], Floats | TopRows]] = {
    "float32": lambda rows: rows,
    "float16": lambda rows: rows.astype(np.float16).astype(np.float64),
    "6 decimals": lambda rows: rows.round(6),
    "4 decimals": lambda rows: rows.round(4),
    "3 decimals": lambda rows: rows.round(3),
    "top-20": lambda rows: top_rows(rows, min(20, rows.shape[1])),
    "top-10": lambda rows: top_rows(rows, min(10, rows.shape[1])),
    "top-5": lambda rows: top_rows(rows, 5),
}
LEVELS = {"float16": "1e-6", "6 decimals": "1e-6", "4 decimals": "1e-4", "3 decimals": "1e-3"}


def foreign_rows(name: str, probs: Floats, rng: np.random.Generator) -> list[Floats]:
    """Foreign rows of a file, or blends of its own."""
    files = sorted((results.DATA / name).glob("ood_*.npz"))
    if files:
        return [read_predictions(path).probs.astype(np.float64) for path in files]
    log_pi = log_probs(probs)
    return [np.exp(log_softmax(0.5 * (log_pi + log_pi[rng.permutation(len(log_pi))])))]


def violations(rows: ScoredPredictions, accuracy: float, draws: int, rng: np.random.Generator) -> tuple[float, float]:
    """Share of draws whose gate is less accurate than it promises, and share of draws without one."""
    assert rows.errors is not None
    broken = infeasible = 0
    for _ in range(draws):
        drawn = rows.take(rng.integers(len(rows), size=LABELS))
        found = certify(drawn, Targets(accuracy=accuracy, delta=DELTA, score="msp"), 0)
        if not found.feasible:
            infeasible += 1
            continue
        confidence = found.gate.reject_scores(rows.log_pi, rows.scores, other=rows.other)
        broken += float(rows.errors[confidence >= found.gate.lowest_accepted].mean()) > 1.0 - accuracy
    return broken / draws, infeasible / draws


def run(
    name: str, predictions: Predictions, seed: int, draws: int
) -> tuple[dict[str, float], dict[str, float], dict[str, tuple[float, float]]]:
    """Flagged share and AUROC of each form, and certificates of top-5 and top-10 rows."""
    rng, held = np.random.default_rng(seed), make_split(len(predictions), seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bundle.safetensors")
        tops = [k for k in TOPS if k < predictions.n_classes]
        distil = DistilConfig(tune_theta=False, tune_epochs=20)
        fit_bundle(predictions, path, config=FitConfig(seed=seed), distil_config=distil, top_k=tops)
        scorer = Scorer.load(path)
    usual = predictions.probs[held.test].astype(np.float64)
    foreign = foreign_rows(name, usual, rng)
    flagged, aurocs, broken = {}, {}, {}
    for form, make in FORMS.items():
        scored = scorer.score(make(usual))
        flagged[form] = float((scored.p_value <= ALPHA).mean())
        # Scores are compared at one level.
        level = LEVELS.get(form)
        known, others = scorer.score(make(usual), level), [scorer.score(make(rows), level) for rows in foreign]
        figures = [ood_figures(known.outlier_score, each.outlier_score, resamples=0) for each in others]
        aurocs[form] = float(np.mean([each.auroc for each in figures]))
    if draws:
        labelled = scorer.by_resolution(predictions.take(np.concatenate([held.calibrate, held.test])))
        for number in (10, 5):
            if number in labelled:
                broken[f"top-{number}"] = violations(labelled[number], FILES[name], draws, rng)
    return flagged, aurocs, broken


def main(argv: list[str]) -> int:
    """Measure every file and write the tables."""
    parser = argparse.ArgumentParser(prog="./dev bench resolution", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="splits of each file (default 2)")
    parser.add_argument("--draws", type=int, default=300, help="draws of labelled rows (default 300)")
    args = parser.parse_args(argv)
    shares, aurocs, certificates = [], [], []
    for name in (each for each in FILES if (results.DATA / each).exists()):
        predictions = read_predictions(results.DATA / name / "test.npz")
        found = [run(name, predictions, seed, args.draws if seed == 0 else 0) for seed in range(args.seeds)]
        shares.append((name, *(f"{np.mean([each[0][form] for each in found]):.2%}" for form in FORMS)))
        aurocs.append((name, *(float(np.mean([each[1][form] for each in found])) for form in FORMS)))
        for form, (broken, infeasible) in found[0][2].items():
            certificates.append((name, form, f"{FILES[name]:.0%}", f"{broken:.1%}", f"{infeasible:.1%}"))
        print(name, shares[-1], aurocs[-1], certificates, file=sys.stderr)
    if not shares:
        print(f"skipped: {results.DATA} has none of {', '.join(FILES)}", file=sys.stderr)
        return 0
    header = ("file", *FORMS)
    text = f"Usual rows with a p-value of at most {ALPHA:g}; one bundle of full rows, means of {args.seeds} splits."
    results.save("resolution: flagged rows", (text, results.Table(header, shares)))
    text = "AUROC of the outlier score; of cifar100 and news20, blends of two rows are the foreign ones. Rows of "
    text += "news20 are mostly zeros, and a blend of two is surer than either."
    results.save("resolution: foreign rows", (text, results.Table(header, aurocs)))
    text = f"Gates by {LABELS:,} labels that promise an accuracy with confidence {1 - DELTA:.0%}, {args.draws} draws."
    columns = ("file", "rows", "promised", "less accurate than promised", "not feasible")
    results.save("resolution: certificates", (text, results.Table(columns, certificates)))
    return 0
