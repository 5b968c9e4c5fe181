"""The map of all rows, coloured by predicted class, true class or entropy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.map.palette import GRADES, class_colours, map_view
from darksight_core.map.strip import spread_over_strip, strip_height, strip_to_line
from darksight_core.map.verdict import has_points_near, is_on_border
from darksight_core.pictures.labels import place_labels, text_sizes
from darksight_core.rows.simplex import Floats
from darksight_service.report.figures.chart import (
    GREY,
    Figure,
    axis,
    centre_traces,
    escape,
    layout,
    packed,
    points_trace,
)
from darksight_service.report.findings import Findings

__all__ = ["LEGEND_CLASSES", "map_figure"]

LEGEND_CLASSES = 20
"""Maximum number of classes in a legend."""

_MAX_POINTS = 10_000
_GRID = 140
_NAME_LENGTH = 18
# Size of the map on the page, about.
_PLOT_PIXELS = np.array([1000.0, 600.0])


def map_figure(found: Findings) -> Figure:
    """The map: points coloured by class or entropy, crosses for errors, stars for class centres, density contours."""
    rows = _drawn(found)
    wrong = np.zeros(len(found), dtype=bool) if found.wrong is None else found.wrong
    modes: list[tuple[str, list[dict[str, Any]]]] = [
        ("predicted class", _by_class(found, rows, wrong, found.predicted)),
    ]
    if found.labels is not None:
        modes.append(("true class", _by_class(found, rows, wrong, found.labels)))
    modes.append(("entropy", _by_entropy(found, rows, wrong)))
    border = np.flatnonzero(is_on_border(found.points, found.bundle.embedder.bound))
    low, high = map_view(found.bundle.embedder.student, found.points)
    data = [_contours(found, low, high)]
    student = found.bundle.embedder.student
    foreign = [
        _foreign(name, spread_over_strip(student, points), number)
        for number, (name, points) in enumerate(found.foreign.items())
    ]
    for number, (_, traces) in enumerate(modes):
        data += [trace | {"visible": number == 0} for trace in traces]
    data += [*foreign, _on_border(found, border), *_centres(found, low, high)]
    buttons, start = [], 1
    for name, traces in modes:
        shown = [False] * len(data)
        shown[0] = True
        shown[-3:] = [True] * 3
        states: list[bool | str] = list(shown)
        for number in range(start, start + len(traces)):
            states[number] = True
        for number in range(len(data) - 3 - len(foreign), len(data) - 3):
            states[number] = "legendonly"
        buttons.append({"label": name, "method": "restyle", "args": [{"visible": states}]})
        start += len(traces)
    outside = int(((found.points < low) | (found.points > high)).any(axis=1).sum())
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.08}
    far = f" {outside:,} rows are outside the initial view; zoom out to see them." if outside else ""
    line = " Log-odds rise from left to right; the height of a dot has no meaning." if strip_height(student) else ""
    strange = " Click a name in the legend to show a file of foreign rows, as diamonds." if foreign else ""
    squares = ""
    if len(border):
        squares = (
            f" Squares are {len(border):,} rows on the border of the map: they are undecided between several classes "
            "and would lie further out, so their distances mean nothing."
        )
    less = "" if len(rows) == len(found) else f" {len(rows):,} of {len(found):,} rows are drawn, errors first."
    return Figure(
        "map",
        "The map",
        "Each dot is one prediction. It is placed so that a simple classifier, reading its coordinates alone, "
        "reproduces the probabilities of the watched classifier. The buttons colour the dots by predicted class, true "
        "class or entropy (violet is uncertain). Crosses are errors, stars are class centres, and contours of the "
        f"density P(y; θ) are a factor of ten apart. Point at a dot to see its row.{line}{strange}{far}{less}",
        "Distances and directions between clusters that do not touch mean little. A cross in the middle of a cluster "
        "is an error that the map does not reveal. A star with four points is not near any point of its class."
        f"{squares}",
        data,
        layout(
            680,
            margin={"l": 20, "r": 20, "t": 60, "b": 20},
            xaxis=axis(range=[float(low[0]), float(high[0])]),
            yaxis=axis(range=[float(low[1]), float(high[1])], scaleanchor="x"),
            updatemenus=[menu],
            coloraxis=_entropy_axis(found),
        ),
    )  # fmt: skip


def _drawn(found: Findings) -> NDArray[np.intp]:
    """Rows to draw: all, or at most `_MAX_POINTS`, errors first."""
    rows = np.arange(len(found))
    if len(rows) <= _MAX_POINTS:
        return rows
    first = rows[:0] if found.wrong is None else np.flatnonzero(found.wrong)[:_MAX_POINTS]
    rest = np.random.default_rng(0).permutation(np.setdiff1d(rows, first))[: _MAX_POINTS - len(first)]
    return np.sort(np.concatenate([first, rest]))


def _size(rows: int) -> float:
    return float(np.clip(90.0 / math.sqrt(max(rows, 1)), 3.0, 7.0)) + 0.5


def _cross(rows: int, colour: dict[str, Any]) -> dict[str, Any]:
    """Marker of errors; smaller if there are thousands of them."""
    many = rows > 1_000
    return {"symbol": "x-thin", "size": 4.5 if many else 8, "line": {"width": 1.0 if many else 1.6, **colour}}


def _by_class(
    found: Findings, rows: NDArray[np.intp], wrong: NDArray[np.bool_], classes: NDArray[np.integer]
) -> list[dict[str, Any]]:
    """Dots by class, with a legend if there are few classes, and crosses."""
    colours, size = class_colours(found.n_classes), _size(len(rows))
    right, bad = rows[~wrong[rows]], rows[wrong[rows]]
    scale = [[(k + side) / found.n_classes, colours[k]] for k in range(found.n_classes) for side in (0, 1)]
    bounds = {"cmin": -0.5, "cmax": found.n_classes - 0.5, "colorscale": scale}

    def marker(some: NDArray[np.intp], **more: Any) -> dict[str, Any]:
        return {"color": packed(classes[some].astype(np.int64)), **bounds, **more}

    if found.n_classes > LEGEND_CLASSES:
        traces = [points_trace(found.drawn, right, name="right", marker=marker(right, size=size, opacity=0.7))]
    else:
        traces = []
        for k, name in enumerate(found.class_names):
            some = right[classes[right] == k]
            look = {"color": colours[k], "size": size, "opacity": 0.7}
            traces.append(points_trace(found.drawn, some, name=escape(name, _NAME_LENGTH), marker=look))
    if len(bad):
        look = marker(bad) | _cross(len(bad), marker(bad))
        traces.append(points_trace(found.drawn, bad, name="errors", marker=look))
    return traces


def _by_entropy(found: Findings, rows: NDArray[np.intp], wrong: NDArray[np.bool_]) -> list[dict[str, Any]]:
    right, bad = rows[~wrong[rows]], rows[wrong[rows]]
    # Certain rows first, so that they do not hide the few uncertain ones.
    right = right[np.argsort(found.entropy[right], kind="stable")]
    look = {"color": packed(found.entropy[right]), "coloraxis": "coloraxis", "size": _size(len(rows)), "opacity": 0.8}
    traces = [points_trace(found.drawn, right, name="right", marker=look, showlegend=False)]
    if len(bad):
        colour = {"color": packed(found.entropy[bad]), "coloraxis": "coloraxis"}
        look = colour | _cross(len(bad), colour)
        # Not in the legend, where plotly.js would take an entropy for a colour.
        traces.append(points_trace(found.drawn, bad, name="errors", marker=look, showlegend=False))
    return traces


def _entropy_axis(found: Findings) -> dict[str, Any]:
    """The colour axis of entropy."""
    top = float(np.quantile(found.entropy, 0.99)) or 1e-6
    bar = {"title": {"text": "entropy, nats", "side": "right"}, "thickness": 12, "len": 0.5, "y": 0.25}
    scale = [[number / (len(GRADES) - 1), colour] for number, colour in enumerate(GRADES)]
    return {"colorscale": scale, "cmin": 0.0, "cmax": top, "colorbar": bar}


def _contours(found: Findings, low: Floats, high: Floats) -> dict[str, Any]:
    # Larger than the view, for zooming out.
    reach = 0.4 * float((high - low).max())
    low, high = low - reach, high + reach
    ticks = [np.linspace(low[i], high[i], _GRID) for i in range(2)]
    grid = np.stack(np.meshgrid(*ticks), axis=-1).reshape(-1, 2)
    student = found.bundle.embedder.student
    density = student.log_density(strip_to_line(student, grid)).reshape(_GRID, _GRID) / math.log(10.0)
    return {
        "type": "contour",
        "x0": float(low[0]),
        "dx": float(ticks[0][1] - ticks[0][0]),
        "y0": float(low[1]),
        "dy": float(ticks[1][1] - ticks[1][0]),
        "z": packed(density),
        "contours": {
            "coloring": "none",
            "start": math.floor(density.min()),
            "end": math.ceil(density.max()),
            "size": 1,
        },
        "line": {"color": GREY, "width": 1},
        "showscale": False,
        "hoverinfo": "skip",
        "name": "density",
    }


def _foreign(name: str, points: Floats, number: int) -> dict[str, Any]:
    rows = np.random.default_rng(0).permutation(len(points))[:1_000]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": packed(points[rows, 0].astype(np.float32)),
        "y": packed(points[rows, 1].astype(np.float32)),
        "marker": {"symbol": "diamond-open", "size": 6, "color": ("#000000", "#444444", "#777777")[number % 3]},
        "name": f"foreign: {escape(name.rpartition('/')[2], 24)}",
        "hoverinfo": "name",
        "visible": "legendonly",
    }


def _on_border(found: Findings, rows: NDArray[np.intp]) -> dict[str, Any]:
    look = {"symbol": "square-open", "size": 8, "color": GREY}
    return points_trace(found.drawn, rows, name="on the border", marker=look, showlegend=bool(len(rows)))


def _centres(found: Findings, low: Floats, high: Floats) -> list[dict[str, Any]]:
    """Class centres with those names that do not overlap in the first view."""
    means = found.bundle.embedder.student.means
    font = 10 if found.n_classes > LEGEND_CLASSES else 14
    names = [escape(name, _NAME_LENGTH) for name in found.class_names]
    scale = min(_PLOT_PIXELS / (high - low))
    counts = np.bincount(found.predicted, minlength=found.n_classes)
    sides = place_labels(means * scale, text_sizes(names, font), counts, gap=7.0)
    stars, labels = centre_traces(means, names, sides, font, name="class centres", showlegend=False)
    is_near = has_points_near(found.points, found.predicted, means, None)
    return [stars | {"text": np.where(is_near, "☆", "✧").tolist()}, labels]
