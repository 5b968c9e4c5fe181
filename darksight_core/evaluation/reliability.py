"""Whether the confidence of the watched classifier is its accuracy: in bins of confidence, and for each class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats

__all__ = ["ClassFigures", "Reliability", "class_figures", "reliability"]

_BINS = 15


@dataclass(frozen=True, slots=True)
class Reliability(JsonRecord):
    """Confidence and accuracy in bins with equal numbers of rows.

    Parameters
    ----------
    confidence, accuracy
        Mean of the largest probability, and share of correct rows, of each bin.
    low, high
        Exact 95% interval of each accuracy.
    rows
        Number of rows of each bin.
    ece
        Expected calibration error Σ_b n_b / n |accuracy_b - confidence_b|.
    chance
        Expectation of `ece` if the confidence were exact: with few rows in a bin it is not zero.
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rows: tuple[int, ...]
    ece: float
    chance: float


@dataclass(frozen=True, slots=True)
class ClassFigures(JsonRecord):
    """Figures of one class.

    Parameters
    ----------
    name
        Name of the class.
    rows, recall
        Number of rows with this label, and the share of them that is predicted; None without labels or rows.
    predicted, precision
        Number of rows predicted as this class, and the share of them that is correct; None without labels or rows.
    confidence
        Mean largest probability of the rows predicted as this class; None without rows.
    mistaken_for
        Class that most of the wrong rows with this label are predicted as; None without such rows.
    """

    name: str
    rows: int | None
    recall: float | None
    predicted: int
    precision: float | None
    confidence: float | None
    mistaken_for: str | None


def reliability(confidence: Floats, correct: NDArray[np.bool_], *, bins: int = _BINS) -> Reliability:
    """Accuracy by confidence.

    Parameters
    ----------
    confidence
        Largest probability of each row, (n,) with n >= 1.
    correct
        Whether each prediction is correct, (n,).
    bins
        Number of bins; fewer if there are fewer rows.

    >>> reliability(np.array([0.5, 0.5, 1.0, 1.0]), np.array([True, False, True, True]), bins=2).ece
    0.0
    """
    parts = np.array_split(np.argsort(confidence, kind="stable"), min(bins, len(confidence)))
    rows = np.array([len(part) for part in parts])
    mean = np.array([confidence[part].mean() for part in parts])
    hits = np.array([correct[part].sum() for part in parts])
    # |N(0, s)| has the mean s √(2/π); s is the standard deviation of a bin's accuracy.
    spread = np.array([math.sqrt(float((confidence[part] * (1.0 - confidence[part])).sum())) for part in parts]) / rows
    share = rows / rows.sum()
    return Reliability(
        confidence=tuple(mean.tolist()),
        accuracy=tuple((hits / rows).tolist()),
        low=tuple(lower_bound(hits, rows, 0.025).tolist()),
        high=tuple(upper_bound(hits, rows, 0.025).tolist()),
        rows=tuple(rows.tolist()),
        ece=float(share @ np.abs(hits / rows - mean)),
        chance=float(share @ spread) * math.sqrt(2.0 / math.pi),
    )


def class_figures(
    names: tuple[str, ...], confidence: Floats, predicted: NDArray[np.integer], labels: NDArray[np.integer] | None
) -> tuple[ClassFigures, ...]:
    """Figures of each class.

    Parameters
    ----------
    names
        Names of the K classes.
    confidence
        Largest probability of each row, (n,).
    predicted, labels
        Predicted and true classes in 0..K-1, (n,); labels may be None.
    """
    classes = len(names)
    guesses = np.bincount(predicted, minlength=classes)
    sums = np.bincount(predicted, weights=confidence, minlength=classes)
    truth, hits = np.zeros(classes, dtype=int), np.zeros(classes, dtype=int)
    mistakes: dict[int, int] = {}
    if labels is not None:
        truth, hits = (np.bincount(each, minlength=classes) for each in (labels, labels[predicted == labels]))
        wrong = predicted != labels
        pairs, counts = np.unique(np.stack([labels[wrong], predicted[wrong]]), axis=1, return_counts=True)
        for which in np.argsort(-counts, kind="stable"):
            mistakes.setdefault(int(pairs[0, which]), int(pairs[1, which]))

    def ratio(part: float, whole: int, known: bool = True) -> float | None:
        return float(part) / int(whole) if whole and known else None

    return tuple(
        ClassFigures(
            name=name,
            rows=None if labels is None else int(truth[k]),
            recall=ratio(hits[k], truth[k]),
            predicted=int(guesses[k]),
            precision=ratio(hits[k], guesses[k], labels is not None),
            confidence=ratio(sums[k], guesses[k]),
            mistaken_for=names[mistakes[k]] if k in mistakes else None,
        )
        for k, name in enumerate(names)
    )
