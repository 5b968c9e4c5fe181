"""States that follow a stream of rows: when the outlier rate changed, and a level that adapts to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.drift.evidence import bet_weights
from darksight_core.drift.special import checked_level, finite_values
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

__all__ = [
    "AdaptiveLevel",
    "ChangeDetector",
    "Detector",
    "detector_path",
]

Detector: TypeAlias = Literal["sr", "cusum"]

# ln of the smallest positive float: as good as M = 0 and, unlike -inf, a number that JSON and SQL can hold.
_LN_NOTHING = -745.0


def detector_path(
    flags: NDArray[np.bool_], p0: float, p1: float, *, kind: Detector = "sr", start: float = _LN_NOTHING
) -> Floats:
    """ln M after each row of a detector for a change of the outlier rate from at most p0 to p1.

        sr       M_t = (M_{t-1} + 1) L_t          cusum    M_t = max(M_{t-1}, 1) L_t

    with L_t the likelihood ratio of p1 to p0. M_t - t is a supermartingale without change, so the first time that M
    reaches c comes after c rows or more on average.

    Parameters
    ----------
    flags
        Whether each row is an outlier, in order of arrival, (..., n).
    start
        ln M before the first row; M = 0 by default.
    """
    if kind not in ("sr", "cusum"):
        raise ConfigError(f"kind must be 'sr' or 'cusum', not {kind!r}")
    won, lost = bet_weights(p0, p1)
    flags = np.asarray(flags, dtype=np.bool_)
    ratio = np.cumsum(np.where(flags, won, lost), axis=-1)
    # M_t = C_t (M_0 + Σ_{s<t} 1/C_s) with C the running product of L; CUSUM has the largest term in place of the sum.
    terms = np.concatenate([np.zeros_like(ratio[..., :1]), -ratio[..., :-1]], axis=-1)
    terms[..., :1] = np.logaddexp(terms[..., :1], start) if kind == "sr" else np.maximum(terms[..., :1], start)
    accumulate: Callable[..., Floats] = (np.logaddexp if kind == "sr" else np.maximum).accumulate
    return ratio + accumulate(terms, axis=-1)


@dataclass(frozen=True, slots=True)
class ChangeDetector:
    """Watches for a change of the outlier rate from at most p0 to p1, with a false alarm every c rows at most.

    Use `pac_rate` for p0: the calibrated α is exceeded by half of all calibration sets. "sr" (Shiryaev-Roberts) spends
    the whole budget of false alarms and is therefore quicker; "cusum" gives about a hundred times fewer.

    Parameters
    ----------
    p0
        Highest rate without change.
    p1
        The rate to be found soonest.
    run_length
        c, lower bound of the mean number of rows before a false alarm.
    kind
        "sr" or "cusum".
    rows
        Rows seen.
    log_value
        ln M after them.
    alarm_row
        Number of rows seen at the first alarm, or None.
    """

    p0: float
    p1: float
    run_length: float = 1e6
    kind: Detector = "sr"
    rows: int = 0
    log_value: float = _LN_NOTHING
    alarm_row: int | None = None

    def __post_init__(self) -> None:
        bet_weights(self.p0, self.p1)
        if self.run_length < 1.0:
            raise ConfigError(f"run_length must be at least 1, not {self.run_length}")

    @property
    def is_alarm(self) -> bool:
        """Whether M has reached c since the start."""
        return self.alarm_row is not None

    def update(self, flags: NDArray[np.bool_]) -> ChangeDetector:
        """The state after more rows, (n,) in order of arrival."""
        flags = np.asarray(flags, dtype=np.bool_)
        if flags.size == 0:
            return self
        path = detector_path(flags, self.p0, self.p1, kind=self.kind, start=self.log_value)
        alarm_row = self.alarm_row
        if alarm_row is None and path.max() >= math.log(self.run_length):
            alarm_row = self.rows + 1 + int(np.argmax(path >= math.log(self.run_length)))
        return replace(self, rows=self.rows + flags.size, log_value=float(path[-1]), alarm_row=alarm_row)

    def __add__(self, other: ChangeDetector) -> ChangeDetector:
        # M - t is a supermartingale on each replica, hence the sum of M minus the sum of rows is one, too.
        if (self.p0, self.p1, self.run_length, self.kind) != (other.p0, other.p1, other.run_length, other.kind):
            raise ConfigError("detectors of different rates, run length or kind cannot be added")
        rows, log_value = self.rows + other.rows, float(np.logaddexp(self.log_value, other.log_value))
        is_alarm = self.is_alarm or other.is_alarm or log_value >= math.log(self.run_length)
        return replace(self, rows=rows, log_value=log_value, alarm_row=rows if is_alarm else None)


@dataclass(frozen=True, slots=True)
class AdaptiveLevel:
    """Adaptive conformal level: moves α_t so that the share of flagged rows stays at its target, for any sequence.

        α_1 = target,   α_{t+1} = α_t + γ (target - err_t),   err_t = 1 if p_t <= α_t

    Off unless asked for, and never to be connected to an alarm: it keeps the flagged share constant *while the model
    gets worse*, which hides drift. Alarms read raw p-values; the level itself is exported, and a level that leaves
    [target/3, 3 target] is drift.

    Parameters
    ----------
    target
        Share of rows to flag.
    step
        γ.
    rows
        Rows seen.
    flagged
        Rows flagged among them.
    """

    target: float
    step: float = 0.01
    rows: int = 0
    flagged: int = 0

    def __post_init__(self) -> None:
        checked_level(self.target)
        if self.step <= 0.0:
            raise ConfigError(f"step must be positive, not {self.step}")

    @property
    def level(self) -> float:
        """α_t; at or below 0 nothing is flagged, at or above 1 everything."""
        return self.target + self.step * (self.target * self.rows - self.flagged)

    @property
    def bound(self) -> float:
        """(max(α_1, 1 - α_1) + γ) / (T γ): largest gap between flagged share and target after T rows, whatever came."""
        if self.rows == 0:
            return math.inf
        return (max(self.target, 1.0 - self.target) + self.step) / (self.rows * self.step)

    @property
    def is_drifting(self) -> bool:
        """Whether the level has left [target/3, 3 target]: what it hides from the flagged share, it shows here."""
        return not self.target / 3.0 <= self.level <= 3.0 * self.target

    def update(self, p_values: ArrayLike) -> AdaptiveLevel:
        """The state after rows with these p-values, (n,) in (0, 1] and in order of arrival."""
        rows, flagged = self.rows, self.flagged
        for p_value in finite_values("p_values", p_values, least=0).tolist():
            level = self.target + self.step * (self.target * rows - flagged)
            rows, flagged = rows + 1, flagged + (p_value <= level)
        return replace(self, rows=rows, flagged=flagged)
