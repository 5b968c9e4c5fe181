"""Maps and rows for the tests of embedder and scorer, built without a fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.network import Network
from darksight_core.map.placement import Embedder
from darksight_core.map.student import Student
from darksight_core.rows.simplex import Floats, log_probs, log_softmax
from darksight_core.scores.outlier import OutlierScore

__all__ = [
    "constant_network",
    "extreme_probs",
    "map_probs",
    "random_calibration",
    "random_embedder",
    "random_kde",
    "random_network",
    "random_outlier_score",
]


def random_network(classes: int, rng: np.random.Generator, *, units: int = 16) -> Network:
    """A network of random weights."""
    shapes = ((classes + 1, units), (classes, units), (classes, units, 2), (classes, 2))
    return Network(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def constant_network(classes: int, coordinate: float = 0.0) -> Network:
    """A network that sends every row to the point with both coordinates equal to this."""
    shapes = ((classes + 1, 1), (classes, 1), (classes, 1, 2))
    zeros = (np.zeros(shape, dtype=np.float32) for shape in shapes)
    return Network(*zeros, np.full((classes, 2), coordinate, dtype=np.float32))


def random_embedder(
    classes: int = 10,
    *,
    seed: int = 0,
    dof: float = 2.0,
    anchors: int = 200,
    refine_steps: int = 5,
    temperature: float = 1.0,
    columns: tuple[int, ...] | None = None,
    n_inputs: int | None = None,
) -> Embedder:
    """Centres at random, a network of random weights, anchors at centres and at random."""
    rng = np.random.default_rng(seed)
    bound = 8.0 * np.sqrt(classes)
    means = rng.uniform(-0.5 * bound, 0.5 * bound, size=(classes, 2))
    return Embedder(
        student=Student(means, rng.uniform(0.8, 1.6, size=classes), rng.normal(scale=0.3, size=classes), dof),
        network=random_network(classes, rng),
        anchors=np.concatenate([means[:anchors], rng.uniform(-0.7 * bound, 0.7 * bound, size=(anchors, 2))]),
        bound=bound,
        n_inputs=classes if n_inputs is None else n_inputs,
        refine_steps=refine_steps,
        temperature=temperature,
        columns=columns,
    )


def random_kde(embedder: Embedder, n: int = 300, *, seed: int = 0) -> Kde:
    """Density of points around the centres."""
    rng = np.random.default_rng(seed)
    means = embedder.student.means
    return Kde.fit(means[rng.integers(len(means), size=n)] + rng.normal(size=(n, 2)))


def random_outlier_score(classes: int = 10, n: int = 500, *, seed: int = 0) -> OutlierScore:
    """An outlier score whose known rows are a map's of that many classes."""
    rows = map_probs(random_embedder(classes), n if classes <= 100 else n // 10, seed=seed + 1)
    return OutlierScore.fit(log_probs(rows))


def random_calibration(n: int = 99, *, seed: int = 0) -> Calibration:
    """Scores at random."""
    return Calibration(np.random.default_rng(seed).normal(-6.0, 2.0, size=n))


def map_probs(embedder: Embedder, n: int = 60, *, seed: int = 0, noise: float = 0.7) -> NDArray[np.float32]:
    """Rows that the student nearly reproduces somewhere near its centres, float32 (n, K)."""
    rng = np.random.default_rng(seed)
    means = embedder.student.means
    points = means[rng.integers(len(means), size=n)] + rng.standard_t(2.0, size=(n, 2))
    logits: Floats = embedder.student.log_posterior(points)
    return np.exp(log_softmax(logits + noise * rng.normal(size=logits.shape))).astype(np.float32)


def extreme_probs(classes: int) -> Floats:
    """One-hot rows with exact zeros, entries of 1e-30, the uniform row and a tie of two classes."""
    tiny = np.full((2, classes), 1e-30)
    tiny[0, 0] = tiny[1, -1] = 1.0
    tie = np.zeros((1, classes))
    tie[0, :2] = 0.5
    return np.concatenate([np.eye(classes)[: min(classes, 20)], tiny, np.full((1, classes), 1.0 / classes), tie])
