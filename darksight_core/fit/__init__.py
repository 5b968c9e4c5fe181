"""Fitting a map, with torch: on a GPU when there is one, by the same lines on a CPU.

`DarkSight`, the estimator, is imported when it is first asked for: scikit-learn takes as long to import as torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from darksight_core.fit.config import FitConfig, Progress, Report
from darksight_core.fit.map.fitting import MapFit, fit_map, place_rows

if TYPE_CHECKING:
    from darksight_core.fit.estimator import DarkSight

__all__ = ["DarkSight", "FitConfig", "MapFit", "Progress", "Report", "fit_map", "place_rows"]


def __getattr__(name: str) -> object:
    if name == "DarkSight":
        from darksight_core.fit.estimator import DarkSight

        return DarkSight
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
