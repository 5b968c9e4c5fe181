"""Anchors are chosen class by class, such that rows have one close by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from darksight_core.fit.anchors import choose_anchors, network_threshold
from darksight_core.fit.config import FitConfig
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.fit.probes import place_served
from darksight_core.map.anchors import Anchors, anchor_classes
from darksight_core.predictions import from_arrays
from darksight_core.rows.simplex import log_probs
from darksight_core.runtime.scorer import Scorer
from tests.support.maps import constant_network, map_probs, random_embedder


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


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_rounding_does_not_decide_who_asks_the_network(classes: int) -> None:
    """Equal rows, as trees and forests give them, are placed alike in a batch, alone, and in torch."""
    embedder = random_embedder(classes, anchors=30)
    probs = np.repeat(map_probs(embedder, 8), 40, axis=0)
    threshold = network_threshold(embedder.student, embedder.anchors, probs)
    embedder = replace(embedder, network=constant_network(classes, 0.3), network_above=threshold)
    log_pi = log_probs(probs)

    points, _ = embedder.embed(log_pi)

    alone = np.concatenate([embedder.embed(row[None])[0] for row in log_pi[::40]])
    np.testing.assert_allclose(points, np.repeat(alone, 40, axis=0), atol=1e-6)
    np.testing.assert_allclose(points, place_served(embedder, log_pi), atol=1e-6)
    losses = embedder.starts.best_of_two(np.exp(log_pi), log_pi)[1]
    assert np.abs(losses - threshold).min() > 1e-10


@pytest.mark.parametrize(("classes", "seed"), [(2, 1), (3, 1), (3, 3)])
def test_uniform_rows_make_a_bundle(tmp_path: Path, classes: int, seed: int) -> None:
    """A classifier that prefers no class has a map without anchors of a class, and its rows are placed all the same."""
    probs = np.full((60, classes), 1.0 / classes, dtype=np.float32)
    config = DistilConfig(epochs=1, tune_epochs=1, joint_epochs=1, device="cpu")
    path = tmp_path / "uniform.safetensors"

    report = fit_bundle(from_arrays(probs), path, config=FitConfig(seed=seed, device="cpu"), distil_config=config)

    assert report.kl_sym < 1e-6
    assert np.isfinite(Scorer.load(path).score(probs).points).all()
