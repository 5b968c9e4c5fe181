"""The detectors of drift. Another one is a file that implements `Detector` and a line here.

The audit of a certificate is none: its labels arrive in any order, so `audit` reads them from the store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from darksight_core.drift.detector import Baseline, Detector
from darksight_core.drift.segments import SegmentTest
from darksight_core.drift.stream import DriftTest
from darksight_core.drift.witnesses import WitnessTest

__all__ = ["DETECTORS", "KINDS", "make_detectors"]

DETECTORS: tuple[type[Detector[Any]], ...] = (
    DriftTest,
    WitnessTest,
    SegmentTest,
)

KINDS = {kind: text for each in DETECTORS if not each.is_by_segment for kind, text in each.kinds.items()}
"""Kinds of evidence about all rows of a bundle, and what changes when it is high."""


def make_detectors(baseline: Baseline, level: float | None = None) -> tuple[Detector[Any], ...]:
    """All detectors of a bundle; ConfigError if the bundle lacks what one of them needs.

    Parameters
    ----------
    baseline
        Of the bundle.
    level
        Another bound on the probability of a false alarm, for the detectors of all rows.
    """
    made: list[Any] = [found for each in DETECTORS if (found := each.of(baseline)) is not None]
    return tuple(each if level is None or each.is_by_segment else replace(each, level=level) for each in made)
