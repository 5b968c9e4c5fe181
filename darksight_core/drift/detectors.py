"""When did the outlier rate change? Detectors that follow a stream of rows, with a bounded rate of false alarms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.evidence import bet_weights
from darksight_core.errors import ConfigError
from darksight_core.simplex import Floats

__all__ = ["ChangeDetector", "Detector", "detector_path"]

Detector: TypeAlias = Literal["sr", "cusum"]

# ln of the smallest positive float: M = 0 for all purposes and, unlike -inf, a valid number in JSON and SQL.
_LN_ZERO = -745.0


def detector_path(
    flags: NDArray[np.bool_], p0: float, p1: float, *, kind: Detector = "sr", start: float = _LN_ZERO
) -> Floats:
    """ln M after each row, of a detector for a change of the outlier rate from at most p0 to p1.

        sr       M_t = (M_{t-1} + 1) L_t          cusum    M_t = max(M_{t-1}, 1) L_t

    with L_t the likelihood ratio of p1 to p0. Without change M_t - t is a supermartingale, so M first reaches c after
    at least c rows on average.

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
    """Detects a change of the outlier rate from at most p0 to p1, with at least c rows between false alarms on average.

    Use `pac_rate` for p0, because half of all calibration sets exceed the calibrated α. "sr" (Shiryaev-Roberts) uses
    the whole budget of false alarms and is therefore faster; "cusum" raises about a hundred times fewer.

    Parameters
    ----------
    p0
        Highest rate without change.
    p1
        The rate that is detected fastest.
    run_length
        c, lower bound on the mean number of rows before a false alarm.
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
    log_value: float = _LN_ZERO
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
        # M - t is a supermartingale on each replica, so the sum of M minus the sum of rows is one too.
        if (self.p0, self.p1, self.run_length, self.kind) != (other.p0, other.p1, other.run_length, other.kind):
            raise ConfigError("detectors of different rates, run length or kind cannot be added")
        rows, log_value = self.rows + other.rows, float(np.logaddexp(self.log_value, other.log_value))
        is_alarm = self.is_alarm or other.is_alarm or log_value >= math.log(self.run_length)
        return replace(self, rows=rows, log_value=log_value, alarm_row=rows if is_alarm else None)
