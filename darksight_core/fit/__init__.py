"""Fitting a map, with torch: on a GPU when there is one, by the same code on a CPU."""

from __future__ import annotations

from darksight_core.fit.config import FitConfig
from darksight_core.fit.map.fitting import MapFit, fit_map, place_rows

__all__ = ["FitConfig", "MapFit", "fit_map", "place_rows"]
