"""Fitting a map, with torch: on a GPU when there is one, by the same code on a CPU.

Names are imported when they are first used, so that the options of a fit can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from darksight_core.fit.config import FitConfig
    from darksight_core.fit.map.fitting import MapFit, fit_map, place_rows

__all__ = ["FitConfig", "MapFit", "fit_map", "place_rows"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "config" if name == "FitConfig" else "map.fitting"
    return getattr(import_module(f"darksight_core.fit.{module}"), name)
