"""The map as a picture: points by predicted class, crosses where it was wrong, stars at the centres, contours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from darksight_core.map.palette import class_colours, map_view
from darksight_core.map.strip import spread_over_strip, strip_height, strip_to_line
from darksight_core.map.student import Student
from darksight_core.map.verdict import has_points_near, is_on_border
from darksight_core.pictures.labels import LABEL_SIDES, place_labels
from darksight_core.rows.simplex import Floats

__all__ = ["draw_map", "save_map"]

_LEGEND_CLASSES = 20
_MANY_MISTAKES = 1_000
_LABEL_GAP = 5.0
_STAR = MarkerStyle("*")
_LONE_STAR = MarkerStyle((4, 1, 0))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore warnings of matplotlib: where the font lacks a character of a class name, a box in the picture says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@_without_warnings()
def draw_map(
    student: Student,
    points: NDArray[np.floating],
    predicted: NDArray[np.integer],
    labels: NDArray[np.integer] | None,
    class_names: Sequence[str],
    *,
    title: str,
    columns: Sequence[int] | None = None,
    bound: float = math.inf,
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
    bound
        Largest coordinate of a point; points on this border are drawn as squares.
    """
    placed: Floats = points.astype(np.float64)
    is_near = has_points_near(placed, predicted, student.means, columns)
    border = is_on_border(placed, bound)
    points = spread_over_strip(student, points.astype(np.float64))
    low, high = map_view(student, points)
    tall = float(np.clip((high - low)[1] / (high - low)[0], 0.4, 0.9))
    figure = Figure(figsize=(9.0, 7.4 * tall + 0.6), dpi=130, layout="constrained")
    axes = figure.subplots()
    colours = class_colours(len(class_names))
    many = len(class_names) > _LEGEND_CLASSES
    wrong = np.zeros(len(points), dtype=bool) if labels is None else (labels >= 0) & (predicted != labels)
    _draw_contours(axes, student, low, high)
    is_stacked = _draw_points(axes, points, np.asarray(colours)[predicted], wrong)
    squares: dict[str, Any] = {"marker": "s", "facecolors": "none", "linewidths": 0.8}
    axes.scatter(
        points[border, 0], points[border, 1], s=22, edgecolors=np.asarray(colours)[predicted[border]], **squares
    )
    # Open, so that a star does not hide the points of a class that has a single place.
    star: dict[str, Any] = {
        "facecolors": "none",
        "edgecolors": "black",
        "linewidths": 0.5 if many else 0.9,
    }
    size = min(30, 3_000 / student.n_classes) if many else 110
    for marker, chosen in ((_STAR, is_near), (_LONE_STAR, ~is_near)):
        axes.scatter(student.means[chosen, 0], student.means[chosen, 1], s=size, marker=marker, zorder=5, **star)
    if not many:
        _draw_legend(axes, colours, class_names, star, has_mistakes=bool(wrong.any()), has_lone=not is_near.all())
    outside = int(((points < low) | (points > high)).any(axis=1).sum())
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=11, loc="left")
    note = "colour: predicted class; lines: student density P(y; θ), a factor of ten apart"
    note += "; a larger dot is several rows" if is_stacked else ""
    if border.any():
        note += f"; squares: {border.sum():,} points that would lie beyond the border"
    if many and not is_near.all():
        note += "; four-pointed stars: centres without points near"
    if strip_height(student) > 0.0:
        note += "; log-odds rise from left to right, heights have no meaning"
    axes.set_xlabel(note + (f"; {outside} points lie outside" if outside else ""), fontsize=8, loc="left")
    if many:
        shown = range(student.n_classes) if columns is None else columns
        counts = np.bincount(predicted, minlength=len(class_names))
        _label_centres(axes, student.means, [class_names[k] for k in shown], counts[list(shown)])
    return figure


def _draw_points(
    axes: mpl.axes.Axes, points: NDArray[np.floating], colours: NDArray[np.str_], wrong: NDArray[np.bool_]
) -> bool:
    """Draw right predictions as dots and wrong ones as crosses; returns whether some points coincide.

    Rows of a decision tree share a few points: there a dot grows with the number of rows.
    """
    _, index, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    sizes = float(np.clip(20_000 / max(len(points), 1), 2.0, 14.0)) * np.sqrt(counts)[index.ravel()]
    dots: dict[str, Any] = {"s": sizes[~wrong], "c": colours[~wrong], "linewidths": 0, "alpha": 0.75}
    axes.scatter(points[~wrong, 0], points[~wrong, 1], rasterized=True, **dots)
    if wrong.any():
        # Thousands of crosses must not bury the rest.
        size, width = (9, 0.7) if wrong.sum() > _MANY_MISTAKES else (34, 1.3)
        axes.scatter(points[wrong, 0], points[wrong, 1], s=size, c=colours[wrong], marker="x", linewidths=width)
    return bool(counts.max(initial=1) > 1)


def _draw_legend(
    axes: mpl.axes.Axes,
    colours: Sequence[str],
    names: Sequence[str],
    star: dict[str, Any],
    *,
    has_mistakes: bool,
    has_lone: bool,
) -> None:
    handles = [axes.scatter([], [], s=40, c=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    if has_mistakes:
        handles.append(axes.scatter([], [], s=34, c="black", marker="x", linewidths=1.3, label="wrong"))
    handles.append(axes.scatter([], [], s=110, marker=_STAR, label="class centre", **star))
    if has_lone:
        handles.append(axes.scatter([], [], s=110, marker=_LONE_STAR, label="without points near", **star))
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


@_without_warnings()
def save_map(figure: Figure, path: Path) -> None:
    """Write the picture; the ending of `path` (.png, .svg, .pdf) decides the format."""
    figure.savefig(path, bbox_inches="tight", pad_inches=0.08)


def _label_centres(axes: mpl.axes.Axes, centres: Floats, names: Sequence[str], counts: NDArray[np.integer]) -> None:
    """Name the centres, and leave out names that would overlap those of more frequent classes."""
    look: dict[str, Any] = {
        "textcoords": "offset pixels",
        "ha": "center",
        "va": "center",
        "fontsize": 6,
        "zorder": 6,
        "parse_math": False,
        "path_effects": [withStroke(linewidth=1.5, foreground="white")],
    }
    figure = axes.get_figure(root=True)
    assert figure is not None
    # The axes have their final size only after the layout is computed.
    figure.draw_without_rendering()
    labels = [axes.annotate(name, tuple(centre), (0, 0), **look) for name, centre in zip(names, centres, strict=True)]
    # Without it every label would make and keep a renderer of its own, 4.5 MB each.
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # matplotlib has no type for it
    sizes = np.array([label.get_window_extent(renderer).size for label in labels])
    sides = place_labels(axes.transData.transform(centres), sizes, counts, _LABEL_GAP)
    for label, side, size in zip(labels, sides, sizes, strict=True):
        if side is None:
            label.remove()
        else:
            label.xyann = tuple(np.asarray(LABEL_SIDES[side]) * (_LABEL_GAP + size / 2.0))


def _draw_contours(axes: mpl.axes.Axes, student: Student, low: Floats, high: Floats) -> None:
    ticks = [np.linspace(low[i], high[i], 220) for i in range(2)]
    grid = np.stack(np.meshgrid(*ticks), axis=-1)
    density = student.log_density(strip_to_line(student, grid.reshape(-1, 2))).reshape(grid.shape[:2]) / np.log(10.0)
    levels = np.arange(np.floor(density.min()), np.ceil(density.max()) + 1)
    axes.contour(*ticks, density, levels=levels, colors="#bbbbbb", linewidths=0.7, zorder=0)
