"""Reports: one HTML file about a bundle on labelled rows, with the figures of the method's paper.

findings     all numbers, computed once
figures/     the figures, as plotly.js reads them
page/        figures, tables, cases and numbers in one HTML file
images       thumbnails, and the arrays that belong to rows
heat_maps    attributions of inputs by matplotlib, for `darksight explain`
plotly_js    the JavaScript of plotly
"""

from __future__ import annotations

from darksight_service.report.figures import Figure, all_figures
from darksight_service.report.findings import Findings, find
from darksight_service.report.page.build import build_page

__all__ = ["Figure", "Findings", "all_figures", "build_page", "find"]
