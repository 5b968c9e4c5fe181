"""Accuracy without labels: error and coverage of the estimate on subgroups and corruptions of real predictions.

A third of the labelled rows fits the outlier score, a third calibrates it, and the last third back-tests the estimate;
windows of 500 other rows are then estimated. Kinds of windows: as the rows are, other class shares, easy or hard rows,
rows of some classes, rows of some predicted classes, rows from one side of the classifier's features (of its log-ratios
where the file has no features), and for MNIST files of corrupted images, alone or as 30% of the window.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.estimate import ALPHA, fit_accuracy_model
from darksight_core.guarantees.calibration import Calibration
from darksight_core.predictions import read_predictions
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.outlier import OutlierScore
from tests.bench import results

SETS = ("mnist_lenet", "cifar10_resnet56", "cifar10_vgg16", "cifar100_resnet56", "news20", "imdb")
ROWS = 500
Rows = tuple[Floats, NDArray[np.int64]]


def read(name: str) -> Rows:
    """Probabilities and labels of a file."""
    found = read_predictions(results.DATA / name)
    assert found.labels is not None
    return found.probs.astype(np.float64), found.labels.astype(np.int64)


def windows(
    probs: Floats, labels: NDArray[np.int64], features: Floats, turns: int, seed: int
) -> Iterator[tuple[str, Rows]]:
    """Windows of rows (n, K) by kind."""
    rng, classes = np.random.default_rng(seed), probs.shape[1]
    top, predicted, count = probs.max(axis=1), probs.argmax(axis=1), np.bincount(labels, minlength=classes)
    odds = np.log(top / np.maximum(1.0 - top, 1e-6))
    odds = (odds - odds.mean()) / odds.std()
    sides = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-9)
    for turn in range(turns):
        some = rng.choice(classes, max(classes // 5, 1), replace=False)
        along = sides @ rng.normal(size=sides.shape[1])
        weights = {
            "as they are": np.ones(len(labels)),
            "class shares": (rng.dirichlet(np.ones(classes)) / np.maximum(count, 1))[labels],
            "easy or hard": np.exp(np.linspace(-1.5, 1.5, turns)[turn] * odds),
            "some classes": np.isin(labels, some).astype(np.float64),
            "some predicted classes": np.isin(predicted, some).astype(np.float64),
            "one side": (along > np.quantile(along, 0.85)).astype(np.float64),
        }
        for kind, each in weights.items():
            if np.count_nonzero(each) >= 50:
                rows = rng.choice(len(labels), ROWS, p=each / each.sum())
                yield kind, (probs[rows], labels[rows])


def corrupted(probs: Floats, labels: NDArray[np.int64], seed: int) -> Iterator[tuple[str, Rows]]:
    """Windows of corrupted rows of MNIST, alone and among others."""
    rng = np.random.default_rng(seed)
    for path in sorted((results.DATA / "mnist_lenet").glob("corrupt_*.npz")):
        other, truth = read(f"mnist_lenet/{path.name}")
        for share in (0.3, 1.0):
            rows, usual = rng.choice(len(truth), ROWS), rng.choice(len(labels), ROWS)
            is_other = rng.random(ROWS) < share
            yield (
                "corrupted",
                (
                    np.where(is_other[:, None], other[rows], probs[usual]),
                    np.where(is_other, truth[rows], labels[usual]),
                ),
            )


def measure(name: str, turns: int, seed: int) -> Iterator[tuple[str, float, float | None, bool, bool]]:
    """Kind, error of the plain confidence and of the estimate, whether the interval or the bound held, is withheld."""
    rng = np.random.default_rng(seed)
    if name == "mnist_lenet":
        (probs, labels), (fresh, truth) = read(f"{name}/val.npz"), read(f"{name}/test.npz")
        order = np.arange(len(truth))
    else:
        probs, labels = read(f"{name}/test.npz")
        order = rng.permutation(len(labels))
        half = len(labels) // 2
        fresh, truth = probs[order[half:]], labels[order[half:]]
        probs, labels, order = probs[order[:half]], labels[order[:half]], order[half:]
    path = results.DATA / name / "test_features.npz"
    features = log_probs(fresh)
    if path.exists():
        with np.load(path) as file:
            features = file[file.files[0]][order].astype(np.float64)
    first, second = len(labels) // 3, 2 * len(labels) // 3
    score = OutlierScore.fit(log_probs(probs[:first]))
    calibration = Calibration(score.score(log_probs(probs[first:second])))

    def p_values(rows: Floats) -> Floats:
        return calibration.p_value(score.score(log_probs(rows)))

    held, held_labels = probs[second:], labels[second:]
    model = fit_accuracy_model(probs[:second], labels[:second], held, held_labels, p_values(held), seed=seed)
    assert model is not None
    found = [*windows(fresh, truth, features, turns, seed)]
    if name == "mnist_lenet":
        found += corrupted(fresh, truth, seed)
    for kind, (rows, given) in found:
        accuracy = float((rows.argmax(axis=1) == given).mean())
        estimate = model.estimate(rows, outlier_share=float((p_values(rows) <= ALPHA).mean()))
        plain = abs(float(rows.max(axis=1).mean()) - accuracy)
        if estimate.interval is None or estimate.value is None:
            assert estimate.at_most is not None
            yield kind, plain, None, accuracy <= estimate.at_most, True
        else:
            low, high = estimate.interval
            yield kind, plain, abs(estimate.value - accuracy), low <= accuracy <= high, False


def main(argv: list[str]) -> int:
    """Measure every kind of window of every data set."""
    parser = argparse.ArgumentParser(prog="./dev bench accuracy", description=__doc__)
    parser.add_argument("--turns", type=int, default=8, help="windows of each kind (default 8)")
    parser.add_argument("--seeds", type=int, default=3, help="choices of the fitted rows (default 3)")
    args = parser.parse_args(argv)
    names = [name for name in SETS if (results.DATA / name).exists()]
    if not names:
        print(f"skipped: {results.DATA} has none of {', '.join(SETS)}", file=sys.stderr)
        return 0
    lines, every = [], []
    for name in names:
        found = [each for seed in range(args.seeds) for each in measure(name, args.turns, seed)]
        every += found
        lines += [
            (name, kind, *_figures([each for each in found if each[0] == kind]))
            for kind in dict.fromkeys(f[0] for f in found)
        ]
    lines.append(("all", "", *_figures(every)))
    header = (
        "file",
        "windows",
        "number",
        "error of plain confidence",
        "**error**",
        "**interval holds**",
        "withheld",
        "bound holds",
    )
    text = "Mean absolute errors, and the shares of windows whose interval or upper bound holds the accuracy."
    results.save("drift: accuracy without labels", (text, results.Table(header, tuple(lines))))
    return 0


def _figures(
    found: list[tuple[str, float, float | None, bool, bool]],
) -> tuple[int, float, float | None, float | None, float, float | None]:
    shown = [(error, holds) for _, _, error, holds, withheld in found if not withheld and error is not None]
    bounds = [holds for *_, holds, withheld in found if withheld]
    return (
        len(found),
        float(np.mean([plain for _, plain, *_ in found])),
        float(np.mean([error for error, _ in shown])) if shown else None,
        float(np.mean([holds for _, holds in shown])) if shown else None,
        len(bounds) / len(found),
        float(np.mean(bounds)) if bounds else None,
    )
