"""An accuracy with its interval: measured by the audit (`audit`), or estimated without labels (`estimate`)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Accuracy"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a window.

    Parameters
    ----------
    method
        "calibrated confidence" or "audit"; "none" without an accuracy model.
    value
        Share of right predictions; None if the value is withheld.
    interval
        Lower and upper end; None if the data do not support one.
    rows
        Rows of the window; labels of the audit.
    is_estimate
        True for a value without labels, which has no guarantee.
    error
        Mean absolute error of the method on past windows; None for a measurement.
    withheld
        Why there is no value; None if there is one.
    at_most
        Upper bound of a value that is withheld; None if there is none.
    """

    method: str
    value: float | None
    interval: tuple[float, float] | None
    rows: int
    is_estimate: bool = True
    error: float | None = None
    withheld: str | None = None
    at_most: float | None = None
