"""Regions: which points are inside, what is no polygon, and what the gate makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from darksight_core.bundle import decode_bundle, encode_bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.map import regions
from darksight_core.map.regions import MAX_CORNERS, Region, hull, inside_any
from darksight_core.rows.schema import Decision, Reason, ScoredBatch
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle

Corners = list[tuple[float, float]]

SQUARE: Corners = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
# Halves, so that corners, sides and level sides are met often.
halves = st.integers(-6, 6).map(lambda number: number / 2.0)
polygons = st.lists(st.tuples(halves, halves), min_size=3, max_size=9)
places = st.lists(st.tuples(halves, halves), min_size=1, max_size=30)


def crosses_oddly(corners: Corners, point: tuple[float, float]) -> bool:
    """Even-odd, one side after the other, in exact arithmetic."""
    x, y = point
    is_inside = False
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if (y0 <= y) != (y1 <= y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            is_inside = not is_inside
    return is_inside


def make(corners: Corners) -> Region:
    """A region of these corners, if they make one."""
    try:
        return Region("drawn", tuple(corners))
    except ConfigError:
        assume(False)
        raise


@given(polygons, places)
def test_points_are_inside_as_one_side_after_the_other_says(corners: Corners, points: Corners) -> None:
    """Any polygon, crossing itself or not; all points together and one by one."""
    region = make(corners)
    expected = [crosses_oddly(corners, point) for point in points]

    assert region.inside(points).tolist() == expected
    assert [bool(region.inside([point])[0]) for point in points] == expected


@given(polygons, places, st.integers(0, 8))
def test_direction_start_and_a_closing_corner_do_not_matter(corners: Corners, points: Corners, turn: int) -> None:
    """A polygon is its sides."""
    region = make(corners)
    turned = corners[turn % len(corners) :] + corners[: turn % len(corners)]

    for other in (corners[::-1], turned, [*corners, corners[0]]):
        assert make(other).inside(points).tolist() == region.inside(points).tolist()


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=20), st.floats(-1, 1))
def test_of_two_neighbours_each_point_is_in_exactly_one(points: Corners, slope: float) -> None:
    """The boundary is half-open, so a shared side belongs to one of the two, whatever its direction."""
    low, high = (-slope, -2.0), (slope, 2.0)
    left = Region("left", ((-2.0, -2.0), low, high, (-2.0, 2.0)))
    right = Region("right", (high, low, (2.0, -2.0), (2.0, 2.0)))
    both = Region("both", ((-2.0, -2.0), (2.0, -2.0), (2.0, 2.0), (-2.0, 2.0)))
    on_the_side = [(slope * part, 2.0 * part) for part in np.linspace(-1.0, 1.0, 9).tolist()]

    found = left.inside(points + on_the_side).astype(int) + right.inside(points + on_the_side)

    np.testing.assert_array_equal(found, both.inside(points + on_the_side).astype(int))


@given(st.data())
def test_stored_points_are_where_the_served_ones_are(data: st.DataObject) -> None:
    """float64 points and their float32 copies in the store get the same answer, on the boundary too."""
    floats = st.floats(-2.0, 2.0)
    corners = data.draw(st.lists(st.tuples(floats, floats), min_size=3, max_size=6))
    region = make(corners)
    points = np.array(data.draw(st.lists(st.tuples(floats, floats), min_size=1, max_size=20)) + corners)

    np.testing.assert_array_equal(region.inside(points), region.inside(points.astype(np.float32)))


def test_the_lower_and_left_sides_are_inside_and_what_is_not_finite_is_not() -> None:
    """Half-open, like a cell of a grid."""
    points = [(0, 0), (0.5, 0), (0, 0.5), (1, 0), (0, 1), (1, 1), (0.5, 1), (1, 0.5)]
    odd = [(math.nan, 0.5), (0.5, math.inf), (-math.inf, math.nan), (1e300, 0.5)]

    assert Region("square", tuple(SQUARE)).inside(points).tolist() == [True] * 3 + [False] * 5
    assert not Region("square", tuple(SQUARE)).inside(odd).any()
    assert Region("square", tuple(SQUARE)).inside(np.empty((0, 2))).shape == (0,)


def test_a_polygon_in_a_polygon_is_a_hole_and_a_bow_tie_has_two_wings() -> None:
    """What a line that crosses itself means is defined: even-odd."""
    ring = Region("ring", ((0, 0), (3, 0), (3, 3), (0, 3), (0, 0), (1, 1), (1, 2), (2, 2), (2, 1), (1, 1)))
    tie = Region("tie", ((0, 0), (2, 2), (2, 0), (0, 2)))

    assert ring.inside([(0.5, 0.5), (1.5, 1.5), (2.5, 1.5)]).tolist() == [True, False, True]
    assert tie.inside([(0.25, 1.0), (1.75, 1.0), (1.0, 0.5), (1.0, 1.5)]).tolist() == [True, True, False, False]


def test_many_points_are_compared_with_one_side_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points found are the same: sides that pass all points, and a circle of the most corners."""
    rng = np.random.default_rng(0)
    teeth = ((float(number), float(number % 2)) for number in range(40))
    comb = Region("comb", (*teeth, (39.0, 5.0), (0.0, 5.0)))
    points = rng.uniform(0.0, 40.0, size=(500, 2)) * (1.0, 0.03)
    whole = comb.inside(points)
    angles = np.linspace(0.0, 2.0 * np.pi, MAX_CORNERS, endpoint=False)
    circle = Region("circle", tuple(zip(np.cos(angles).tolist(), np.sin(angles).tolist(), strict=True)))
    around = rng.normal(size=(2000, 2))

    monkeypatch.setattr(regions, "_MANY", 0)

    assert 0 < whole.sum() < len(whole)
    np.testing.assert_array_equal(comb.inside(points), whole)
    np.testing.assert_array_equal(circle.inside(around), np.hypot(*around.T) < 1.0)


@pytest.mark.parametrize(
    ("corners", "message"),
    [
        ([], "list of corners"),
        (SQUARE[:2], "three different corners"),
        ([(0, 0), (1, 1), (0, 0), (1, 1)], "three different corners"),
        ([(0, 0), (1, 1), (3, 3), (2, 2)], "one line"),
        ([(0, 0), (1, math.nan), (1, 1)], "corner 1 is not finite"),
        ([(0, 0), (1, 0), (1e39, 1)], "corner 2 is not finite"),
        ([(0, 0, 0), (1, 0, 0), (1, 1, 0)], "list of corners"),
        ([(0, 0), (1,), (1, 1)], "list of corners"),
        ("polygon", "list of corners"),
        (np.zeros((1_000_000, 2)), "1,000,000 corners"),
        ([(n % 2, n) for n in range(MAX_CORNERS + 1)], "the limit is"),
    ],
)
def test_what_is_no_polygon_is_refused_with_the_reason(corners: Corners, message: str) -> None:
    """One sentence that names the region and the corner."""
    with pytest.raises(ConfigError, match=message):
        Region("bad", corners)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, None])
def test_a_region_needs_a_name_and_an_end_that_is_a_time(name: object) -> None:
    """The name is how people find it in the trail."""
    with pytest.raises(ConfigError, match="name"):
        Region(name, tuple(SQUARE))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError, match="milliseconds"):
        Region("square", tuple(SQUARE), -1)


@given(st.lists(st.tuples(halves, halves), min_size=1, max_size=30))
def test_the_hull_holds_all_points_and_has_no_corner_to_spare(points: Corners) -> None:
    """All points are on its left side, and no three corners are on a line."""
    corners = hull(points)

    if len(corners) > 2:
        for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            turn = turns(end - start, np.array(points) - start)
            assert (turn >= 0.0).all()
            assert len({tuple(points[row]) for row in np.flatnonzero(turn == 0.0)}) >= 2
        for a, b, c in zip(corners, np.roll(corners, -1, axis=0), np.roll(corners, -2, axis=0), strict=True):
            assert turns(b - a, c - b) > 0.0
    else:
        assert {tuple(corner) for corner in corners.tolist()} <= set(points)


def turns(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positive where b turns left of a."""
    found: NDArray[np.float64] = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return found


def scores_at(points: NDArray[np.float64], *, p_value: NDArray[np.float64], valid: NDArray[np.bool_]) -> ScoredBatch:
    """Scores of rows at these points."""
    return replace(
        ScoredBatch.unscored(len(points)), points=points, log_kde=np.zeros(len(points)), p_value=p_value, valid=valid
    )


@given(st.data())
def test_a_region_only_ever_turns_accept_into_reject(data: st.DataObject) -> None:
    """Safety: with regions a gate accepts a part of the rows, and every other row keeps decision and reason."""
    n = data.draw(st.integers(1, 15))
    points = np.array(data.draw(st.lists(st.tuples(halves, halves), min_size=n, max_size=n)))
    points[data.draw(st.lists(st.integers(0, n - 1), max_size=3))] = np.nan
    p_value = np.array(data.draw(st.lists(st.sampled_from([0.001, 0.5, math.nan]), min_size=n, max_size=n)))
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    scores = scores_at(points, p_value=p_value, valid=valid)
    log_pi = np.log(make_probs(n, 3))
    fail_open = data.draw(st.booleans())
    drawn = tuple(make(corners) for corners in data.draw(st.lists(polygons, min_size=1, max_size=3)))
    plain = Gate(None, "log_kde", -1.0, fail_open=fail_open)

    before = plain.decide(log_pi, scores)
    after = Gate(None, "log_kde", -1.0, fail_open=fail_open, regions=drawn).decide(log_pi, scores)

    refused = before.accepted & inside_any(drawn, points)
    np.testing.assert_array_equal(after.accepted, before.accepted & ~refused)
    np.testing.assert_array_equal(after.reason, np.where(refused, Reason.REGION, before.reason))


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
@pytest.mark.parametrize("rows", [1, 300])
def test_the_judge_refuses_where_the_gate_does(compiled: bool | None, rows: int) -> None:
    """The compiled pass knows nothing of regions; what it accepts is looked at after it."""
    bundle = make_bundle(rows=300)
    scorer = Scorer.of(bundle, compiled=compiled)
    probs = make_probs(rows, 3)
    points = scorer.score(probs).points
    x, y = points[0]
    region = Region("here", ((x - 1.0, y - 1.0), (x + 1.0, y - 1.0), (x + 1.0, y + 1.0), (x - 1.0, y + 1.0)))

    plain = ScoringPolicy(scorer, Gate()).score(probs)
    refused = ScoringPolicy(scorer, Gate(regions=(region,))).score(probs)

    inside = region.inside(points)
    assert inside[0]
    assert (rows == 1) or not inside.all()
    np.testing.assert_array_equal(refused.decision, np.where(inside, Decision.REJECT, plain.decision))
    np.testing.assert_array_equal(refused.reason, np.where(inside & plain.accepted, Reason.REGION, plain.reason))


def test_a_bundle_carries_regions_and_one_without_is_as_it_was() -> None:
    """Saved and read they are the same; a gate without regions says nothing of them."""
    bundle = make_bundle()
    gate = Gate(regions=(Region("gap", ((0.1, 0), (1, 0), (1, 1.7))), Region("soon", tuple(SQUARE), 1000)))

    again = decode_bundle(encode_bundle(bundle.with_gate(gate)))

    assert again.gate is not None
    assert again.gate.regions == gate.regions
    assert again.gate.at(999).regions == gate.regions
    assert [region.name for region in again.gate.at(1000).regions] == ["gap"]
    assert "regions" not in Gate().settings()
    with pytest.raises(ConfigError, match="name and a polygon"):
        Gate.from_tensors({}, {**Gate().settings(), "regions": [{"name": "half"}]})
