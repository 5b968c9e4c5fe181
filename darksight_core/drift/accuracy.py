"""How accurate is the watched classifier now? Four answers, from a guess without labels to a measurement with them.

    no labels     `fit_cbpe`   mean confidence in the predicted class, after calibration
                  `fit_atc`    share of rows above the confidence that as many reference rows exceeded as were right
                  `fit_doc`    reference accuracy minus the fall in mean confidence
    few labels    `prediction_powered`   confidence of all traffic, corrected on a small random audit
    labels        `labelled_accuracy`    right answers among labelled rows

The first three have no guarantee and cannot have one. They suppose that confidence means now what it meant on the
reference rows; when the meaning of the classes changes, or traffic moves where the reference has no rows, they stay
confident and wrong. So `estimate_accuracy` lets one out only on conditions. Its error on this model's own past must be
known: `backtest` replays it on windows whose labels have arrived, and the spread of those errors is the interval. And
the present must resemble the past: above three times the calibrated outlier rate the figure is withheld. Every figure
says whether it is an estimate.

Prediction-powered accuracy is a measurement: its interval holds whatever the confidence is worth, provided that the
audited rows are a *random* sample of all traffic. Labels that come back only for rejected or complained-about rows are
no such sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import lower_bound, upper_bound
from darksight_core.simplex import Floats, entropy, log_probs

__all__ = [
    "Accuracy",
    "Atc",
    "Backtest",
    "Cbpe",
    "Doc",
    "Estimator",
    "Isotonic",
    "backtest",
    "calibration_error",
    "estimate_accuracy",
    "fit_atc",
    "fit_cbpe",
    "fit_doc",
    "fit_isotonic",
    "labelled_accuracy",
    "prediction_powered",
]

AtcScore: TypeAlias = Literal["msp", "entropy"]
Window: TypeAlias = tuple[Floats, NDArray[np.integer]]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One figure for the accuracy of a window.

    Parameters
    ----------
    method
        "cbpe", "atc", "doc", "ppi" or "labels".
    value
        Share of right predictions; None when the figure is withheld.
    interval
        Lower and upper end; None where the data cannot give one.
    rows
        Rows of the window.
    is_estimate
        True for a figure made without labels, which no guarantee covers.
    error
        Mean absolute error of the method on past windows; None for a measurement.
    withheld
        Why there is no value; None when there is one.
    """

    method: str
    value: float | None
    interval: tuple[float, float] | None
    rows: int
    is_estimate: bool = True
    error: float | None = None
    withheld: str | None = None


class Estimator(Protocol):
    """Reads the accuracy of a window off its probabilities."""

    @property
    def method(self) -> str:
        """Name shown beside the figure."""

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K), between 0 and 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Isotonic:
    """A non-decreasing curve through knots, constant beyond the first and the last.

    Parameters
    ----------
    x
        Knots in ascending order, (m,).
    y
        Values there, (m,).
    """

    x: Floats
    y: Floats

    def __call__(self, values: Floats) -> Floats:
        """The curve at values (n,)."""
        curve: Floats = np.interp(values, self.x, self.y)
        return curve


def fit_isotonic(x: Floats, y: Floats) -> Isotonic:
    """Least-squares non-decreasing fit of y (n,) on x (n,), by pooling adjacent violators.

    >>> fit_isotonic(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.0])).y
    array([0. , 0.5, 0.5])
    """
    knots, group, size = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=y) / size
    # A block is [mean, weight, knots]; a new one is merged backwards for as long as it lies below its predecessor.
    blocks: list[tuple[float, float, int]] = []
    for mean, weight in zip(means.tolist(), size.tolist(), strict=True):
        length = 1
        while blocks and blocks[-1][0] >= mean:
            before, heft, knots_before = blocks.pop()
            mean = (before * heft + mean * weight) / (heft + weight)
            weight, length = weight + heft, length + knots_before
        blocks.append((mean, weight, length))
    fitted = np.repeat([block[0] for block in blocks], [block[2] for block in blocks])
    # Only the ends of a block bend the curve; a saturated classifier keeps few of its many knots.
    inner = np.zeros(len(knots), dtype=np.bool_)
    inner[1:-1] = (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:])
    return Isotonic(knots[~inner], fitted[~inner])


def calibration_error(confidence: Floats, correct: Floats, *, bins: int = 10) -> float:
    """Expected calibration error Σ_b (n_b / n) |mean confidence - share correct| over bins of equally many rows.

    Parameters
    ----------
    confidence
        (n,), in [0, 1].
    correct
        1.0 for a right prediction, 0.0 for a wrong one, (n,).
    """
    order = np.argsort(confidence, kind="stable")
    gaps = (confidence - correct)[order]
    return float(sum(abs(part.sum()) for part in np.array_split(gaps, bins)) / len(gaps))


@dataclass(frozen=True, slots=True, eq=False)
class Cbpe:
    """Confidence-based estimate: the mean calibrated probability of the predicted class.

    Unbiased if the calibrated confidence is right on the window. It cannot fall below the least confidence that a
    prediction can have, 1/K when nothing was calibrated.

    Parameters
    ----------
    curve
        From confidence to probability of being right; None when confidence was calibrated already.
    """

    curve: Isotonic | None

    @property
    def method(self) -> str:
        """Always "cbpe"."""
        return "cbpe"

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K)."""
        confidence = _rows(probs).max(axis=1)
        return float((confidence if self.curve is None else self.curve(confidence)).mean())


def fit_cbpe(probs: Floats, labels: ArrayLike, *, splits: int = 3, seed: int = 0) -> Cbpe:
    """Estimator from reference rows (n, K) with their labels (n,).

    Isotonic calibration of a small or well calibrated reference adds more noise than it removes, so the curve is kept
    only if it lowers the calibration error on rows it was not fitted to, on average over `splits` folds.
    """
    probs = _rows(probs)
    confidence, correct = probs.max(axis=1), _correct(probs, labels)
    folds = np.random.default_rng(seed).permutation(len(probs)) % splits
    gain = 0.0
    for fold in range(splits if len(probs) >= 2 * splits else 0):
        held = folds == fold
        curve = fit_isotonic(confidence[~held], correct[~held])
        gain += calibration_error(confidence[held], correct[held])
        gain -= calibration_error(curve(confidence[held]), correct[held])
    return Cbpe(fit_isotonic(confidence, correct) if gain > 0.0 else None)


@dataclass(frozen=True, slots=True)
class Atc:
    """Average thresholded confidence: the share of rows at or above a threshold.

    Parameters
    ----------
    threshold
        Confidence t that a share of reference rows equal to the accuracy reaches.
    score
        "msp", the largest probability, or "entropy", minus the entropy.
    """

    threshold: float
    score: AtcScore

    @property
    def method(self) -> str:
        """Always "atc"."""
        return "atc"

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K)."""
        return float((_atc_score(_rows(probs), self.score) >= self.threshold).mean())


def fit_atc(probs: Floats, labels: ArrayLike, *, score: AtcScore = "msp") -> Atc:
    """Estimator from reference rows (n, K) with their labels (n,).

    t is the value for which #{s < t} / n comes closest to the error rate; among tied scores no value meets it exactly.
    """
    probs = _rows(probs)
    values, size = np.unique(_atc_score(probs, score), return_counts=True)
    below = np.concatenate([[0.0], np.cumsum(size)]) / len(probs)
    nearest = int(np.argmin(np.abs(below - (1.0 - _correct(probs, labels).mean()))))
    return Atc(float(np.append(values, np.inf)[nearest]), score)


def _atc_score(probs: Floats, score: AtcScore) -> Floats:
    if score not in ("msp", "entropy"):
        raise ConfigError(f"score must be 'msp' or 'entropy', not {score!r}")
    top: Floats = probs.max(axis=1)
    return top if score == "msp" else -entropy(log_probs(probs))


@dataclass(frozen=True, slots=True)
class Doc:
    """Difference of confidences: reference accuracy minus the fall in mean confidence, kept within [0, 1].

    Parameters
    ----------
    accuracy
        Accuracy on the reference rows.
    confidence
        Mean largest probability there.
    """

    accuracy: float
    confidence: float

    @property
    def method(self) -> str:
        """Always "doc"."""
        return "doc"

    def predict(self, probs: Floats) -> float:
        """Accuracy of rows (n, K)."""
        fall = self.confidence - float(_rows(probs).max(axis=1).mean())
        return _clip(self.accuracy - fall)


def fit_doc(probs: Floats, labels: ArrayLike) -> Doc:
    """Estimator from reference rows (n, K) with their labels (n,)."""
    probs = _rows(probs)
    return Doc(float(_correct(probs, labels).mean()), float(probs.max(axis=1).mean()))


@dataclass(frozen=True, slots=True)
class Backtest:
    """How wrong an estimator was on past windows.

    Parameters
    ----------
    method
        The estimator.
    errors
        Estimate minus accuracy for each window.
    """

    method: str
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Bias: above zero for an estimator that flatters the model."""
        return sum(self.errors) / len(self.errors)

    @property
    def mean_absolute_error(self) -> float:
        """The error to show beside an estimate."""
        return sum(abs(error) for error in self.errors) / len(self.errors)

    def radius(self, coverage: float) -> float | None:
        """The ⌈(m + 1) coverage⌉-th smallest absolute error; None when m windows are too few for this coverage.

        The next error is within the radius with probability at least `coverage` if it is exchangeable with the past
        ones: 9 windows give 90 %, 19 give 95 %.
        """
        rank = math.ceil((len(self.errors) + 1) * _share("coverage", coverage) - 1e-9)
        return sorted(abs(error) for error in self.errors)[rank - 1] if rank <= len(self.errors) else None


def backtest(estimator: Estimator, windows: Sequence[Window]) -> Backtest:
    """Replay the estimator on windows of probabilities (n, K) and labels (n,), none of which it was fitted on."""
    if not windows:
        raise ConfigError("a back-test needs at least one labelled window")
    errors = [estimator.predict(probs) - float(_correct(_rows(probs), labels).mean()) for probs, labels in windows]
    return Backtest(estimator.method, tuple(errors))


def estimate_accuracy(
    estimator: Estimator,
    probs: Floats,
    *,
    past: Backtest | None,
    outlier_rate: float,
    alpha: float,
    coverage: float = 0.9,
) -> Accuracy:
    """The estimator's figure for a window, or the reason why it must not be shown.

    Parameters
    ----------
    probs
        Rows of the window, (n, K).
    past
        Its errors on past windows; without them the figure is withheld.
    outlier_rate
        Share of outliers in the window; above 3 α the figure is withheld.
    alpha
        Calibrated outlier rate.
    coverage
        Share of windows whose accuracy the interval should contain; see `Backtest.radius`.
    """
    probs = _rows(probs)
    method, rows = estimator.method, len(probs)
    if past is None:
        reason = "not back-tested: no past window of this model has labels"
        return Accuracy(method, None, None, rows, withheld=reason)
    if past.method != method:
        raise ConfigError(f"a back-test of {past.method} says nothing about {method}")
    if outlier_rate > 3.0 * alpha:
        reason = f"outlier rate {outlier_rate:.4g} is above 3 alpha = {3.0 * alpha:.4g}: traffic left the reference"
        return Accuracy(method, None, None, rows, error=past.mean_absolute_error, withheld=reason)
    value, radius = estimator.predict(probs), past.radius(coverage)
    interval = None if radius is None else (_clip(value - radius), _clip(value + radius))
    return Accuracy(method, value, interval, rows, error=past.mean_absolute_error)


def prediction_powered(
    confidence: ArrayLike, audit_confidence: ArrayLike, audit_correct: ArrayLike, *, level: float = 0.95
) -> Accuracy:
    """Accuracy of all traffic from a random audit, sharpened by the confidence of the rows that were not audited.

        θ = mean_N f - mean_n (f - y),   θ ± z √(var f / N + var(f - y) / n)

    Unbiased for any f; the better f predicts y, the narrower the interval. An audit that saw fewer than 5 right or 5
    wrong predictions gets no interval: the normal approximation would be far too sure of itself.

    Parameters
    ----------
    confidence
        f, any guess of the probability of being right, of the rows not audited, (N,).
    audit_confidence
        f of the audited rows, (n,), which are a random sample of the same traffic.
    audit_correct
        y: whether the prediction was right, (n,).
    level
        Probability that the interval contains the accuracy.
    """
    f, f_audit = np.asarray(confidence, dtype=np.float64), np.asarray(audit_confidence, dtype=np.float64)
    y = np.asarray(audit_correct, dtype=np.float64)
    if f.ndim != 1 or f_audit.shape != y.shape or y.ndim != 1 or len(f) < 2 or len(y) < 2:
        raise ConfigError(f"need (N,), (n,) and (n,) with at least 2 rows, not {f.shape}, {f_audit.shape}, {y.shape}")
    if not (np.isfinite(f).all() and np.isfinite(f_audit).all() and np.isin(y, (0.0, 1.0)).all()):
        raise ConfigError("confidence must be finite and audit_correct must hold only 0 and 1")
    miss = f_audit - y
    value = float(f.mean() - miss.mean())
    rows = len(f) + len(y)
    if min(y.sum(), len(y) - y.sum()) < 5:
        return Accuracy("ppi", _clip(value), None, rows, is_estimate=False)
    radius = _z(level) * math.sqrt(float(f.var(ddof=1)) / len(f) + float(miss.var(ddof=1)) / len(y))
    return Accuracy("ppi", _clip(value), (_clip(value - radius), _clip(value + radius)), rows, is_estimate=False)


def labelled_accuracy(correct: int, rows: int, *, level: float = 0.95) -> Accuracy:
    """Share of right predictions among labelled rows, with the exact interval of Clopper and Pearson.

    >>> labelled_accuracy(90, 100).value
    0.9
    """
    if not 0 <= correct <= rows or rows < 1:
        raise ConfigError(f"{correct} right predictions among {rows} rows cannot be")
    delta = 0.5 * (1.0 - _share("level", level))
    interval = float(lower_bound(correct, rows, delta)), float(upper_bound(correct, rows, delta))
    return Accuracy("labels", correct / rows, interval, rows, is_estimate=False)


def _rows(probs: Floats) -> Floats:
    probs = np.asarray(probs, dtype=np.float64)
    if probs.ndim != 2 or probs.shape[0] < 1 or probs.shape[1] < 2 or not np.isfinite(probs).all():
        raise ConfigError(f"probs must be finite and of shape (n, K) with n >= 1 and K >= 2, not {probs.shape}")
    return probs


def _correct(probs: Floats, labels: ArrayLike) -> Floats:
    """1.0 where the predicted class is the label, else 0.0, (n,)."""
    given = np.asarray(labels)
    if given.shape != (len(probs),) or given.dtype.kind not in "iu":
        raise ConfigError(f"labels must be integers of shape ({len(probs)},), not {given.dtype} of shape {given.shape}")
    correct: Floats = np.equal(probs.argmax(axis=1), given).astype(np.float64)
    return correct


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + 0.5 * _share("level", level))


def _share(name: str, value: float) -> float:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{name} must be between 0 and 1, not {value}")
    return value


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
