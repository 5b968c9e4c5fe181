"""Traces and layouts for plotly.js, as plain dictionaries; arrays are base64 in a compact type.

The Python package plotly is not imported; a page needs its JavaScript only.
"""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.map.palette import class_colours

__all__ = ["GREY", "LINE_COLOURS", "Figure", "axis", "centre_traces", "escape", "layout", "packed", "points_trace"]

GREY = "#b8b8b8"

# The text shadow of names on the map: plotly.js chooses a colour that contrasts with the text.
_HALO = "auto"
# Of more classes stars are small, so that points are seen between them.
_MANY = 100

LINE_COLOURS = class_colours(12)
"""Colours of scores and methods."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a report.

    `name` is its anchor and file name; `caption` explains how to read it, `limits` what it does not show.
    """

    name: str
    title: str
    caption: str
    limits: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def as_plotly(self) -> dict[str, Any]:
        """Arguments of `Plotly.newPlot`."""
        return {"data": self.data, "layout": self.layout}


def packed(values: ArrayLike) -> dict[str, Any]:
    """Numbers as a typed array of plotly.js: floats as float32, integers in the smallest type that fits."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        array = array.astype("<f4")
    elif array.dtype.str not in ("|u1", "<u2"):
        top = int(array.max(initial=0))
        array = array.astype("<u1" if top < 256 else "<u2" if top < 65_536 else "<i4")
    kind = array.dtype.str.lstrip("<|")
    found: dict[str, Any] = {"dtype": kind, "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    if array.ndim == 2:
        found["shape"] = f"{array.shape[0]}, {array.shape[1]}"
    return found


def escape(name: str, max_length: int | None = None) -> str:
    """A name from a file, escaped: plotly.js would interpret tags, entities and `%{...}`.

    Parameters
    ----------
    name
        The name.
    max_length
        Maximum number of characters; a longer name is shortened.
    """
    short = name if max_length is None or len(name) <= max_length else name[: max_length - 1] + "…"
    return html.escape(short, quote=False).replace("{", "&#123;")


def points_trace(points: NDArray[np.floating], rows: NDArray[np.integer], **more: Any) -> dict[str, Any]:
    """Points of some rows as markers; `customdata` has the row numbers."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": packed(points[rows, 0].astype(np.float32)),
        "y": packed(points[rows, 1].astype(np.float32)),
        "customdata": packed(rows.astype(np.int64)),
        "hovertemplate": "row %{customdata}<extra></extra>",
        **more,
    }


def centre_traces(
    centres: NDArray[np.floating], names: list[str], sides: list[str | None], font: int, **more: Any
) -> list[dict[str, Any]]:
    """Class centres as stars, and their names.

    Both are text, which contrasts with the page and with the points below it, in light and in dark mode. An open star
    does not hide the points of a class that has a single place.

    Parameters
    ----------
    centres
        Points of the centres, (n, 2).
    names, sides
        Escaped names, and their sides from `place_labels`; a name without a side is shown under the pointer only.
    font
        Size of the names.
    more
        Other attributes of the traces.
    """
    trace = {"type": "scatter", "mode": "text", "x": packed(centres[:, 0]), "y": packed(centres[:, 1]), **more}
    size = font + 7 if len(names) <= _MANY else 7
    star = {"text": "☆", "textfont": {"size": size, "shadow": _HALO}, "hovertext": names, "hoverinfo": "text"}
    shown = [name if side else "" for name, side in zip(names, sides, strict=True)]
    # An invisible marker of the size of a star keeps its name away from it.
    label = {
        "mode": "markers+text",
        "text": shown,
        "textposition": [side or "top center" for side in sides],
        "textfont": {"size": font, "shadow": _HALO},
        "marker": {"size": size / 2.0, "opacity": 0},
        "hoverinfo": "skip",
    }
    return [trace | star, trace | label]


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """An axis with a title, or a bare axis for a map."""
    if title is None:
        return {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": "", **more}
    look = {"zeroline": False, "automargin": True}
    return {"title": {"text": title, "standoff": 8}, **look, **more}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures share; the page adds the colours of light or dark mode."""
    return {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 30, "b": 55},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13},
        "hovermode": "closest",
        "legend": {"itemsizing": "constant"},
        **more,
    }
