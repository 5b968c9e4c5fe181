"""Rows of which only the most probable classes are known, as language models and many image servers return them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import PredictionsError
from darksight_core.rows.resolution import MAX_TOP
from darksight_core.rows.simplex import FLOOR, Floats

__all__ = ["TopRows", "TopRowsError", "complete", "top_rows"]

_SUM = 1e-3
# The rest of a row, below which rounding decides on it.
_LEAST_REST = 1e-6
_TOTAL = "the known probabilities of a row and its `other` add up to at most 1"


class TopRowsError(PredictionsError):
    """Rows of known classes are not what they must be; `row` in the details is the number of the first such row."""


@dataclass(frozen=True, slots=True, eq=False)
class TopRows:
    """n rows of at most k known classes each.

    The classes that a row does not name are less probable than those it does, and share what is left.

    Parameters
    ----------
    classes
        Numbers of the known classes, (n, k) int32, in any order; -1 for an empty place.
    log_probabilities
        Their log-probabilities, (n, k) float64; those of empty places are ignored. The probability of several tokens of
        one class is their sum.
    other
        Probability of tokens that are no class, (n,) float64; zeros by default.

    >>> rows = TopRows(np.array([[2, 0]]), np.log([[0.9, 0.06]]))
    >>> rows.check(3), rows.resolution, rows.other
    (None, 2, array([0.]))
    >>> TopRows(np.array([[1, 1]]), np.log([[0.9, 0.06]])).check(3)
    Traceback (most recent call last):
    darksight_core.rows.partial.TopRowsError: row 0: class 1 is given twice; add the probabilities of one class up
    """

    classes: NDArray[np.int32]
    log_probabilities: Floats
    other: Floats = None  # type: ignore[assignment]  # zeros, made below

    def __post_init__(self) -> None:
        classes, logs = np.asarray(self.classes), np.asarray(self.log_probabilities)
        other = np.zeros(len(classes) if classes.ndim else 0) if self.other is None else np.asarray(self.other)
        if classes.ndim != 2 or logs.shape != classes.shape or other.shape != classes.shape[:1]:
            raise TopRowsError(
                f"classes {classes.shape}, log-probabilities {logs.shape} and other {other.shape} do not make n rows "
                "of k known classes; the shapes must be (n, k), (n, k) and (n,)"
            )
        if not 1 <= classes.shape[1] <= MAX_TOP:
            raise TopRowsError(f"rows of {classes.shape[1]} known classes; give 1 to {MAX_TOP} of them")
        if classes.dtype.kind not in "iu" or logs.dtype.kind not in "fiu" or other.dtype.kind not in "fiub":
            raise TopRowsError("classes must be integers, log-probabilities and other real numbers")
        # A number that no int32 holds must not become another class.
        object.__setattr__(self, "classes", np.clip(classes, -2, 2**31 - 1).astype(np.int32))
        object.__setattr__(self, "log_probabilities", logs.astype(np.float64))
        object.__setattr__(self, "other", other.astype(np.float64))

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def resolution(self) -> int:
        """Places for known classes, k: the number of the resolution."""
        return int(self.classes.shape[1])

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which places are not empty, (n, k)."""
        known: NDArray[np.bool_] = self.classes >= 0
        return known

    def is_whole(self, n_classes: int) -> bool:
        """Whether all rows name all classes, and nothing else has a probability."""
        return bool((self.known.sum(axis=1) == n_classes).all() and not self.other.any())

    def largest(self, k: int) -> TopRows:
        """The same rows with the k most probable of their known classes, most probable first."""
        order = np.argsort(np.where(self.known, -self.log_probabilities, np.inf), axis=1, kind="stable")[:, :k]
        logs = np.take_along_axis(self.log_probabilities, order, axis=1)
        return TopRows(np.take_along_axis(self.classes, order, axis=1), logs, self.other)

    def check(self, n_classes: int) -> None:
        """Refuse rows that cannot be of so many classes; TopRowsError names the first of them."""
        known, logs = self.known, self.log_probabilities
        outside = (self.classes < -1) | (self.classes >= n_classes)
        for row, place in np.argwhere(outside)[:1].tolist():
            text = f"class {self.classes[row, place]} is not among the {n_classes} classes, which are 0 to"
            self._refuse(row, f"{text} {n_classes - 1}; leave it out and add its probability to `other`")
        for row, place in np.argwhere(known & ~(logs <= 1e-6))[:1].tolist():
            text = f"the log-probability of class {self.classes[row, place]} is {logs[row, place]:g}; it must be a"
            self._refuse(row, f"{text} number not above 0, the natural logarithm of a probability")
        for row in np.flatnonzero(~((self.other >= 0.0) & (self.other <= 1.0)))[:1].tolist():
            self._refuse(row, f"other is {self.other[row]:g}; it must be a probability from 0 to 1")
        for row in np.flatnonzero(~known.any(axis=1))[:1].tolist():
            self._refuse(row, "no class is known; leave the row out, or give at least its most probable class")
        ordered = np.sort(self.classes, axis=1)
        for row, place in np.argwhere((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))[:1].tolist():
            self._refuse(row, f"class {ordered[row, place]} is given twice; add the probabilities of one class up")
        sums = self._sums()
        for row in np.flatnonzero(sums > 1.0 + _SUM)[:1].tolist():
            text = f"probabilities sum to {sums[row]:.6g}; {_TOTAL}"
            self._refuse(row, f"{text}. Were these logits or base-2 logarithms? Give natural log-probabilities")

    def valid(self, n_classes: int) -> NDArray[np.bool_]:
        """Which rows `check` does not refuse, (n,)."""
        known, ordered = self.known, np.sort(self.classes, axis=1)
        bad = (self.classes < -1) | (self.classes >= n_classes) | (known & ~(self.log_probabilities <= 1e-6))
        bad[:, 1:] |= (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        is_share = (self.other >= 0.0) & (self.other <= 1.0)
        valid: NDArray[np.bool_] = ~bad.any(axis=1) & known.any(axis=1) & is_share & (self._sums() <= 1.0 + _SUM)
        return valid

    def _sums(self) -> Floats:
        logs = self.log_probabilities
        with np.errstate(over="ignore", invalid="ignore"):
            sums: Floats = np.exp(logs, where=self.known, out=np.zeros_like(logs)).sum(axis=1) + self.other
        return sums

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_] | slice) -> TopRows:
        """The rows with these numbers, or those that a mask selects."""
        return TopRows(self.classes[rows], self.log_probabilities[rows], self.other[rows])

    @classmethod
    def join(cls, several: Sequence[TopRows]) -> TopRows:
        """Rows of several, one after the other, with as many places as the widest has."""
        k = max(rows.resolution for rows in several)
        pads = [((0, 0), (0, k - rows.resolution)) for rows in several]
        return cls(
            np.concatenate(
                [np.pad(rows.classes, pad, constant_values=-1) for rows, pad in zip(several, pads, strict=True)]
            ),
            np.concatenate([np.pad(rows.log_probabilities, pad) for rows, pad in zip(several, pads, strict=True)]),
            np.concatenate([rows.other for rows in several]),
        )

    def renumbered(self, numbers: NDArray[np.integer]) -> TopRows:
        """The same rows with the new number of each class, (K,)."""
        classes = np.where(self.known, np.append(numbers, -1)[self.classes], -1)
        return TopRows(classes, self.log_probabilities, self.other)

    def _refuse(self, row: int, problem: str) -> NoReturn:
        raise TopRowsError(f"row {row}: {problem}", row=row)


def top_rows(probabilities: ArrayLike, k: int) -> TopRows:
    """The k largest of each row of probabilities (n, K), without zeros; `other` is zero.

    >>> top_rows([[0.1, 0.7, 0.2], [0.0, 0.0, 1.0]], 2).classes
    array([[ 1,  2],
           [ 2, -1]], dtype=int32)
    """
    probs = np.asarray(probabilities, dtype=np.float64)
    if probs.ndim != 2 or not 1 <= k <= min(probs.shape[1], MAX_TOP):
        raise TopRowsError(f"the {k} largest of rows of shape {probs.shape} do not exist; k must be from 1 to K")
    classes = np.argsort(-probs, axis=1, kind="stable")[:, :k].astype(np.int32)
    values = np.take_along_axis(probs, classes, axis=1)
    positive = values > 0.0
    logs = np.log(values, where=positive, out=np.zeros_like(values))
    return TopRows(np.where(positive, classes, -1), logs)


def complete(rows: TopRows, weights: Floats) -> Floats:
    """Rows of all classes (n, K): known probabilities as they are, and the rest spread over the other classes.

    The rest is spread in proportion to the weights of the predicted class, and no class gets more than the least known
    one: what is too much goes to the others. It is at least 1e-6, which is what rounded sums leave of it. Without
    `other` the probabilities are those of the classes alone, so they are divided by what `other` leaves.

    Parameters
    ----------
    rows
        Checked rows.
    weights
        Weight of each class beside each predicted one, (K, K) or for all alike (K,), positive.

    >>> complete(TopRows(np.array([[0, 1]]), np.log([[0.7, 0.1]])), np.array([1.0, 1.0, 6.0, 1.0])).round(6)
    array([[0.7, 0.1, 0.1, 0.1]])
    """
    n, classes = len(rows), weights.shape[-1]
    is_known = rows.known & (rows.log_probabilities > np.log(FLOOR))
    values = np.exp(rows.log_probabilities, where=is_known, out=np.zeros_like(rows.log_probabilities))
    found, taken = np.zeros((n, classes + 1)), np.zeros((n, classes + 1), dtype=np.bool_)
    # Empty places write into a last column, which is dropped.
    places = np.where(is_known, rows.classes, classes)
    np.put_along_axis(found, places, values, axis=1)
    np.put_along_axis(taken, places, values=True, axis=1)
    found, taken = found[:, :classes].copy(), taken[:, :classes]
    bound = np.where(is_known, values, np.inf).min(axis=1)
    rest = np.maximum(1.0 - values.sum(axis=1) - rows.other, _LEAST_REST)
    spread = np.where(taken, 0.0, weights[found.argmax(axis=1)] if weights.ndim == 2 else weights)
    found += _fill(spread, rest, np.where(np.isfinite(bound), bound, 1.0))
    found /= found.sum(axis=1, keepdims=True)
    return found


def _fill(weights: Floats, rest: Floats, bound: Floats) -> Floats:
    """min(λ w, bound) of each row (n, K), with λ such that it adds up to the rest (n,) if that is possible."""
    ordered = -np.sort(-weights, axis=1)
    tails = np.cumsum(ordered[:, ::-1], axis=1)[:, ::-1]
    # With the j largest weights at the bound, λ is what is left over the sum of the others. The first j for which the
    # next weight stays within the bound is right; without one, all are at the bound.
    left = np.maximum(rest[:, None] - np.arange(weights.shape[1]) * bound[:, None], 0.0)
    fits = (left * ordered <= bound[:, None] * tails) & (tails > 0.0)
    row, first = np.arange(len(rest)), fits.argmax(axis=1)
    scale = left[row, first] / np.where(tails[row, first] > 0.0, tails[row, first], 1.0)
    filled = np.minimum(scale[:, None] * weights, bound[:, None])
    return np.where(fits[row, first][:, None], filled, np.where(weights > 0.0, bound[:, None], 0.0))
