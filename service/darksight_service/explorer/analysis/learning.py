"""What the labels so far have taught: the learned confidence against max-softmax, and how it ranks the queue.

With 100 to 300 labels hardly anything beats max-softmax. The learned score therefore starts there and leaves only if
cross-validation says so (`scores.learned`); what is shown is measured on rows that the fit has not seen, with
intervals, and the verdict is put into words that do not claim more than the interval.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from darksight_core.evaluation.failure import FailureFigures, failure_figures
from darksight_core.scores.choice import choose_score
from darksight_core.scores.confidence import msp
from darksight_core.scores.learned import MIN_ROWS, Learned
from darksight_core.simplex import Floats, log_probs

if TYPE_CHECKING:
    from darksight_service.store import PointTable

__all__ = ["LEAST_ERRORS", "Latest", "Lesson", "learn", "rank_changes"]

T = TypeVar("T")
Ints: TypeAlias = NDArray[np.int64]

LEAST_ERRORS = 5
"""Wrong predictions, and right ones, among the labels below which nothing is compared."""

_RESAMPLES = 100
_KEPT = 32


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """What was learned from n labels.

    Parameters
    ----------
    labels, errors
        Labelled points used, and the wrong ones among them.
    needed
        Labels that are missing before anything is learned; 0 if none.
    learned
        The fit on all of them; None if there are too few.
    cross_fitted, softmax
        Figures of the learned score on rows it has not seen, and of max-softmax on the same; None if too few.
    gain, gain_error
        By how much its AUGRC is below max-softmax's, and the standard error of that.
    """

    labels: int
    errors: int
    needed: int
    learned: Learned | None = None
    cross_fitted: FailureFigures | None = None
    softmax: FailureFigures | None = None
    gain: float | None = None
    gain_error: float | None = None

    @property
    def is_shrunk(self) -> bool:
        """Whether the learned score orders rows exactly as max-softmax does."""
        return self.learned is None or (not self.learned.weights.any() and not self.learned.offsets.any())

    @property
    def verdict(self) -> str:
        """One sentence that claims no more than was measured."""
        if self.needed:
            return f"Nothing is learned yet: it takes {self.needed:,} more labels."
        if self.gain is None or self.gain_error is None:
            return (
                f"{self.errors:,} of {self.labels:,} labels are errors: whether the order of points is good cannot be "
                f"told before {LEAST_ERRORS} right and {LEAST_ERRORS} wrong ones are known."
            )
        if self.is_shrunk:
            return (
                "No reason to leave the order of max-softmax: nothing else predicted errors better beyond its noise. "
                "The learned score calibrates it and ranks as it does."
            )
        if self.gain > 2.0 * self.gain_error:
            return "The learned score finds errors better than max-softmax, by more than two standard errors."
        if self.gain < -2.0 * self.gain_error:
            return "The learned score finds errors worse than max-softmax; rank by max-softmax."
        return "The learned score differs from max-softmax by less than its noise: do not rely on the difference."


def learn(rows: PointTable, *, seed: int = 0) -> Lesson:
    """Learn from labelled points; those without probabilities cannot teach."""
    rows = rows.take(_usable(rows))
    errors = rows.errors
    labels, wrong = len(rows), int(errors.sum())
    if labels < 2 * MIN_ROWS:
        return Lesson(labels, wrong, 2 * MIN_ROWS - labels)
    log_pi, densities = log_probs(rows.probs.astype(np.float64)), _densities(rows)
    learned = Learned.fit(log_pi, ~errors, seed=seed, **densities)
    if min(wrong, labels - wrong) < LEAST_ERRORS:
        return Lesson(labels, wrong, 0, learned)
    scores = {"msp": msp(log_pi), "learned": Learned.cross_fit(log_pi, ~errors, seed=seed, **densities)}
    row = next(each for each in choose_score(scores, errors).rows if each.name == "learned")
    softmax, cross_fitted = (failure_figures(each, errors, resamples=_RESAMPLES) for each in scores.values())
    return Lesson(labels, wrong, 0, learned, cross_fitted, softmax, row.gain, row.standard_error)


def rank_changes(lesson: Lesson, rows: PointTable) -> tuple[Ints, Ints, Floats]:
    """Places of points from the least sure up, by max-softmax and by the learned score, and its P(correct), (n,) each.

    Points that cannot be ranked are last in both, with a chance of NaN.
    """
    n = len(rows)
    certainty, odds = np.full((2, n), np.inf)
    chance = np.full(n, np.nan)
    usable = np.flatnonzero(_usable(rows))
    if len(usable):
        some = rows.take(usable)
        log_pi = log_probs(some.probs.astype(np.float64))
        certainty[usable] = odds[usable] = msp(log_pi)
        if lesson.learned is not None:
            given = {name: values for name, values in _densities(some).items() if name in lesson.learned.features}
            if set(lesson.learned.features) - {"entropy", "margin"} <= set(given):
                odds[usable] = lesson.learned.log_odds(log_pi, **given)
                chance[usable] = 0.5 * (1.0 + np.tanh(0.5 * odds[usable]))
    return _places(certainty), _places(odds), chance


class Latest(Generic[T]):
    """The latest result of work that a page should not wait for, made anew in the background when labels have changed.

    Parameters
    ----------
    run
        Runs a function later; a thread by default.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._run = run or _in_thread
        self._lock = threading.Lock()
        self._found: dict[Hashable, tuple[bytes, T]] = {}
        self._busy: set[Hashable] = set()

    def get(self, key: Hashable, rows: PointTable, work: Callable[[PointTable], T]) -> tuple[T | None, bool]:
        """What `work` makes of these labelled points, or the last result of this key and that a newer one is coming."""
        stamp = hashlib.sha256(rows.ids.tobytes() + rows.label.tobytes()).digest()
        with self._lock:
            found = self._found.get(key)
            if found is not None and found[0] == stamp:
                return found[1], False
            is_first = key not in self._busy
            self._busy.add(key)
        if is_first:
            self._run(lambda: self._work(key, stamp, rows, work))
        with self._lock:
            found = self._found.get(key)
            return (None if found is None else found[1]), found is None or found[0] != stamp

    def _work(self, key: Hashable, stamp: bytes, rows: PointTable, work: Callable[[PointTable], T]) -> None:
        try:
            result = work(rows)
            with self._lock:
                self._found = dict([*self._found.items()][-_KEPT:]) | {key: (stamp, result)}
        finally:
            with self._lock:
                self._busy.discard(key)


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="learning", daemon=True).start()


def _usable(rows: PointTable) -> NDArray[np.bool_]:
    if rows.probs.shape[1] < 2:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray(np.isfinite(rows.probs).all(axis=1), dtype=np.bool_)


def _densities(rows: PointTable) -> dict[str, Floats]:
    return {name: values for name in ("log_density", "log_kde") if np.isfinite(values := getattr(rows, name)).all()}


def _places(scores: Floats) -> Ints:
    places = np.empty(len(scores), dtype=np.int64)
    places[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return places
