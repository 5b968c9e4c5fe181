"""Columns of stored points for the browser."""

from __future__ import annotations

from darksight_service.http.explorer.columns import MAX_COLUMN_VALUES, tag_column

from tests.support.points import make_points


def test_values_beyond_the_limit_are_one_number() -> None:
    """The most frequent values keep their texts, however many there are."""
    rare = [{"site": f"s{number:04d}"} for number in range(2 * MAX_COLUMN_VALUES)]
    points = make_points(len(rare) + 4, tags=[*rare, {"site": "often"}, {"site": "often"}, {}, {"camera": "7"}])

    numbers, texts = tag_column(points, "site")

    assert texts == ["often", *(each["site"] for each in rare[: MAX_COLUMN_VALUES - 1])]
    assert numbers[-4:].tolist() == [2, 2, 0, 0]
    assert (numbers == 1).sum() == MAX_COLUMN_VALUES + 1


def test_no_points_are_an_empty_column() -> None:
    """With no texts."""
    numbers, texts = tag_column(make_points(0), "site")

    assert (len(numbers), texts) == (0, [])
