"""Pictures of the map itself: all rows in three colourings, small multiples, entropy beside other methods."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.simplex import Floats
from darksight_service.report.figures.plotly import GREY, HALO, Figure, axis, layout, packed, plain, points_trace
from darksight_service.report.findings import Findings
from darksight_service.report.palette import class_colours, map_view

__all__ = ["LEGEND_CLASSES", "class_groups", "cluster_figure", "map_figure", "small_multiples"]

LEGEND_CLASSES = 20
"""Classes that a legend has room for."""

_MOST_POINTS = 10_000
_GRID = 140
_GROUP = 10
_NAME = 18
_SCALE = [[0.0, "#fde9c9"], [0.25, "#f5a65b"], [0.6, "#b5367a"], [1.0, "#1d1147"]]


def map_figure(found: Findings) -> Figure:
    """The map: colour by predicted class, true class or entropy; crosses for mistakes, stars for centres, contours."""
    rows = _drawn(found)
    wrong = np.zeros(len(found), dtype=bool) if found.wrong is None else found.wrong
    modes: list[tuple[str, list[dict[str, Any]]]] = [
        ("predicted class", _by_class(found, rows, wrong, found.predicted)),
    ]
    if found.labels is not None:
        modes.append(("true class", _by_class(found, rows, wrong, found.labels)))
    modes.append(("entropy", _by_entropy(found, rows, wrong)))
    low, high = map_view(found.bundle.embedder.student, found.points)
    data = [_contours(found, low, high)]
    foreign = [_foreign(name, places, number) for number, (name, places) in enumerate(found.foreign.items())]
    for number, (_, traces) in enumerate(modes):
        data += [trace | {"visible": number == 0} for trace in traces]
    data += [*foreign, _stars(found)]
    buttons, start = [], 1
    for name, traces in modes:
        shown = [False] * len(data)
        shown[0] = shown[-1] = True
        states: list[bool | str] = list(shown)
        for place in range(start, start + len(traces)):
            states[place] = True
        for place in range(len(data) - 1 - len(foreign), len(data) - 1):
            states[place] = "legendonly"
        buttons.append({"label": name, "method": "restyle", "args": [{"visible": states}]})
        start += len(traces)
    outside = int(((found.points < low) | (found.points > high)).any(axis=1).sum())
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.08}
    far = f" {outside:,} rows lie outside of the part that is shown first; zoom out to see them." if outside else ""
    strange = " A click on its name in the legend shows a file of foreign rows, as diamonds." if foreign else ""
    less = "" if len(rows) == len(found) else f" Drawn are {len(rows):,} of {len(found):,} rows, mistakes first."
    return Figure(
        "map",
        "The map",
        "Each dot is one prediction, placed so that a simple classifier that reads the place alone says what the "
        "watched classifier said. The buttons colour dots by predicted class, true class or entropy (dark: unsure). "
        "Crosses are mistakes, stars the centres of the classes, and lines join places of equal density P(y; θ), a "
        f"factor of ten apart. Point at a dot for its row.{strange}{far}{less}",
        "Distances between clusters that do not touch mean little, and neither do directions. A cross "
        "in the middle of a "
        "cluster is a mistake that nothing on the map warns of.",
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
    """Rows to draw: all, or as many as a browser draws quickly, mistakes before others."""
    rows = np.arange(len(found))
    if len(rows) <= _MOST_POINTS:
        return rows
    first = rows[:0] if found.wrong is None else np.flatnonzero(found.wrong)[:_MOST_POINTS]
    rest = np.random.default_rng(0).permutation(np.setdiff1d(rows, first))[: _MOST_POINTS - len(first)]
    return np.sort(np.concatenate([first, rest]))


def _size(rows: int) -> float:
    return float(np.clip(90.0 / math.sqrt(max(rows, 1)), 3.0, 7.0)) + 0.5


def _cross(rows: int, colour: dict[str, Any]) -> dict[str, Any]:
    """The look of mistakes: thousands of them must not bury the rest."""
    many = rows > 1_000
    return {"symbol": "x-thin", "size": 4.5 if many else 8, "line": {"width": 1.0 if many else 1.6, **colour}}


def _by_class(
    found: Findings, rows: NDArray[np.intp], wrong: NDArray[np.bool_], classes: NDArray[np.integer]
) -> list[dict[str, Any]]:
    """Dots by class, with a legend where it fits, and crosses."""
    colours, size = class_colours(found.n_classes), _size(len(rows))
    right, bad = rows[~wrong[rows]], rows[wrong[rows]]
    scale = [[(k + side) / found.n_classes, colours[k]] for k in range(found.n_classes) for side in (0, 1)]
    bounds = {"cmin": -0.5, "cmax": found.n_classes - 0.5, "colorscale": scale}

    def marker(some: NDArray[np.intp], **more: Any) -> dict[str, Any]:
        return {"color": packed(classes[some].astype(np.int64)), **bounds, **more}

    if found.n_classes > LEGEND_CLASSES:
        traces = [points_trace(found.points, right, name="right", marker=marker(right, size=size, opacity=0.7))]
    else:
        traces = []
        for k, name in enumerate(found.class_names):
            some = right[classes[right] == k]
            look = {"color": colours[k], "size": size, "opacity": 0.7}
            traces.append(points_trace(found.points, some, name=plain(name, _NAME), marker=look))
    if len(bad):
        look = marker(bad) | _cross(len(bad), marker(bad))
        traces.append(points_trace(found.points, bad, name="mistakes", marker=look))
    return traces


def _by_entropy(found: Findings, rows: NDArray[np.intp], wrong: NDArray[np.bool_]) -> list[dict[str, Any]]:
    right, bad = rows[~wrong[rows]], rows[wrong[rows]]
    # The sure rows first, so that the few unsure ones are not buried under them.
    right = right[np.argsort(found.unsure[right], kind="stable")]
    look = {"color": packed(found.unsure[right]), "coloraxis": "coloraxis", "size": _size(len(rows)), "opacity": 0.8}
    traces = [points_trace(found.points, right, name="right", marker=look, showlegend=False)]
    if len(bad):
        colour = {"color": packed(found.unsure[bad]), "coloraxis": "coloraxis"}
        look = colour | _cross(len(bad), colour)
        # Without a place in the legend, where plotly takes an entropy for a colour.
        traces.append(points_trace(found.points, bad, name="mistakes", marker=look, showlegend=False))
    return traces


def _entropy_axis(found: Findings) -> dict[str, Any]:
    top = float(np.quantile(found.unsure, 0.99)) or 1e-6
    bar = {"title": {"text": "entropy, nats", "side": "right"}, "thickness": 12, "len": 0.5, "y": 0.25}
    return {"colorscale": _SCALE, "cmin": 0.0, "cmax": top, "colorbar": bar}


def _contours(found: Findings, low: Floats, high: Floats) -> dict[str, Any]:
    # A figure is wider than the view, and people zoom out.
    reach = 0.4 * float((high - low).max())
    low, high = low - reach, high + reach
    ticks = [np.linspace(low[i], high[i], _GRID) for i in range(2)]
    grid = np.stack(np.meshgrid(*ticks), axis=-1).reshape(-1, 2)
    density = found.bundle.embedder.student.log_density(grid).reshape(_GRID, _GRID) / math.log(10.0)
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


def _foreign(name: str, places: Floats, number: int) -> dict[str, Any]:
    rows = np.random.default_rng(0).permutation(len(places))[:1_000]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": packed(places[rows, 0].astype(np.float32)),
        "y": packed(places[rows, 1].astype(np.float32)),
        "marker": {"symbol": "diamond-open", "size": 6, "color": ("#000000", "#444444", "#777777")[number % 3]},
        "name": f"foreign: {plain(name.rpartition('/')[2], 24)}",
        "hoverinfo": "name",
        "visible": "legendonly",
    }


def _stars(found: Findings) -> dict[str, Any]:
    means, colours = found.bundle.embedder.student.means, class_colours(found.n_classes)
    many = found.n_classes > LEGEND_CLASSES
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": packed(means[:, 0]),
        "y": packed(means[:, 1]),
        "text": [plain(name, _NAME) for name in found.class_names],
        "textposition": "top center",
        "textfont": {"size": 9 if many else 14, "color": "#111", "shadow": HALO},
        "marker": {
            "symbol": "star",
            "size": 9 if many else 16,
            "color": colours,
            "line": {"color": "black", "width": 1},
        },
        "name": "class centres",
        "hovertemplate": "centre of %{text}<extra></extra>",
    }


def class_groups(log_pi: Floats, size: int = _GROUP) -> list[list[int]]:
    """Classes in groups of at most `size`, each filled with those that its members are confused with.

    Parameters
    ----------
    log_pi
        Watched classifier, (n, K).
    size
        Most classes in a group.
    """
    probs, predicted, classes = np.exp(log_pi), log_pi.argmax(axis=1), log_pi.shape[1]
    mass = np.zeros((classes, classes))
    np.add.at(mass, predicted, probs)
    mass = mass + mass.T
    np.fill_diagonal(mass, 0.0)
    left, groups = set(range(classes)), []
    while left:
        rest = sorted(left)
        group = [max(rest, key=lambda k: float(mass[k, rest].sum()))]
        left.remove(group[0])
        while left and len(group) < size:
            following = max(sorted(left), key=lambda k: float(mass[k, group].sum()))
            group.append(following)
            left.remove(following)
        groups.append(group)
    return groups


def small_multiples(found: Findings) -> Figure | None:
    """The map ten classes at a time; None where one picture is enough."""
    if found.n_classes <= _GROUP:
        return None
    groups, student = class_groups(found.log_pi), found.bundle.embedder.student
    columns = 3 if len(groups) > 2 else len(groups)
    lines = -(-len(groups) // columns)
    rng = np.random.default_rng(0)
    back = rng.permutation(len(found))[:1_500]
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for number, group in enumerate(groups):
        tail = "" if number == 0 else str(number + 1)
        place = {"xaxis": f"x{tail}", "yaxis": f"y{tail}", "showlegend": False}
        grey = {"color": "#dddddd", "size": 3}
        data.append(points_trace(found.points, back, marker=grey, hoverinfo="skip", hovertemplate=None, **place))
        for colour, k in zip(class_colours(_GROUP), group, strict=False):
            rows = np.flatnonzero(found.predicted == k)
            rows = rows[rng.permutation(len(rows))[:120]]
            look = {"color": colour, "size": 4, "opacity": 0.8}
            data.append(points_trace(found.points, rows, name=plain(found.class_names[k]), marker=look, **place))
        data.append({
            "type": "scatter", "mode": "markers+text", **place,
            "x": packed(student.means[group, 0]), "y": packed(student.means[group, 1]),
            "text": [plain(found.class_names[k], 14) for k in group], "textposition": "top center",
            "textfont": {"size": 10, "color": "#111", "shadow": HALO}, "hoverinfo": "text",
            "marker": {"symbol": "star", "size": 9, "color": class_colours(_GROUP)[: len(group)],
                       "line": {"color": "black", "width": 0.8}},
        })  # fmt: skip
        axes |= _panel(number, columns, lines, *_close_view(found, group))
    return Figure(
        "small-multiples",
        "Ten classes at a time",
        "Parts of the one map. Each panel shows ten classes, put together because the classifier mixes them up, and "
        "zooms to where they are; grey dots are some of all rows, stars the centres. At most 120 rows of a class are "
        "drawn.",
        "Panels differ in scale. Which classes share one is a matter of drawing: a class may be confused with more.",
        data,
        layout(330 * lines + 30, margin={"l": 10, "r": 10, "t": 20, "b": 10}, **axes),
    )


def _close_view(found: Findings, group: list[int]) -> tuple[Floats, Floats]:
    """Corners around the rows of some classes and their centres, but for the outer rows."""
    rows = np.isin(found.predicted, group)
    means = found.bundle.embedder.student.means[group]
    near = np.quantile(found.points[rows], [0.03, 0.97], axis=0) if rows.any() else means
    shown = np.concatenate([near, means])
    low, high = shown.min(axis=0), shown.max(axis=0)
    margin = 0.12 * (high - low) + 1e-3
    return low - margin, high + margin


def _panel(number: int, columns: int, lines: int, low: Floats, high: Floats) -> dict[str, Any]:
    """Axes of one panel in a grid."""
    tail = "" if number == 0 else str(number + 1)
    column, line, gap = number % columns, number // columns, 0.02
    width, height = 1.0 / columns, 1.0 / lines
    x = [column * width + gap / 2, (column + 1) * width - gap / 2]
    y = [1.0 - (line + 0.98) * height, 1.0 - (line + 0.09) * height]
    frame: dict[str, Any] = {"showline": True, "linecolor": "#ccc", "mirror": True}
    return {
        f"xaxis{tail}": axis(domain=x, anchor=f"y{tail}", range=[float(low[0]), float(high[0])], **frame),
        f"yaxis{tail}": axis(domain=y, anchor=f"x{tail}", range=[float(low[1]), float(high[1])], **frame),
    }


def cluster_figure(found: Findings) -> Figure:
    """Rows by entropy on the map and on the maps of other methods."""
    rng = np.random.default_rng(0)
    some = np.sort(rng.permutation(len(found.compared))[:1_500])
    panels: list[tuple[str, Floats, float | None]] = [
        ("DarkSight", found.points[found.compared], found.measures_compared.cluster_monotonicity.mean)
    ]
    panels += [
        (rival.label, rival.points, rival.measures.cluster_monotonicity.mean)
        for rival in found.rivals
        if rival.key != "fitted_here"
    ]
    columns = min(3, max(2, len(panels)))
    lines = -(-len(panels) // columns)
    data, titles = [], []
    axes: dict[str, Any] = {}
    unsure = found.unsure[found.compared]
    order = some[np.argsort(unsure[some], kind="stable")]
    for number, (name, points, rho) in enumerate(panels):
        tail = "" if number == 0 else str(number + 1)
        look = {"color": packed(unsure[order]), "coloraxis": "coloraxis", "size": 4.5}
        low, high = np.quantile(points, 0.003, axis=0), np.quantile(points, 0.997, axis=0)
        margin = 0.05 * (high - low) + 1e-9
        trace = points_trace(points, order, marker=look, showlegend=False, xaxis=f"x{tail}", yaxis=f"y{tail}")
        data.append(trace | {"customdata": packed(found.compared[order].astype(np.int64))})
        axes |= _panel(number, columns, lines, low - margin, high + margin)
        figure = "" if rho is None else f", ρ = {rho:.2f}"
        titles.append({
            "text": f"{name}{figure}", "showarrow": False, "xref": f"x{tail} domain", "yref": f"y{tail} domain",
            "x": 0.02, "y": 1.0, "yanchor": "bottom", "font": {"size": 13},
        })  # fmt: skip
    return Figure(
        "clusters",
        "Cluster preservation: is the middle of a cluster sure?",
        f"The same {len(some):,} rows on each map, coloured by entropy; dark rows are unsure. ρ is the "
        "rank correlation "
        "of entropy with the distance from the centre of the predicted class, averaged over classes: 1 if rows get "
        "less sure with every step away from the centre, 0 if sure and unsure rows are mixed throughout.",
        "ρ rewards a method that spreads rows by how sure they are. It does not say whether sure rows are right.",
        data,
        layout(370 * lines + 40, margin={"l": 10, "r": 60, "t": 30, "b": 10}, annotations=titles,
               coloraxis=_entropy_axis(found), **axes),
    )  # fmt: skip
