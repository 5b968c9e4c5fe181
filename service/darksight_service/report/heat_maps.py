"""Attributions of inputs as a figure with one panel for each input: its picture and heat map, or bars of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

__all__ = ["MAX_ROWS", "draw_heat_maps"]

MAX_ROWS = 12
"""Maximum number of inputs in a figure."""

_BARS = 12
# Side of a picture and width of the figure, in inches.
_SIDE = 2.2
_WIDTH = 13.5


def draw_heat_maps(
    inputs: NDArray[Any],
    heat: NDArray[np.floating],
    captions: Sequence[str],
    *,
    title: str,
    changed: NDArray[Any] | None = None,
) -> Figure:
    """Draw the first `MAX_ROWS` inputs, each in a panel with its attributions.

    Parameters
    ----------
    inputs
        Images (n, H, W), (n, 1 or 3, H, W) or (n, H, W, 1 or 3); other shapes are feature vectors.
    heat
        Attributions, of the shape of the inputs. Red increases the explained value, blue decreases it.
    captions
        Title of each panel.
    title
        Title.
    changed
        Inputs after an attack, drawn next to the original ones.
    """
    count = min(len(inputs), MAX_ROWS)
    pictures = _picture(inputs[0]) is not None
    names = ["input", "heat over input"] if pictures else ["strongest features"]
    names += [] if changed is None else ["after the attack", "what changed"]
    width, height = len(names) * (_SIDE if pictures else 1.6 * _SIDE), _SIDE + 0.6
    columns = min(count, max(1, int(_WIDTH // width)))
    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines + 0.4), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=11)
    panels = figure.subfigures(lines, columns, squeeze=False).ravel()
    draw = _draw_pictures if pictures else _draw_bars
    for number, panel in enumerate(panels[:count]):
        axes = panel.subplots(1, len(names), squeeze=False)[0]
        draw(axes, inputs[number], heat[number], None if changed is None else changed[number])
        panel.suptitle(captions[number], fontsize=9)
        for each, name in zip(axes, names, strict=True):
            each.tick_params(labelsize=7)
            each.set_title(name, fontsize=8)
    return figure


def _picture(row: NDArray[Any]) -> NDArray[Any] | None:
    """An input as image (H, W) or (H, W, 3); None if it is not an image."""
    if row.ndim == 3 and row.shape[0] in (1, 3):
        row = np.moveaxis(row, 0, -1)
    if row.ndim == 3 and row.shape[-1] == 1:
        row = row[..., 0]
    return row if row.ndim == 2 or (row.ndim == 3 and row.shape[-1] == 3) else None


def _draw_pictures(axes: Sequence[Axes], row: NDArray[Any], heat: NDArray[Any], changed: NDArray[Any] | None) -> None:
    picture, values = _picture(row), _picture(heat)
    assert picture is not None
    assert values is not None
    values = values.sum(axis=-1) if values.ndim == 3 else values
    for each in axes:
        each.set(xticks=[], yticks=[])
    _show(axes[0], picture)
    axes[1].imshow(_grey(picture), cmap="gray", alpha=0.45)
    _draw_heat(axes[1], values, alpha=0.6)
    if changed is not None:
        after = _picture(changed)
        assert after is not None
        _show(axes[2], after)
        difference = _grey(after) - _grey(picture)
        _draw_heat(axes[3], difference)


def _draw_bars(axes: Sequence[Axes], row: NDArray[Any], heat: NDArray[Any], changed: NDArray[Any] | None) -> None:
    flat = heat.ravel()
    first = np.argsort(-np.abs(flat))[:_BARS][::-1]
    names = [f"{number} = {row.ravel()[number]:.3g}" for number in first]
    _bars(axes[0], flat[first], names)
    if changed is not None:
        _bars(axes[1], changed.ravel()[first], [str(number) for number in first])
        _bars(axes[2], (changed - row).ravel()[first], [str(number) for number in first])


def _bars(axes: Axes, values: NDArray[Any], names: Sequence[str]) -> None:
    axes.barh(range(len(values)), values, color=["#b2182b" if value > 0 else "#2166ac" for value in values])
    axes.set_yticks(range(len(values)), names)


def _show(axes: Axes, picture: NDArray[Any]) -> None:
    low, high = float(picture.min()), float(picture.max())
    axes.imshow((picture - low) / max(high - low, 1e-12), cmap="gray")


def _draw_heat(axes: Axes, values: NDArray[Any], alpha: float = 1.0) -> None:
    """Zero is white; the colour scale ends at the 99% quantile."""
    most = max(float(np.quantile(np.abs(values), 0.99)), 1e-12)
    axes.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, alpha=alpha)


def _grey(picture: NDArray[Any]) -> NDArray[Any]:
    return picture.mean(axis=-1) if picture.ndim == 3 else picture
