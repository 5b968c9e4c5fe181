"""Rows worth a look, as row numbers, by the question that they answer.

    typical            what does the classifier usually predict for a class?        median confidence, densest place
    unusual            which rows does it hardly ever produce?                      lowest score
    midway             between which classes is it undecided?                       smallest margin of a confused pair
    wrong_alike        which mistakes come in groups?                               same mistake, same area of the map
    confident_wrong    which mistakes look like usual, confident predictions?       most confident of the wrong rows

The last kind cannot be found by any density: these rows are in the middle of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.neighbourhoods import nearest
from darksight_core.map.paths import confused_pairs
from darksight_core.rows.json_record import JsonRecord
from darksight_core.rows.simplex import Floats
from darksight_core.scores.confidence import margin, msp

__all__ = ["Alike", "Case", "alike", "confident_wrong", "midway", "typical", "unusual", "wrong_alike"]


@dataclass(frozen=True, slots=True)
class Case(JsonRecord):
    """Rows that answer one question.

    `kind` is one of the names above, `about` the class or classes concerned, `rows` the row numbers, best first.
    """

    kind: str
    about: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alike(JsonRecord):
    """Whether neighbouring mistakes are of the same kind.

    Parameters
    ----------
    mistakes
        Number of wrong rows.
    same
        Share of them whose nearest wrong neighbour has the same label and the same predicted class.
    chance
        That share if mistakes were arranged at random.
    """

    mistakes: int
    same: float
    chance: float


def typical(confidence: Floats, usual: Floats, predicted: NDArray[np.integer], *, classes: int) -> list[Case]:
    """A typical row of each predicted class: of the fifth of its rows around the median confidence, the most usual one.

    Parameters
    ----------
    confidence
        Largest probability, (n,).
    usual
        Score, higher is more usual, (n,).
    predicted
        Predicted classes, (n,).
    classes
        Number of classes K.
    """
    found = []
    for label in range(classes):
        rows = np.flatnonzero(predicted == label)
        if len(rows):
            order = rows[np.argsort(confidence[rows], kind="stable")]
            middle = order[int(0.4 * len(order)) : max(int(0.6 * len(order)), int(0.4 * len(order)) + 1)]
            found.append(Case("typical", (label,), _first(middle, -usual[middle], 1)))
    return found


def unusual(usual: Floats, most: int = 12) -> Case:
    """The rows with the lowest scores (n,), where higher is more usual."""
    return Case("unusual", (), _first(np.arange(len(usual)), usual, most))


def midway(log_pi: Floats, *, pairs: int = 4, most: int = 6) -> list[Case]:
    """For the most confused pairs of classes, the rows with the smallest margin.

    Parameters
    ----------
    log_pi
        Log-probabilities of the watched classifier, (n, K).
    pairs, most
        Number of pairs, and of rows for each.
    """
    lead = margin(log_pi)
    top = np.sort(np.argpartition(-log_pi, 1, axis=1)[:, :2], axis=1)
    found = []
    for pair in confused_pairs(log_pi, pairs):
        rows = np.flatnonzero((top == pair).all(axis=1))
        found.append(Case("midway", pair, _first(rows, lead[rows], most)))
    return found


def wrong_alike(
    points: Floats, predicted: NDArray[np.integer], labels: NDArray[np.integer], *, kinds: int = 4, most: int = 6
) -> list[Case]:
    """The most frequent kinds of mistake, each with the rows nearest to their median point; `about` is label, class.

    Parameters
    ----------
    points
        Points on the map, (n, 2).
    predicted, labels
        Predicted and true classes, (n,).
    kinds, most
        Number of kinds of at least two rows, and of rows for each.
    """
    wrong = np.flatnonzero(predicted != labels)
    mistakes, counts = np.unique(np.stack([labels[wrong], predicted[wrong]]), axis=1, return_counts=True)
    found = []
    for which in np.argsort(-counts, kind="stable")[:kinds]:
        if counts[which] < 2:
            break
        label, guess = (int(value) for value in mistakes[:, which])
        rows = wrong[(labels[wrong] == label) & (predicted[wrong] == guess)]
        away = np.hypot(*(points[rows] - np.median(points[rows], axis=0)).T)
        found.append(Case("wrong_alike", (label, guess), _first(rows, away, most)))
    return found


def alike(points: Floats, predicted: NDArray[np.integer], labels: NDArray[np.integer]) -> Alike | None:
    """Whether neighbouring mistakes among points (n, 2) are of the same kind; None with fewer than two mistakes."""
    wrong = np.flatnonzero(predicted != labels)
    if len(wrong) < 2:
        return None
    kind = labels[wrong].astype(np.int64) * (int(predicted.max()) + 1) + predicted[wrong]
    _, group, size = np.unique(kind, return_inverse=True, return_counts=True)
    same = kind[nearest(points[wrong], 1)[:, 0]] == kind
    chance = (size[group] - 1) / (len(wrong) - 1)
    return Alike(len(wrong), float(same.mean()), float(chance.mean()))


def confident_wrong(log_pi: Floats, wrong: NDArray[np.bool_], most: int = 12) -> Case:
    """The most confident of the wrong rows.

    Parameters
    ----------
    log_pi
        Log-probabilities of the watched classifier, (n, K).
    wrong
        Whether each prediction is wrong, (n,).
    most
        Number of rows.
    """
    rows = np.flatnonzero(wrong)
    return Case("confident_wrong", (), _first(rows, -msp(log_pi[rows]) if len(rows) else np.empty(0), most))


def _first(rows: NDArray[np.intp], rank: Floats, most: int) -> tuple[int, ...]:
    """The rows with the lowest ranks, in order."""
    return tuple(int(row) for row in rows[np.argsort(rank, kind="stable")[:most]])
