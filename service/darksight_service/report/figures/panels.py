"""Groups of classes of one map side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from darksight_core.map.palette import class_colours
from darksight_core.pictures.labels import place_labels, text_sizes
from darksight_core.rows.simplex import Floats
from darksight_service.report.figures.chart import GREY, Figure, axis, centre_traces, escape, layout, points_trace
from darksight_service.report.findings import Findings

__all__ = ["class_groups", "small_multiples"]

_GROUP = 10
_MAX_PANELS = 12
# Size of a panel on the page, about.
_PANEL_PIXELS = np.array([340.0, 290.0])


def class_groups(log_pi: Floats, size: int = _GROUP) -> list[list[int]]:
    """Groups of at most `size` classes that are confused with each other.

    Parameters
    ----------
    log_pi
        log π of the watched classifier, (n, K).
    size
        Maximum number of classes in a group.
    """
    probs, predicted, classes = np.exp(log_pi), log_pi.argmax(axis=1), log_pi.shape[1]
    mass = np.zeros((classes, classes))
    np.add.at(mass, predicted, probs)
    mass = mass + mass.T
    np.fill_diagonal(mass, 0.0)
    taken, groups = np.zeros(classes, dtype=bool), []
    while not taken.all():
        # The class that is confused most with the remaining ones, then those confused most with the group.
        weight = mass[:, ~taken].sum(axis=1)
        group: list[int] = []
        while len(group) < size and not taken.all():
            chosen = int(np.where(taken, -1.0, weight).argmax())
            weight = mass[:, chosen] if not group else weight + mass[:, chosen]
            taken[chosen] = True
            group.append(chosen)
        groups.append(group)
    return groups


def small_multiples(found: Findings) -> Figure | None:
    """The map in panels of ten classes; None with at most ten classes."""
    if found.n_classes <= _GROUP:
        return None
    every, student = class_groups(found.log_pi), found.bundle.embedder.student
    groups, colours = every[:_MAX_PANELS], class_colours(found.n_classes)
    columns = 3 if len(groups) > 2 else len(groups)
    lines = -(-len(groups) // columns)
    rng = np.random.default_rng(0)
    back = rng.permutation(len(found))[:1_500]
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for number, group in enumerate(groups):
        tail = "" if number == 0 else str(number + 1)
        panel = {"xaxis": f"x{tail}", "yaxis": f"y{tail}", "showlegend": False}
        grey = {"color": GREY, "size": 3, "opacity": 0.4}
        data.append(points_trace(found.drawn, back, marker=grey, hoverinfo="skip", hovertemplate=None, **panel))
        for k in group:
            rows = np.flatnonzero(found.predicted == k)
            rows = rows[rng.permutation(len(rows))[:120]]
            look = {"color": colours[k], "size": 4, "opacity": 0.8}
            data.append(points_trace(found.drawn, rows, name=escape(found.class_names[k]), marker=look, **panel))
        low, high = _close_view(found, group)
        names, counts = (
            [escape(found.class_names[k], 14) for k in group],
            (found.predicted[:, None] == group).sum(axis=0),
        )
        centres = student.means[group] * _PANEL_PIXELS / (high - low)
        sides = place_labels(centres, text_sizes(names, 10), counts, gap=7.0)
        data += centre_traces(student.means[group], names, sides, 10, **panel)
        axes |= _panel(number, columns, lines, low, high)
    part = "" if len(groups) == len(every) else f" The {len(groups)} most confused of {len(every)} groups are drawn."
    return Figure(
        "small-multiples",
        "Groups of ten classes",
        "Parts of the map. Each panel shows up to ten classes that the classifier confuses with each other. Grey dots "
        f"are a sample of all rows, stars are class centres. At most 120 rows of a class are drawn.{part}",
        "Panels have different scales. A class may also be confused with classes of other panels.",
        data,
        layout(330 * lines + 30, margin={"l": 10, "r": 10, "t": 20, "b": 10}, **axes),
    )


def _close_view(found: Findings, group: list[int]) -> tuple[Floats, Floats]:
    """Corners around the centres and most rows of some classes."""
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
    frame: dict[str, Any] = {"showline": True, "mirror": True}
    return {
        f"xaxis{tail}": axis(domain=x, anchor=f"y{tail}", range=[float(low[0]), float(high[0])], **frame),
        f"yaxis{tail}": axis(domain=y, anchor=f"x{tail}", range=[float(low[1]), float(high[1])], **frame),
    }
