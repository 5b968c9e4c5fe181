"""Anchors belong to the class that the student predicts there, and the best of a class is found by a matrix product."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.map.anchors import NEIGHBOURS, Anchors, anchor_classes
from darksight_core.rows.simplex import Floats, kl_sym, log_probs
from tests.support.maps import extreme_probs, map_probs, random_embedder


def rows_of(classes: int) -> tuple[Floats, Floats]:
    """Usual and extreme rows and their logarithms."""
    log_pi = log_probs(np.concatenate([map_probs(random_embedder(classes), 40), extreme_probs(classes)]))
    return np.exp(log_pi), log_pi


@pytest.mark.parametrize("classes", [2, 3, 10, NEIGHBOURS])
def test_best_anchor_is_the_best_by_direct_computation(classes: int) -> None:
    """Of few classes the product finds the anchor of least KL_sym, and KL_sym there."""
    embedder = random_embedder(classes)
    pi, log_pi = rows_of(classes)
    owner = anchor_classes(embedder.student, embedder.anchors)
    asked = np.arange(len(pi)) % classes

    points, losses = embedder.starts.best(pi, log_pi, asked)

    for row, label, point, loss in zip(log_pi, asked, points, losses, strict=True):
        own = embedder.anchors[owner == label]
        if len(own) == 0:
            assert np.isinf(loss)
            continue
        direct = kl_sym(row[None], embedder.student.log_posterior(own))
        assert loss == pytest.approx(direct.min(), abs=1e-8)
        np.testing.assert_array_equal(point, own[direct.argmin()])


def test_many_classes_are_compared_on_their_neighbours() -> None:
    """Merging the other classes gives a lower bound of KL_sym, and rarely another anchor."""
    embedder = random_embedder(100, anchors=600)
    pi, log_pi = rows_of(100)

    points, losses = embedder.starts.best_of_two(pi, log_pi)

    found = np.isfinite(losses)
    true = kl_sym(log_pi[found], embedder.student.log_posterior(points[found]))
    every = [kl_sym(row[None], embedder.student.log_posterior(embedder.anchors)).min() for row in log_pi[found]]
    assert found.mean() > 0.9
    assert (losses[found] <= true + 1e-8).all()
    assert np.median(true / every) < 1.05


def test_two_most_probable_classes_bring_the_anchors() -> None:
    """The better of the two classes wins, whichever is more probable."""
    embedder = random_embedder(10)
    pi, log_pi = rows_of(10)
    order = np.argsort(-pi, axis=1, kind="stable")

    _, losses = embedder.starts.best_of_two(pi, log_pi)

    pair = [embedder.starts.best(pi, log_pi, order[:, place])[1] for place in (0, 1)]
    np.testing.assert_array_equal(losses, np.minimum(*pair))


def test_anchor_between_classes_belongs_to_none() -> None:
    """A point at which two classes are as probable serves no class, and a class may be left without any."""
    student = random_embedder(2).student
    middle = student.means.mean(axis=0, keepdims=True)
    even = type(student)(student.means, np.ones(2), np.zeros(2))

    assert anchor_classes(even, np.concatenate([middle, even.means])).tolist() == [-1, 0, 1]
    assert Anchors.of(even, np.concatenate([middle, even.means[:1]])).has_class.tolist() == [True, False]


@pytest.mark.parametrize("anchors", [np.empty((0, 2)), np.zeros(2), np.full((1, 2), np.nan)])
def test_anchors_are_checked(anchors: Floats) -> None:
    """They are at least one finite point."""
    with pytest.raises(ConfigError, match="anchors"):
        Anchors.of(random_embedder(3).student, anchors)
