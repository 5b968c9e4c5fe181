"""Anchors are chosen class by class, such that rows have one close by."""

from __future__ import annotations

import numpy as np

from darksight_core.fit.anchors import choose_anchors, network_threshold
from darksight_core.map.anchors import Anchors, anchor_classes
from darksight_core.simplex import log_probs
from tests.support.maps import map_probs, random_embedder


def test_every_class_gets_its_share_of_anchors() -> None:
    """Anchors stand class after class, none of them twice, and rows are closer to them than to as many at random."""
    embedder = random_embedder(5, anchors=2_000)
    student, probs = embedder.student, map_probs(embedder, 1_000)

    anchors = choose_anchors(student, embedder.anchors, probs)

    classes = anchor_classes(student, anchors)
    log_pi = log_probs(probs)
    random = np.random.default_rng(0).permutation(embedder.anchors)[: len(anchors)]
    chosen, drawn = (Anchors.of(student, some).best_of_two(np.exp(log_pi), log_pi)[1] for some in (anchors, random))
    assert (np.diff(classes) >= 0).all()
    assert np.bincount(classes, minlength=5).max() <= 80
    assert len(np.unique(anchors, axis=0)) == len(anchors)
    assert chosen.mean() < 0.7 * drawn[np.isfinite(drawn)].mean()
    np.testing.assert_array_equal(choose_anchors(student, embedder.anchors, probs), anchors)


def test_class_without_rows_keeps_one_anchor() -> None:
    """Where the student predicts a class that no row has, one anchor of it is kept."""
    embedder = random_embedder(3)
    probs = map_probs(embedder, 200)

    anchors = choose_anchors(embedder.student, embedder.anchors, probs[probs.argmax(axis=1) != 1])

    assert (anchor_classes(embedder.student, anchors) == 1).sum() == 1


def test_a_tenth_of_rows_asks_the_network() -> None:
    """The threshold is the highest decile of KL_sym at the best anchor."""
    embedder = random_embedder(10)
    probs = map_probs(embedder, 400)
    log_pi = log_probs(probs)

    threshold = network_threshold(embedder.student, embedder.anchors, probs)

    losses = embedder.starts.best_of_two(np.exp(log_pi), log_pi)[1]
    assert (losses > threshold).mean() == 0.1
