"""Panels by kind, with the builders of grafana-foundation-sdk."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import TypeVar

from grafana_foundation_sdk.builders import heatmap, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import text as text_panel
from grafana_foundation_sdk.builders.common import GraphThresholdsStyleConfig, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, Threshold, ThresholdsMode
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

__all__ = ["SOURCE", "heat_map", "lines", "number", "rows", "spans", "text"]

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that is chosen at the top of a dashboard."""

_Kind = TypeVar("_Kind", heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)


def _fill(
    panel: _Kind,
    title: str,
    queries: Mapping[str, str],
    help: str,
    width: int,
    height: int,
    result: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> _Kind:
    is_instant = isinstance(panel, (stat.Panel, table.Panel))
    for letter, (legend, expr) in zip(ascii_uppercase, queries.items(), strict=False):
        query = Dataquery().ref_id(letter).datasource(SOURCE).expr(expr).legend_format(legend).format(result)
        panel.with_target(query.instant() if is_instant else query.range())
    return panel.title(title).description(help).datasource(SOURCE).span(width).height(height)


def _limits(*limits: float) -> ThresholdsConfig:
    steps = [Threshold(color="green"), *(Threshold(value=limit, color="red") for limit in limits)]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def lines(
    title: str,
    queries: Mapping[str, str],
    help: str,
    *,
    unit: str = "none",
    width: int = 12,
    height: int = 8,
    limits: tuple[float, ...] = (),
) -> timeseries.Panel:
    """Values over time.

    Parameters
    ----------
    title, help
        Title and description of the panel.
    queries
        PromQL by legend; a legend may contain labels as {{label}}.
    unit
        Grafana's name of the unit.
    width, height
        Size in the grid, which has 24 columns.
    limits
        Values of horizontal lines.
    """
    style = GraphThresholdsStyleMode.LINE if limits else GraphThresholdsStyleMode.OFF
    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
    panel = timeseries.Panel().unit(unit).fill_opacity(0).show_points(VisibilityMode.NEVER).legend(legend)
    panel = panel.thresholds(_limits(*limits)).thresholds_style(GraphThresholdsStyleConfig().mode(style))
    return _fill(panel, title, queries, help, width, height)


def number(
    title: str,
    queries: Mapping[str, str],
    help: str,
    *,
    unit: str = "none",
    width: int = 6,
    limits: tuple[float, ...] = (),
    is_name: bool = False,
) -> stat.Panel:
    """The latest values, red from a limit on; or the names of the series, where a series says what is the case."""
    mode = BigValueTextMode.NAME if is_name else BigValueTextMode.AUTO
    panel = stat.Panel().unit(unit).thresholds(_limits(*limits)).text_mode(mode).no_value("-")
    return _fill(panel, title, queries, help, width, 4)


def heat_map(
    title: str,
    query: str,
    help: str,
    *,
    legend: str,
    highest: float | None = None,
    unit: str = "none",
    is_cumulative: bool = False,
    width: int = 12,
) -> heatmap.Panel:
    """Distribution over time: a column of cells for each time, a cell for each series.

    Parameters
    ----------
    legend
        Name of a cell, from labels.
    highest
        Value of the darkest colour; by default the highest value.
    is_cumulative
        The series are buckets of a histogram of Prometheus.
    """
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    color = color.fill("dark-orange").exponent(0.5).min(0)
    panel = heatmap.Panel().color(color if highest is None else color.max(highest)).show_legend()
    # A cell needs enough rows for its share to mean something.
    panel = panel.cell_values(heatmap.CellValues().unit(unit)).interval("5m")
    result = PromQueryFormat.HEATMAP if is_cumulative else PromQueryFormat.TIME_SERIES
    return _fill(panel, title, {legend: query}, help, width, 8, result)


def spans(
    title: str, queries: Mapping[str, str], help: str, *, width: int = 12, height: int = 8
) -> statetimeline.Panel:
    """The times at which series exist, a line for each."""
    panel = statetimeline.Panel().show_value(VisibilityMode.NEVER).thresholds(_limits(1.0))
    return _fill(panel, title, queries, help, width, height)


def rows(title: str, query: str, help: str, *, width: int = 12, height: int = 6) -> table.Panel:
    """The labels of series."""
    return _fill(table.Panel(), title, {"": query}, help, width, height, PromQueryFormat.TABLE)


def text(title: str, content: str, *, width: int = 12, height: int = 6) -> text_panel.Panel:
    """Markdown."""
    return text_panel.Panel().title(title).mode(TextMode.MARKDOWN).content(content).span(width).height(height)
