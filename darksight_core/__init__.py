"""The maths of DarkSight: a 2D map of a classifier's predictions, and how usual a place on it is.

Everything but `darksight_core.fit` needs numpy alone. `DarkSight`, the estimator that fits a map, is imported from
there when it is first asked for, so that scoring runs where torch is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from darksight_core.errors import DarkSightError
from darksight_core.map.student import Student

if TYPE_CHECKING:
    from darksight_core.fit.estimator import DarkSight

__all__ = ["DarkSight", "DarkSightError", "Student", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "DarkSight":
        from darksight_core.fit.estimator import DarkSight

        return DarkSight
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
