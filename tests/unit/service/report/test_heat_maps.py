"""Pictures of attributions."""

from __future__ import annotations

import numpy as np
from darksight_service.report.heat_maps import draw_heat_maps


def test_each_input_has_a_panel_and_is_not_inverted() -> None:
    """Five pictures are five panels of readable size with their captions; low values are dark."""
    inputs = np.zeros((5, 8, 8))
    inputs[:, :4] = 1.0

    figure = draw_heat_maps(inputs, np.ones_like(inputs), [f"row {k}" for k in range(5)], title="heat")

    figure.draw_without_rendering()
    panels = [panel for panel in figure.subfigs if panel.axes]
    assert [panel.get_suptitle() for panel in panels] == [f"row {k}" for k in range(5)]
    picture = panels[0].axes[0]
    assert picture.get_window_extent().height / figure.dpi > 1.5
    image = picture.images[0]
    bright, dark = image.cmap(image.norm(image.get_array()))[[0, -1], 0, :3]
    assert bright.mean() > 0.9
    assert dark.mean() < 0.1


def test_features_are_bars() -> None:
    """The strongest of each vector, largest at the top."""
    heat = np.array([[0.1, -3.0, 2.0]])

    figure = draw_heat_maps(np.ones((1, 3)), heat, ["row 0"], title="heat")

    bars = figure.subfigs[0].axes[0].patches
    assert [bar.get_width() for bar in bars] == [0.1, 2.0, -3.0]
