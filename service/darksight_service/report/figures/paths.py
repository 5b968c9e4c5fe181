"""Probabilities along a path on the map, and the path itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from darksight_core.map.palette import class_colours, map_view
from darksight_core.map.paths import MapPath
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
from darksight_service.report.figures.map import LEGEND_CLASSES
from darksight_service.report.findings import Findings

__all__ = ["path_figure"]

_NAME = 18
_CLASSES = 12
# Size of the map on the page, about.
_PLOT_PIXELS = np.array([340.0, 300.0])


def path_figure(found: Findings, number: int) -> Figure:
    """Probabilities along one of the paths, and the path on the map."""
    name, path = found.paths[number]
    probs = np.exp(found.log_pi[path.rows])
    shown = _path_classes(path, probs)
    all_colours = class_colours(found.n_classes)
    colours = {k: all_colours[k] for k in shown}
    data: list[dict[str, Any]] = []
    for k in shown:
        label = escape(found.class_names[k], _NAME)
        data.append({
            "type": "scatter", "mode": "lines", "x": packed(path.position), "y": packed(path.probs[:, k]),
            "name": label, "line": {"color": colours[k], "width": 2.5}, "legendgroup": str(k),
            "hovertemplate": f"{label}: %{{y:.2f}}<extra>map</extra>",
        })  # fmt: skip
        data.append({
            "type": "scatter", "mode": "markers", "x": packed(path.row_position), "y": packed(probs[:, k]),
            "customdata": packed(path.rows.astype(np.int64)), "showlegend": False, "legendgroup": str(k),
            "marker": {"color": colours[k], "size": 6, "line": {"color": "white", "width": 0.5}},
            "hovertemplate": f"row %{{customdata}}: {label} %{{y:.2f}}<extra>classifier</extra>",
        })  # fmt: skip
    low, high = _path_view(found, path)
    back = np.random.default_rng(0).permutation(len(found))[:1_500]
    right = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
    grey = {"color": GREY, "size": 3, "opacity": 0.5}
    data.append(points_trace(found.drawn, back, marker=grey, hoverinfo="skip", hovertemplate=None, **right))
    data.append(points_trace(found.drawn, path.rows, marker={"color": "#D55E00", "size": 6}, **right))
    data.append({
        "type": "scatter", "mode": "lines", "x": packed(path.points[:, 0]), "y": packed(path.points[:, 1]),
        "line": {"color": "#808080", "width": 2}, "hoverinfo": "skip", **right,
    })  # fmt: skip
    means = found.bundle.embedder.student.means[shown]
    names = [escape(found.class_names[k], _NAME) for k in shown]
    sides = place_labels(
        means * min(_PLOT_PIXELS / (high - low)), text_sizes(names, 13), np.ones(len(shown), int), gap=7.0
    )
    data += centre_traces(means, names, sides, 13, **right)
    frame: dict[str, Any] = {"showline": True, "mirror": True}
    part = ", which shows a part of the map" if found.n_classes > LEGEND_CLASSES else ""
    near = f"{len(path.rows)} rows are near the path" if len(path.rows) else "no row is near the path"
    return Figure(
        f"path-{number + 1}",
        f"Path: {name}",
        f"Left: probability of each class along the grey line on the right{part}. Lines are the map's probabilities, "
        f"dots the classifier's probabilities for the nearest rows; {near}, orange on the right. Stars are class "
        "centres. Where the dots follow the lines, the map represents the classifier well: rows between two touching "
        "clusters are ambiguous between these classes.",
        "Where there are no dots, the lines are extrapolations of the map without data.",
        data,
        layout(
            400,
            xaxis=axis("position on the path", domain=[0.0, 0.56], range=[-0.01, 1.01]),
            yaxis=axis("probability", range=[-0.02, 1.02]),
            xaxis2=axis(domain=[0.68, 1.0], anchor="y2", range=[float(low[0]), float(high[0])], **frame),
            yaxis2=axis(anchor="x2", scaleanchor="x2", range=[float(low[1]), float(high[1])], **frame),
            legend={"x": 0.57, "y": 1.0, "xanchor": "left", "font": {"size": 12}},
        ),
    )  # fmt: skip


def _path_view(found: Findings, path: MapPath) -> tuple[Floats, Floats]:
    """Corners of the map; with many classes, of the part around the path."""
    if found.n_classes <= LEGEND_CLASSES:
        return map_view(found.bundle.embedder.student, found.points)
    low, high = path.points.min(axis=0), path.points.max(axis=0)
    middle, reach = (low + high) / 2.0, 2.0 * float((high - low).max()) + 1e-3
    return middle - reach, middle + reach


def _path_classes(path: MapPath, probs: Floats) -> list[int]:
    """At most `_CLASSES` classes with a probability of at least 0.1 on the path, in the order of their maxima."""
    top = path.probs.max(axis=0)
    if len(probs):
        top = np.maximum(top, probs.max(axis=0))
    order = np.argsort(-top, kind="stable")[:_CLASSES]
    return sorted((int(k) for k in order if top[k] >= 0.1), key=lambda k: int(path.probs[:, k].argmax()))
