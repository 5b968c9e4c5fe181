"""The picture of a map: names stay readable, stars hide no points, and colours are visible."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from darksight_core.map.palette import class_colours
from darksight_core.map.student import Student
from darksight_core.pictures.map_picture import draw_map, save_map


@pytest.mark.parametrize("classes", [80, 300])
def test_class_names_do_not_overlap(classes: int) -> None:
    """Among many crowded classes the frequent ones are named, and no two names overlap."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(classes, 2))
    student = Student(means, np.full(classes, 0.1), np.full(classes, -np.log(classes)))
    predicted = rng.integers(classes, size=600)
    predicted[:100] = 7

    figure = draw_map(student, means[predicted], predicted, None, [f"class {k}" for k in range(classes)], title="")
    figure.draw_without_rendering()

    labels = figure.axes[0].texts
    boxes = [label.get_window_extent() for label in labels]
    assert "class 7" in {label.get_text() for label in labels}
    assert 40 < len(labels) <= classes
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_names_share_one_renderer() -> None:
    """Each would keep one of 4.5 MB, so that the picture of 1,100 classes took 5 GB."""
    means = np.random.default_rng(0).normal(size=(60, 2))
    student = Student(means, np.full(60, 0.1), np.zeros(60))

    figure = draw_map(student, means, np.arange(60), None, [f"class {k}" for k in range(60)], title="")

    assert len({id(label._renderer) for label in figure.axes[0].texts}) == 1


def test_stars_hide_no_points(tmp_path: Path) -> None:
    """Rows that all lie at the centres, as those of a decision tree, are drawn in their colours; margins are narrow."""
    means = np.array([[0.0, 0.0], [8.0, 0.0], [4.0, 3.0]])
    predicted = np.repeat([0, 1, 2], 50)
    figure = draw_map(Student(means, np.ones(3), np.zeros(3)), means[predicted], predicted, None, list("abc"), title="")
    save_map(figure, tmp_path / "map.png")
    picture = imread(tmp_path / "map.png")[..., :3]

    assert not figure.axes[0].collections[3].get_facecolor().size
    drawn = picture.min(axis=2) < 0.99
    assert drawn[:30].any()
    assert drawn[-30:].any()
    assert drawn[:, :30].any()
    assert drawn[:, -30:].any()


def luminance(colour: str) -> float:
    """Relative luminance of WCAG."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("page", ["#ffffff", "#161b22"], ids=["light", "dark"])
def test_class_colours_are_visible_on_every_page(page: str) -> None:
    """The contrast of each colour with the page is at least 2."""
    for colour in class_colours(1000):
        light, dark = sorted((luminance(colour), luminance(page)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 2.0, colour


def test_the_line_of_two_classes_is_drawn_as_a_strip() -> None:
    """Points keep their first coordinate, their heights fill a strip in the view, and contours are vertical."""
    student = Student(np.array([[-8.0, 0.0], [8.0, 0.0]]), np.ones(2), np.zeros(2))
    points = np.column_stack([np.linspace(-7.0, 7.0, 300), np.zeros(300)])

    figure = draw_map(student, points, (points[:, 0] > 0).astype(int), None, ["no", "yes"], title="")

    (axes,) = figure.axes
    contours, dots = axes.collections[:2]
    drawn = np.asarray(dots.get_offsets())
    np.testing.assert_allclose(drawn[:, 0], points[:, 0])
    low, high = axes.get_ylim()
    assert low < drawn[:, 1].min() < 0.5 * low
    assert 0.5 * high < drawn[:, 1].max() < high
    assert all(
        np.ptp(line[:, 0]) < 1e-6 for path in contours.get_paths() for line in path.to_polygons(closed_only=False)
    )


def test_points_on_the_border_are_squares_and_stars_without_points_differ() -> None:
    """Both are explained below the picture or beside it."""
    means = np.array([[0.0, 0.0], [8.0, 0.0], [4.0, 3.0]])
    points = np.array([[0.1, 0.0], [7.9, 0.0], [10.0, -3.0], [7.0, 1.0]])
    student = Student(means, np.ones(3), np.zeros(3))

    figure = draw_map(student, points, np.array([0, 1, 1, 2]), None, list("abc"), title="", bound=10.0)

    (axes,) = figure.axes
    _, _, squares, stars, lone = axes.collections[:5]
    assert np.asarray(squares.get_offsets()).tolist() == [[10.0, -3.0]]
    assert np.asarray(stars.get_offsets()).tolist() == means[:2].tolist()
    assert np.asarray(lone.get_offsets()).tolist() == means[2:].tolist()
    assert "squares: 1 points that would lie beyond the border" in axes.get_xlabel()
    assert "without points near" in {text.get_text() for text in axes.get_legend().get_texts()}


@pytest.mark.parametrize("classes", [3, 30])
def test_names_that_the_font_lacks_give_no_warning(tmp_path: Path, classes: int) -> None:
    """Warnings are errors in tests; on a terminal they would tell users nothing that the picture does not."""
    means = np.random.default_rng(0).normal(size=(classes, 2))
    names = [f"\U00012000 {k}" for k in range(classes)]

    figure = draw_map(
        Student(means, np.ones(classes), np.zeros(classes)), means, np.arange(classes), None, names, title=""
    )
    save_map(figure, tmp_path / "map.png")

    assert (tmp_path / "map.png").stat().st_size > 0
