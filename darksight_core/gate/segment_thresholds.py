"""Thresholds by the value of one tag: each segment that has its own is certified by itself (Mondrian)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.guarantees.risk_curve import lowest_accepted
from darksight_core.rows.simplex import Floats
from darksight_core.rows.tags import find_problem

__all__ = ["MAX_THRESHOLDS", "SegmentThresholds"]

MAX_THRESHOLDS = 1_000
"""Most segments with a threshold of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentThresholds:
    """Thresholds of segments; a row without the tag, or with another value, has the threshold of the gate.

    Parameters
    ----------
    key
        Key of the tag.
    thresholds
        Threshold by value of the tag; -inf accepts every score.

    >>> table = SegmentThresholds("camera", {"7": 2.0})
    >>> table.lowest(["7", "8", ""], pooled=1.0).round(3).tolist()
    [2.0, 1.0, 1.0]
    """

    key: str
    thresholds: Mapping[str, float]
    _lowest: Mapping[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.thresholds) <= MAX_THRESHOLDS:
            raise ConfigError(
                f"1 to {MAX_THRESHOLDS:,} segments have their own threshold, not {len(self.thresholds):,}"
            )
        for value, threshold in self.thresholds.items():
            if problem := find_problem({self.key: value}):
                raise ConfigError(f"thresholds by tag: {problem}")
            if math.isnan(threshold) or threshold == math.inf:
                raise ConfigError(f"the threshold of {self.key}={value} is {threshold}, which accepts no row")
        lowest = {value: float(lowest_accepted(each)) for value, each in self.thresholds.items()}
        object.__setattr__(self, "_lowest", lowest)

    def values(self, tags: Mapping[str, str] | Sequence[Mapping[str, str]], rows: int) -> list[str]:
        """Value of the tag for each row, empty without it, of tags of all rows or of each row."""
        if isinstance(tags, Mapping):
            return [tags.get(self.key, "")] * rows
        return [each.get(self.key, "") for each in tags] if tags else [""] * rows

    def lowest(self, values: Sequence[str], pooled: float) -> Floats:
        """The lowest reject score that is accepted, of rows with these values, (n,).

        Parameters
        ----------
        values
            Value of the tag for each row, empty without it.
        pooled
            The lowest of other rows.
        """
        known = self._lowest
        return np.array([known.get(value, pooled) for value in values], dtype=np.float64)

    def settings(self) -> dict[str, Any]:
        """JSON values; an infinite threshold is a string that float() reads."""
        table = [
            {"value": value, "threshold": str(each) if math.isinf(each) else each}
            for value, each in sorted(self.thresholds.items())
        ]
        return {"key": self.key, "thresholds": table}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> SegmentThresholds:
        """Inverse of `settings`."""
        thresholds = {each["value"]: float(each["threshold"]) for each in settings["thresholds"]}
        if len(thresholds) != len(settings["thresholds"]):
            raise ConfigError(f"a value of the tag {settings['key']} has two thresholds")
        return cls(settings["key"], thresholds)
