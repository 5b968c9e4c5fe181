"""Figures of a report, as plotly.js reads them.

chart        `Figure`, and the traces and layouts that all figures share
map          the map itself
panels       parts of the map side by side
classifier   confusion matrix, calibration
comparison   accuracy, foreign rows, local fidelity
paths        probabilities along a path on the map
"""

from __future__ import annotations

from darksight_service.report.figures.all import all_figures
from darksight_service.report.figures.chart import Figure

__all__ = ["Figure", "all_figures"]
