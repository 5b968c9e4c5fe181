"""The map as a picture: points by predicted class, crosses where it was wrong, stars at the centres, contours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from darksight_core.map.student import Student
from darksight_core.simplex import Floats
from darksight_service.report.palette import class_colours, map_view

__all__ = ["draw_map", "save_map"]

_LEGEND_CLASSES = 20
_MANY_MISTAKES = 1_000


def draw_map(
    student: Student,
    points: NDArray[np.floating],
    predicted: NDArray[np.integer],
    labels: NDArray[np.integer] | None,
    class_names: Sequence[str],
    *,
    title: str,
    columns: Sequence[int] | None = None,
) -> Figure:
    """Draw the map of points.

    Parameters
    ----------
    student
        θ of the map.
    points
        Places, (n, 2).
    predicted, labels
        Predicted and true class, (n,); -1 or None where the true class is not known.
    class_names
        Names of all classes.
    title
        Heading.
    columns
        Which of the classes the student knows; None for all.
    """
    figure = Figure(figsize=(9.0, 7.0), dpi=130, layout="constrained")
    axes = figure.subplots()
    colours = class_colours(len(class_names))
    many = len(class_names) > _LEGEND_CLASSES
    shown = range(student.n_classes) if columns is None else columns
    centres = [colours[k] for k in shown]
    low, high = map_view(student, points)
    _draw_contours(axes, student, low, high)
    wrong = np.zeros(len(points), dtype=bool) if labels is None else (labels >= 0) & (predicted != labels)
    size = float(np.clip(20_000 / max(len(points), 1), 2.0, 14.0))
    paint = np.asarray(colours)[predicted]
    axes.scatter(
        points[~wrong, 0], points[~wrong, 1], s=size, c=paint[~wrong], linewidths=0, alpha=0.75, rasterized=True
    )
    if wrong.any():
        # Thousands of crosses must not bury the rest.
        cross, width = (9, 0.7) if wrong.sum() > _MANY_MISTAKES else (34, 1.3)
        axes.scatter(points[wrong, 0], points[wrong, 1], s=cross, c=paint[wrong], marker="x", linewidths=width)
    axes.scatter(
        student.means[:, 0],
        student.means[:, 1],
        s=min(90.0, 9_000 / student.n_classes) if many else 230,
        c=centres,
        marker="*",
        edgecolors="black",
        linewidths=0.9,
        zorder=5,
    )
    if not many:
        handles = [
            axes.scatter([], [], s=40, c=colour, label=name) for colour, name in zip(colours, class_names, strict=True)
        ]
        if wrong.any():
            handles.append(axes.scatter([], [], s=34, c="black", marker="x", linewidths=1.3, label="wrong"))
        handles.append(
            axes.scatter([], [], s=110, c="white", marker="*", edgecolors="black", linewidths=0.9, label="class centre")
        )
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    outside = int(((points < low) | (points > high)).any(axis=1).sum())
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=11, loc="left")
    note = "colour: predicted class; lines: student density P(y; θ), a factor of ten apart"
    axes.set_xlabel(note + (f"; {outside} points lie outside" if outside else ""), fontsize=8, loc="left")
    if many:
        counts = np.bincount(predicted, minlength=len(class_names))
        _label_centres(axes, student.means, [class_names[k] for k in shown], [counts[k] for k in shown])
    return figure


def save_map(figure: Figure, path: Path) -> None:
    """Write the picture; the ending of `path` (.png, .svg, .pdf) decides the format."""
    figure.savefig(path)


def _label_centres(axes: mpl.axes.Axes, centres: Floats, names: Sequence[str], counts: Sequence[int]) -> None:
    """Name the centres, most frequent classes first, and leave out names that would overlap earlier ones."""
    look: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "fontsize": 6,
        "zorder": 6,
        "parse_math": False,
        "path_effects": [withStroke(linewidth=1.5, foreground="white")],
    }
    figure = axes.get_figure(root=True)
    assert figure is not None
    # The axes have their final size only after the layout is computed.
    figure.draw_without_rendering()
    taken = np.empty((0, 4))
    for k in np.argsort(-np.asarray(counts), kind="stable"):
        label = axes.annotate(names[k], tuple(centres[k]), (0, 5), annotation_clip=True, **look)
        left, bottom, right, top = label.get_window_extent().extents
        apart = (taken[:, 0] > right) | (taken[:, 2] < left) | (taken[:, 1] > top) | (taken[:, 3] < bottom)
        if apart.all():
            taken = np.vstack((taken, (left, bottom, right, top)))
        else:
            label.remove()


def _draw_contours(axes: mpl.axes.Axes, student: Student, low: Floats, high: Floats) -> None:
    ticks = [np.linspace(low[i], high[i], 220) for i in range(2)]
    grid = np.stack(np.meshgrid(*ticks), axis=-1)
    density = student.log_density(grid.reshape(-1, 2)).reshape(grid.shape[:2]) / np.log(10.0)
    levels = np.arange(np.floor(density.min()), np.ceil(density.max()) + 1)
    axes.contour(*ticks, density, levels=levels, colors="#bbbbbb", linewidths=0.7, zorder=0)
