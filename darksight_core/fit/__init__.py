"""Fitting a map, with torch: on a GPU when there is one, by the same lines on a CPU."""

from darksight_core.fit.config import FitConfig, Progress, Report
from darksight_core.fit.estimator import DarkSight
from darksight_core.fit.fitting import MapFit, fit_map, place_rows

__all__ = ["DarkSight", "FitConfig", "MapFit", "Progress", "Report", "fit_map", "place_rows"]
