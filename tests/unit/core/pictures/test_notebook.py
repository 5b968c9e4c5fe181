"""What the HTML and the widget of a notebook show."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.map.regions import Region
from tests.support.bundles import make_bundle

notebook = pytest.importorskip(
    "darksight_core.pictures.notebook", reason="needs anywidget: pip install 'darksight[notebook]'"
)

SQUARE = [[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]]
POINTS = np.array([[0.0, 0.0], [0.2, 0.1], [2.0, 2.0]])


def test_a_lasso_selects_the_rows_inside() -> None:
    """`selected` has their numbers, and the browser gets them too."""
    widget = notebook.MapWidget(POINTS, [0, 1, 1])

    widget.lasso = SQUARE

    assert widget.selected.tolist() == [0, 1]
    assert widget.inside == b"\x01\x01\x00"


def test_a_click_selects_nothing() -> None:
    """A lasso without an area is no error: it ends the selection."""
    widget = notebook.MapWidget(POINTS, [0, 1, 1])
    widget.lasso = SQUARE

    widget.lasso = [[0.0, 0.0]]

    assert widget.selected.tolist() == []


def test_a_lasso_becomes_a_region() -> None:
    """The region has the corners of the lasso; without a lasso there is none."""
    widget = notebook.MapWidget(POINTS, [0, 1, 1])
    with pytest.raises(ConfigError, match="draw a lasso first"):
        widget.region("odd")

    widget.lasso = SQUARE

    assert widget.region("odd") == Region("odd", tuple(map(tuple, SQUARE)))


def test_the_widget_of_a_bundle_has_its_points_centres_and_regions() -> None:
    """It shows the reference points, or rows that it places as the scorer does."""
    bundle = make_bundle(60, 3).with_gate(Gate(regions=(Region("odd", tuple(map(tuple, SQUARE))),)))
    reference = bundle.reference

    widget = notebook.MapWidget.of_bundle(bundle)
    placed = notebook.MapWidget.of_bundle(bundle, bundle.probes.inputs)

    np.testing.assert_array_equal(np.frombuffer(widget.points, "<f4").reshape(-1, 2), reference.points)
    np.testing.assert_allclose(
        np.frombuffer(placed.points, "<f4").reshape(-1, 2), bundle.probes.points, atol=1e-4, rtol=1e-4
    )
    assert widget.centres == bundle.embedder.student.means.tolist()
    assert [shape["name"] for shape in widget.shapes] == ["odd"]
    assert widget.class_names == list(bundle.class_names)


def test_a_region_of_two_classes_is_an_interval() -> None:
    """Two classes are drawn as a strip, and a lasso there rejects between its left and right end."""
    bundle = make_bundle(60, 2)
    widget = notebook.MapWidget.of_bundle(bundle)

    widget.lasso = [[-0.2, -0.01], [0.3, -0.01], [0.0, 0.01]]

    left, right, low, high = widget.region("middle").box
    assert (left, right) == pytest.approx((-0.2, 0.3))
    assert low < 0.0 < high


def test_arrays_that_do_not_fit_are_refused() -> None:
    """Points, classes and labels must be of the same rows."""
    with pytest.raises(ConfigError, match="points"):
        notebook.MapWidget(POINTS, [0, 1])


def test_a_bundle_is_a_table_and_a_picture_in_a_notebook() -> None:
    """Its HTML has the facts of `darksight bundle show`, escaped, and a small map."""
    bundle = make_bundle(60, 3)
    manifest = {**bundle.manifest, "class_names": ["<b>", "1", "2"]}

    html = type(bundle)(
        **{name: getattr(bundle, name) for name in bundle.__dataclass_fields__ if name != "manifest"},
        manifest=manifest,
    )._repr_html_()

    assert "<svg" in html
    assert html.count("<path") == 3
    assert "&lt;b&gt;" in html
    assert "<b>," not in html
    assert "calibration rows" in html
