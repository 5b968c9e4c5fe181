"""A small bundle, built without a fit, for whoever needs one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, Probes, Reference, SplitSketches, container, make_manifest
from darksight_core.bundle.levels import Level, Resolutions, completion_weights
from darksight_core.drift.row_features import RowFeatures
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.map.student import Student
from darksight_core.predictions import from_arrays
from darksight_core.predictions.sketch import RowSketch
from darksight_core.predictions.split import make_split
from darksight_core.rows.simplex import Floats, largest_probs, log_probs
from darksight_core.scores.outlier import OutlierScore
from tests.support.maps import random_network

__all__ = ["CERTIFICATE", "bundle_of", "forged", "make_bundle", "make_embedder"]

CERTIFICATE: dict[str, Any] = {
    "outlier": {"promise": "for the test", "kind": "false_alarms", "promised": 0.05, "delta": None, "feasible": True},
    "reject": None,
}
"""A certificate for gates that were not certified."""


def make_embedder(classes: int = 3, *, seed: int = 0, log_prior: Floats | None = None) -> Embedder:
    """Centres on a circle, a network of random weights and an anchor at each centre and between."""
    rng = np.random.default_rng(seed)
    angles = 2.0 * np.pi * np.arange(classes) / classes
    means = 6.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return Embedder(
        student=Student(means, np.full(classes, 1.1), np.zeros(classes) if log_prior is None else log_prior),
        network=random_network(classes, rng, units=8),
        anchors=np.concatenate([means, 1.5 * means, 0.5 * means, np.zeros((1, 2))]),
        bound=60.0,
        n_inputs=classes,
    )


def make_bundle(
    rows: int = 120,
    classes: int = 3,
    *,
    seed: int = 0,
    log_prior: Floats | None = None,
    shares: tuple[float, float, float] = (0.6, 0.3, 0.1),
    labelled: bool = True,
    top_k: Sequence[int] = (),
) -> Bundle:
    """A bundle of random rows.

    Parameters
    ----------
    rows, classes, seed
        How many rows of how many classes, and which.
    log_prior
        Of the student; uniform by default.
    shares
        Of rows to fit, calibrate and test.
    labelled
        Whether reference points have labels.
    top_k
        Numbers of most probable classes by which rows may be known.
    """
    embedder = make_embedder(classes, seed=seed, log_prior=log_prior)
    probs = np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), rows).astype(np.float32)
    return bundle_of(embedder, probs, seed=seed, shares=shares, labelled=labelled, top_k=top_k)


def bundle_of(
    embedder: Embedder,
    probs: NDArray[np.float32],
    *,
    seed: int = 0,
    shares: tuple[float, float, float] = (0.6, 0.3, 0.1),
    labelled: bool = True,
    top_k: Sequence[int] = (),
) -> Bundle:
    """A bundle of rows (n, K) on a map; parameters as for `make_bundle`."""
    student, predictions = embedder.student, from_arrays(probs)
    split = make_split(len(probs), seed, shares)
    points, _ = embedder.embed(log_probs(predictions.probs))
    # The grid of the density bounds how narrow a kernel may be on a wide map.
    kde = Kde.fit(points[split.fit], bandwidth=max(1.0, float(np.ptp(points, axis=0).max()) / 400.0))
    log_pi = log_probs(predictions.probs)
    outlier_score = OutlierScore.fit(log_pi[split.fit])
    scores = {
        "outlier_score": outlier_score.score(log_pi),
        "log_density": student.log_density(points),
        "log_kde": kde.log_density(points),
    }
    held = predictions.probs[split.calibrate]
    calibration = Calibration(scores["outlier_score"][split.calibrate], held.argmax(axis=1), largest_probs(held))
    probes = Probes.of(predictions.probs[:32], points[:32], **{name: score[:32] for name, score in scores.items()})
    predicted = predictions.probs[split.fit].argmax(axis=1)
    hashes = predictions.row_hashes()
    resolutions = Resolutions()
    if top_k:
        known = predictions.probs[split.fit]
        resolutions = Resolutions(log_weights=completion_weights(known, student.n_classes))
        levels = [Level.fit(k, resolutions.coarsen(known, k), resolutions.coarsen(held, k)) for k in top_k]
        resolutions = replace(resolutions, coarser=tuple(levels))
    return Bundle(
        resolutions=resolutions,
        embedder=embedder,
        kde=kde,
        outlier_score=outlier_score,
        calibration=calibration,
        reference=Reference.of(points[split.fit], predictions.probs[split.fit], predicted if labelled else None),
        features=RowFeatures.fit(log_pi[split.fit], log_probs(held), outlier_score.log_ratios.means)
        if len(held)
        else None,
        probes=probes.ranked(calibration),
        splits=SplitSketches(*(RowSketch.of(hashes[part]) for part in (split.fit, split.calibrate, split.test))),
        manifest=make_manifest(
            class_names=tuple(f"class {k}" for k in range(student.n_classes)),
            fit_config={"method": "fast", "seed": seed, "dof": 2.0},
            fidelity={"kl_sym": 0.05, "acc_teacher": 1.0, "heldout": {"kl_sym": 0.0625, "acc_teacher": 0.99}},
        ),
    )


def forged(data: bytes, change: Callable[[dict[str, NDArray[Any]], dict[str, Any]], object]) -> bytes:
    """The file of a bundle after `change(tensors, manifest)`, with all hashes right."""
    found = container.decode(data)
    tensors, manifest = dict(found.tensors), copy.deepcopy(found.manifest)
    change(tensors, manifest)
    return container.encode(tensors, manifest)
