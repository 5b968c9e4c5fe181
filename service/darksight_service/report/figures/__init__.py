"""Figures of a report, as plotly.js reads them.

chart        `Figure`, and the traces and layouts that all figures share
map          the map itself
panels       parts of the map, and maps of other methods, side by side
classifier   confusion matrix, calibration
comparison   accuracy, foreign rows, local fidelity
paths        probabilities along a path on the map
"""

from __future__ import annotations

from darksight_service.report.figures.all import all_figures
from darksight_service.report.figures.chart import Figure
from darksight_service.report.figures.classifier import calibration_figure, confusion_figure
from darksight_service.report.figures.comparison import (
    accuracy_figure,
    foreign_figure,
    local_figure,
)
from darksight_service.report.figures.map import map_figure
from darksight_service.report.figures.panels import cluster_figure, small_multiples
from darksight_service.report.figures.paths import path_figure

__all__ = [
    "Figure",
    "accuracy_figure",
    "all_figures",
    "calibration_figure",
    "cluster_figure",
    "confusion_figure",
    "foreign_figure",
    "local_figure",
    "map_figure",
    "path_figure",
    "small_multiples",
]
