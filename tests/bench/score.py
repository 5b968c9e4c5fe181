"""Scoring: fidelity of held-out rows, pace beside the bare network, and density of the map.

CPU seconds are of one process with BLAS at one thread; what counts are the ratios, of calls that take turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench import results

if TYPE_CHECKING:
    from darksight_core.predictions import Predictions

_FILES = (
    "mnist_paper", "mnist_lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16", "cifar100_resnet56",
    "news20", "imdb",
)  # fmt: skip
_PARTS = ("fidelity", "pace", "density")
_ROWS = 4_096
# KL_sym below which there is nothing to compare: two classes are reproduced exactly.
_NOTHING = 1e-9


def data_sets() -> dict[str, Predictions]:
    """Real predictions where they are, digits elsewhere."""
    from darksight_core.predictions import from_arrays, read_predictions

    found = {name: results.DATA / name / "test.npz" for name in _FILES}
    read = {name: read_predictions(path) for name, path in found.items() if path.exists()}
    if read:
        return read
    probs, labels = results.digits_probs()
    return {"digits": from_arrays(probs, labels=labels)}


class Bundles:
    """A bundle of each data set, half of its rows fitted and half held out, made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.sets = data_sets()
        self._folder = folder
        self._reports: dict[str, Any] = {}

    def report(self, name: str) -> Any:
        """The `FitReport` of a data set."""
        from darksight_core.fit.pipeline import fit_bundle

        if name not in self._reports:
            out = self._folder / f"{name}.safetensors"
            self._reports[name] = fit_bundle(self.sets[name], out, shares=(0.5, 0.25, 0.25))
        return self._reports[name]

    def part(self, name: str, columns: tuple[int, ...]) -> tuple[Any, Any]:
        """A scorer of some classes of a data set, and its rows: those of these classes, over them alone."""
        from darksight_core.fit.pipeline import fit_bundle
        from darksight_core.predictions import from_arrays
        from darksight_core.runtime.scorer import Scorer

        probs = self.sets[name].probs
        probs = probs[np.isin(probs.argmax(axis=1), columns)][:, list(columns)]
        out = self._folder / f"{name}-{len(columns)}.safetensors"
        fit_bundle(from_arrays(probs / probs.sum(axis=1, keepdims=True)), out, shares=(0.5, 0.25, 0.25))
        return Scorer.load(out), probs / probs.sum(axis=1, keepdims=True)

    def typical(self) -> list[str]:
        """One data set for each number of classes, the smallest and the largest."""
        by_classes = sorted(self.sets, key=lambda name: self.sets[name].n_classes)
        ten = next((name for name in self.sets if self.sets[name].n_classes == 10), by_classes[0])
        return list(dict.fromkeys([ten, by_classes[-1]]))


def fidelity(bundles: Bundles) -> results.Table:
    """KL_sym of held-out rows by every way of placing them."""
    rows = []
    for name, predictions in bundles.sets.items():
        report = bundles.report(name)
        exact, network, served = report.stages
        rows.append(
            (
                name, predictions.n_classes, exact.heldout_kl_sym, served.heldout_kl_sym, network.heldout_kl_sym,
                " ".join(f"{value:.4g}" for value in report.refinement),
                *(f"{served.heldout_kl_sym / solved:.4f}" if solved > _NOTHING else "both are 0"
                  for solved in (exact.heldout_kl_sym, exact.fit_kl_sym)),
                f"{100 * served.heldout_agree:.2f}%",
            )
        )  # fmt: skip
        print(rows[-1], file=sys.stderr)
    header = (
        "rows", "K", "each row solved", "served", "f_p alone", "served, after 0 to 5 steps", "served / solved",
        "served / fitted rows", "agree",
    )  # fmt: skip
    return results.Table(header, rows)


def best_of(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least CPU seconds of each call, measured in turns so that all see the same machine."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - started)
    return best


def pace(bundles: Bundles, rounds: int) -> results.Table:
    """One row and a batch, scored and judged, beside the bare forward pass of f_p in numpy."""
    from darksight_core.bundle import read_bundle
    from darksight_core.gate.gate import Gate
    from darksight_core.guarantees.conformal import cutoff
    from darksight_core.runtime.policy import ScoringPolicy
    from darksight_core.runtime.scorer import Scorer
    from tests.bench.maps import fitted_bundle, new_rows

    rows = []
    cases = {name: (read_bundle(bundles.report(name).bundle), bundles.sets[name].probs) for name in bundles.typical()}
    cases["made of 1,000 classes"] = (fitted_bundle(1000), new_rows(_ROWS, 1000))
    for name, (bundle, some) in cases.items():
        compiled, plain = (Scorer.of(bundle, compiled=flag) for flag in (True, False))
        policy = ScoringPolicy(compiled, Gate(cutoff(len(bundle.calibration), 0.01), "msp", 1.0))
        network = bundle.embedder.network
        probs = np.resize(some, (_ROWS, compiled.n_inputs))
        for size in (1, _ROWS):
            count = max(1, 200 // size)
            few = max(1, 20 // size)
            given, read = (np.split(array[: count * size], count) for array in (probs, probs.astype(np.float64)))
            calls = {
                "forward": lambda read=read, network=network: [network(batch) for batch in read],
                "score": lambda given=given, scorer=compiled: [scorer.score(batch) for batch in given],
                "judge": lambda given=given, policy=policy: [policy.score(batch) for batch in given],
                "numpy": lambda given=given, scorer=plain, few=few: [scorer.score(batch) for batch in given[:few]],
            }
            runs = [best_of(calls, rounds) for _ in range(3)]
            seconds = {key: float(np.median([run[key] for run in runs])) / count for key in calls}
            seconds["numpy"] *= count / few
            ratios = sorted(run["score"] / run["forward"] for run in runs)
            rows.append(
                (
                    name, compiled.n_inputs, size, f"{1e6 * seconds['forward'] / size:.2f}",
                    f"{1e6 * seconds['score'] / size:.2f}", f"{1e6 * seconds['judge'] / size:.2f}",
                    f"{1e6 * seconds['numpy'] / size:.2f}",
                    f"{ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[2]:.2f})", f"{size / seconds['score']:,.0f}",
                )
            )  # fmt: skip
            print(rows[-1], file=sys.stderr)
    header = (
        "bundle", "K", "rows per call", "bare forward pass, us per row", "scorer", "scorer and gate",
        "scorer without numba",
        "scorer / forward, median of 3 runs", "rows per second",
    )  # fmt: skip
    return results.Table(header, rows)


def clusters(n: int) -> Any:
    """n points of ten clusters with bridges between them."""
    rng = np.random.default_rng(0)
    centres = 20.0 * np.stack([np.cos(np.arange(10) * 0.2 * np.pi), np.sin(np.arange(10) * 0.2 * np.pi)], axis=1)
    label = rng.integers(10, size=n)
    bridge = rng.random(n) < 0.1
    share = np.where(bridge, rng.random(n), 0.0)[:, None]
    return (1.0 - share) * centres[label] + share * centres[(label + 3) % 10] + rng.normal(size=(n, 2))


def density(rounds: int) -> results.Table:
    """The density beside scikit-learn's and the exact sum, and its cost as references grow."""
    from sklearn.neighbors import KernelDensity

    from darksight_core.map.density import Kde
    from tests.support.densities import exact_log_kde

    rng = np.random.default_rng(1)
    queries = np.concatenate([clusters(2_000), rng.uniform(-80.0, 80.0, size=(2_000, 2))])
    rows = []
    for n in (1_000, 10_000, 1_000_000):
        points = clusters(n)
        started = time.process_time()
        kde = Kde.fit(points)
        fit_seconds = time.process_time() - started
        calls: dict[str, Callable[[], object]] = {"numpy": lambda kde=kde: kde.log_density(queries)}
        if n == 10_000:
            theirs = KernelDensity(bandwidth=kde.bandwidth).fit(points)
            calls["sklearn"] = lambda theirs=theirs: theirs.score_samples(queries[:400])
        seconds = best_of(calls, 1 if n == 10_000 else rounds)
        sklearn = 1e6 * seconds["sklearn"] / 400 if "sklearn" in seconds else None
        ours = 1e6 * seconds["numpy"] / len(queries)
        asked = queries if n <= 10_000 else queries[::20]
        exact = exact_log_kde(asked, points, kde.bandwidth)
        error = np.abs(kde.log_density(asked) - exact)
        top = float(exact_log_kde(points[:2_000], points, kde.bandwidth).max())
        core, deep = exact >= top - 15.0, exact < top - 15.0
        deep &= exact > top - 450.0
        rows.append(
            (
                f"{n:,}", f"{fit_seconds:.1f}", f"{ours:.2f}", sklearn and f"{sklearn:.1f}",
                sklearn and f"{sklearn / ours:.0f}x", f"{np.quantile(error[core], 0.99):.4f}",
                f"{error[core].max():.4f}", f"{(error / (top - exact))[deep].max():.2%}",
                f"{sum(array.nbytes for array in kde.tensors().values()) / 1e6:.2f}",
            )
        )  # fmt: skip
        print(rows[-1], file=sys.stderr)
    header = (
        "references", "fit, CPU s", "log density in a batch, us per row", "scikit-learn KernelDensity", "ratio",
        "error within 15 nats, 99%", "largest", "share of the depth to 450 nats", "MB",
    )  # fmt: skip
    return results.Table(header, rows)


def main(argv: list[str]) -> int:
    """Run all parts, or the ones named."""
    parser = argparse.ArgumentParser(prog="./dev bench score", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], default=[])
    parser.add_argument("--rounds", type=int, default=15, help="turns of which the fastest counts (default 15)")
    args = parser.parse_args(argv)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if any(os.environ.get(name) != value for name, value in threads.items()):
        # BLAS reads these when it is loaded, so they must be there from the start.
        command = [sys.executable, "-m", "tests.bench", "score", *argv]
        return subprocess.run(command, env={**os.environ, **threads}, check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        bundles = Bundles(Path(folder))
        runs: dict[str, tuple[str, Callable[[], results.Table]]] = {
            "fidelity": ("held-out KL_sym, half of the rows fitted", lambda: fidelity(bundles)),
            "pace": ("pace on one core", lambda: pace(bundles, args.rounds)),
            "density": ("density of the map", lambda: density(args.rounds)),
        }
        for part in args.parts or _PARTS:
            title, run = runs[part]
            results.save(f"score: {title}", run())
    return 0
