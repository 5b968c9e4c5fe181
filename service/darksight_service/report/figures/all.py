"""The figures of a report, in the order of the page."""

from __future__ import annotations

from darksight_service.report.figures.chart import Figure
from darksight_service.report.figures.classifier import calibration_figure, confusion_figure
from darksight_service.report.figures.comparison import accuracy_figure, foreign_figure, local_figure
from darksight_service.report.figures.map import map_figure
from darksight_service.report.figures.panels import small_multiples
from darksight_service.report.figures.paths import path_figure
from darksight_service.report.findings import Findings

__all__ = ["all_figures"]


def all_figures(found: Findings) -> list[Figure]:
    """All figures that these findings have, in the order of the page."""
    figures = [
        map_figure(found),
        small_multiples(found),
        confusion_figure(found),
        calibration_figure(found),
        accuracy_figure(found),
        foreign_figure(found),
        local_figure(found),
        *(path_figure(found, number) for number in range(len(found.paths))),
    ]
    return [figure for figure in figures if figure is not None]
