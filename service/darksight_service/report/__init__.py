"""One page about a bundle on labelled rows: every figure of the method's paper, for any classifier, in one file.

findings    all numbers, computed once
figures     a picture of each, as plotly reads it; map_figures has those of the map, path_figures those of walks on it
images      thumbnails, and the arrays that belong to rows
page        figures, tables, cases and numbers in one HTML file that asks nobody for anything
pictures    the same figures as PNG and SVG files
"""

from __future__ import annotations

from darksight_service.report.export import write_pictures
from darksight_service.report.figures.plotly import Figure
from darksight_service.report.figures.scores import all_figures
from darksight_service.report.findings import Findings, Rival, find
from darksight_service.report.page.build import build_page

__all__ = ["Figure", "Findings", "Rival", "all_figures", "build_page", "find", "write_pictures"]
