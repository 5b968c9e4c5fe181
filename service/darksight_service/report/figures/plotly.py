"""What plotly reads: traces and layouts as plain dictionaries, arrays as base64 of few bytes.

The plotly package itself is not imported; its JavaScript is all that a page needs.
"""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GREY", "HALO", "LINE_COLOURS", "Figure", "axis", "layout", "packed", "plain", "points_trace"]

GREY = "#b8b8b8"

HALO = ", ".join(f"{x}px {y}px 1px white" for x in (-1, 0, 1) for y in (-1, 0, 1))
"""Shadow of names among dots."""

LINE_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#999933", "#44AA99",
    "#661100", "#888888",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a page.

    `name` is its anchor and file name; `caption` says how to read it, `limits` what it does not say.
    """

    name: str
    title: str
    caption: str
    limits: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def as_plotly(self) -> dict[str, Any]:
        """What `Plotly.newPlot` takes."""
        return {"data": self.data, "layout": self.layout}


def packed(values: ArrayLike) -> dict[str, Any]:
    """Numbers as plotly's typed arrays: others than bytes and uint16 in the smallest kind that holds them."""
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


def plain(name: str, most: int | None = None) -> str:
    """A name from a file, as text that plotly shows as it is: it would follow tags, entities and `%{...}` in it.

    Parameters
    ----------
    name
        The name.
    most
        Characters to show; of a longer one the first.
    """
    short = name if most is None or len(name) <= most else name[: most - 1] + "…"
    return html.escape(short, quote=False).replace("{", "&#123;")


def points_trace(points: NDArray[np.floating], rows: NDArray[np.integer], **more: Any) -> dict[str, Any]:
    """Places of some rows as dots, which remember their row number."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": packed(points[rows, 0].astype(np.float32)),
        "y": packed(points[rows, 1].astype(np.float32)),
        "customdata": packed(rows.astype(np.int64)),
        "hovertemplate": "row %{customdata}<extra></extra>",
        **more,
    }


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """An axis with a title, or without any mark for places on a map."""
    if title is None:
        return {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": "", **more}
    look = {"gridcolor": "#e8e8e8", "linecolor": "#888", "zeroline": False, "automargin": True}
    return {"title": {"text": title, "standoff": 8}, **look, **more}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """What all figures share."""
    return {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 30, "b": 55},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "legend": {"itemsizing": "constant"},
        **more,
    }
