"""The shortcuts of the compiled loops against the plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darksight_core.map import placement as embed
from darksight_core.map.placement import MARGIN
from darksight_core.runtime.compiled import kernel, loops
from darksight_core.scores.outlier import OutlierScore
from darksight_core.simplex import log_probs
from tests.support.maps import extreme_probs, map_probs, random_embedder

pytestmark = pytest.mark.skipif(not loops.COMPILED, reason="needs numba")


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-300, 1e300))
def test_logarithm_and_inverse_by_one_division(value: float) -> None:
    """Both are right to rounding over the whole range."""
    log, inverse = loops._log_and_inverse(value)

    np.testing.assert_allclose(log, np.log(value), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(inverse, 1.0 / value, rtol=1e-15)


@pytest.mark.parametrize("dof", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("classes", [2, 10, 130])
def test_a_class_has_a_rival_where_its_log_odds_say_so(classes: int, dof: float) -> None:
    """The test without logarithms agrees with the log-odds themselves, and names a class that is one; with any hint."""
    embedder, rng = random_embedder(classes, dof=dof), np.random.default_rng(0)
    plane = kernel._plane(embedder)
    points, labels = rng.uniform(-20.0, 20.0, size=(2, 300)), rng.integers(classes, size=300)
    points[:, :150] = embedder.student.means[labels[:150]].T + rng.normal(size=(2, 150))
    x, y, offset, spread = embedder.theta()[:, :, None]
    power = 0.5 * (dof + 2.0)
    lead = embed._lead(embed._Theta(x, y, offset, spread, power), points, labels)
    reach = float(np.exp(MARGIN / power))

    for hint in (0, 1, classes - 1):
        found = np.array(
            [
                loops._rival(*point, int(label), plane.theta, reach, hint)
                for point, label in zip(points.T, labels, strict=True)
            ]
        )

        np.testing.assert_array_equal(found == labels, lead > MARGIN)
        assert 0 < np.count_nonzero(found == labels) < len(found)
        behind = found != labels
        rivals = embedder.student.log_posterior(points.T)[np.arange(len(labels)), found]
        own = embedder.student.log_posterior(points.T)[np.arange(len(labels)), labels]
        assert (own[behind] - rivals[behind] <= MARGIN + 1e-12).all()


@pytest.mark.parametrize("classes", [256, 300])
def test_products_of_16_bits_are_off_by_no_more_than_is_said(classes: int) -> None:
    """For usual and for one-hot rows; and that is little."""
    rows = np.concatenate([map_probs(random_embedder(classes), 90), extreme_probs(classes)])
    outlier_score = OutlierScore.fit(log_probs(rows))
    outlier, stored = kernel._outlier(outlier_score), outlier_score.neighbours.rows
    products = np.empty((len(outlier.rows) // loops.BLOCK, loops.BLOCK), dtype=np.float32)
    for row in np.concatenate([stored[:20], np.eye(classes)[:3]]):
        error = loops._wide_affinity(row, outlier.wide, products)

        off = np.abs(products.ravel()[: len(stored)] - stored @ row)
        assert off.max() <= error < 1e-3


def test_products_of_parts_are_not_below_those_of_rows() -> None:
    """In a few directions and the rest, one row at a time and many, for usual and one-hot rows; and not far above."""
    rows = np.concatenate([map_probs(random_embedder(100), 400), extreme_probs(100)])
    outlier_score = OutlierScore.fit(log_probs(rows))
    outlier, stored = kernel._outlier(outlier_score), outlier_score.neighbours.rows
    others = np.concatenate([stored[:50], np.eye(100)[:3]])
    one_by_one = np.empty((len(others), outlier.directions.shape[1] + 1), dtype=np.float32)
    for row, parts in zip(others, one_by_one, strict=True):
        loops._parts(row, outlier.directions, parts)

    for parts in (one_by_one, kernel._parts(others, outlier.directions)):
        above = parts @ kernel._parts(stored, outlier.directions).T - others @ stored.T
        assert above.min() >= -loops.single_error(100)
        assert np.median(above) < 0.1


@pytest.mark.parametrize("features", ["probs", "log_probs", "both"])
@pytest.mark.parametrize("classes", [3, 10, 130])
def test_a_rough_guess_is_off_by_no_more_than_is_said(classes: int, features: str) -> None:
    """In float32 and without the smallest inputs, one row at a time and many; in float64 it is f_p itself."""
    embedder = random_embedder(classes, features=features)
    start, bound = kernel._start(embedder), embedder.bound
    rows = embedder.prepare(log_probs(map_probs(embedder, 200)))
    least, slope, rounding = kernel._doubts(embedder.network)
    values, guess, exact = np.empty((2, 2 * classes + 16), dtype=np.float32), np.empty(3), np.empty(3)
    for row, true in zip(rows, embedder.network_guess(rows), strict=True):
        left_out = loops._guess(row, start, least, bound, values, guess)
        loops._exact_guess(row, start, bound, exact)

        assert np.hypot(*(guess[:2] - true)) <= rounding + slope * left_out
        np.testing.assert_allclose(exact[:2], true, atol=1e-12)
        assert 0.0 <= left_out < (1e-5 * classes if features == "probs" else 1e-300)


@pytest.mark.parametrize("classes", [100, 300])
def test_groups_of_classes_never_cost_more_than_the_classes(classes: int) -> None:
    """KL_sym of groups is below that of finer groups, and of the classes, at every anchor: no anchor is lost."""
    embedder = random_embedder(classes)
    plane, rows = kernel._plane(embedder), embedder.prepare(log_probs(map_probs(embedder, 10)))
    sizes = plane.levels.tolist()
    for row in rows:
        coarse, finer, entropies = loops._group(row, plane)
        levels = []
        for level, entropy in zip(range(len(sizes)), entropies, strict=False):
            groups, screen = loops._level(finer, level, plane)
            levels.append(screen @ groups + entropy)
        if len(plane.coarse):
            costs = np.einsum("bkm,k->bm", plane.coarse, coarse).ravel()[: len(embedder.anchors)]
            levels.insert(0, costs + entropies[-1])
        exact = row @ embedder.anchor_weights + entropies[len(sizes) - 1]
        for fewer, more in zip(levels, [*levels[1:], exact], strict=True):
            assert (fewer <= more + 1e-4 * (1.0 + more)).all()
    assert sizes == ([32, 100] if classes == 100 else [64, 300])
