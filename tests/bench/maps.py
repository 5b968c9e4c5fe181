"""Maps for benchmarks of the service: fitted ones, without the minutes that a fit of 1,000 classes takes.

`theta.npz` has what is slow to find: the students of fits with the defaults on the known rows of 10, 100 and 1,000
classes. The rest is made as a fit makes it when it is asked for: f_p is distilled, points of rows become
anchors, other rows calibrate. What a search costs depends on all of them: on a map with an untrained network, with rows
of another kind, nearly every row has to be led back to the region of its class.

`python -m tests.bench.maps` fits the students again; 1,000 classes take a dozen minutes of CPU.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle
from darksight_core.map.network import Network
from darksight_core.map.placement import Embedder
from darksight_core.map.student import Student
from darksight_core.rows.simplex import log_probs, log_softmax
from tests.support.bundles import bundle_of

__all__ = ["CLASSES", "fitted_bundle", "known_rows", "new_rows"]

CLASSES = (10, 100, 1000)
_STUDENTS = Path(__file__).with_name("theta.npz")
_KNOWN, _NEW = 4000, 2000
# Length of what a network's last layer reads, how far it is from its class, and how sure the network is. With these the
# largest class is right in 94, 90 and 80% of rows of 10, 100 and 1,000 classes, and as probable on average.
_FEATURES, _DISTANCE, _SHARPNESS = 64, 1.8, 20.0


def known_rows(classes: int) -> NDArray[np.float32]:
    """Rows that a map is fitted to, (4000, K)."""
    return _network_rows(classes)[:_KNOWN]


def new_rows(count: int, classes: int) -> NDArray[np.float32]:
    """Other rows of the same kind, (n, K); after 2,000 they come again."""
    return np.resize(_network_rows(classes)[_KNOWN:], (count, classes))


def _network_rows(classes: int) -> NDArray[np.float32]:
    """Rows as a network says them whose classes, ten to a family, are directions of its last layer."""
    rng = np.random.default_rng(0)
    families = rng.normal(size=(max(classes // 10, 1), _FEATURES))
    directions = np.repeat(families, 10, axis=0)[:classes] + rng.normal(size=(classes, _FEATURES))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    rng, count = np.random.default_rng(1), _KNOWN + _NEW
    labels = rng.integers(classes, size=count)
    features = directions[labels] + rng.normal(size=(count, _FEATURES)) * (_DISTANCE / np.sqrt(_FEATURES))
    return np.exp(log_softmax(_SHARPNESS * features @ directions.T)).astype(np.float32)


def fitted_bundle(classes: int, *, seed: int = 0) -> Bundle:
    """A bundle of the fitted student and the known rows; another f_p for another seed."""
    from darksight_core.fit.anchors import choose_anchors, network_threshold
    from darksight_core.fit.network.config import DistilConfig
    from darksight_core.fit.network.distil import distil

    student, bound = _student(classes)
    probs = known_rows(classes)
    start = Embedder(student, _blind(classes), student.means, bound, n_inputs=classes)
    points, _ = start.embed(log_probs(probs))
    taught = distil(probs, points, student, bound, DistilConfig(joint_epochs=0, seed=seed))
    anchors = choose_anchors(student, np.concatenate([student.means, points]), probs, seed)
    threshold = network_threshold(student, anchors, probs)
    embedder = replace(start, network=taught.network, anchors=anchors, network_above=threshold)
    return bundle_of(embedder, probs, seed=seed)


def _blind(classes: int) -> Network:
    """A network that sends every row to the middle."""
    shapes = ((classes + 1, 1), (classes, 1), (classes, 1, 2), (classes, 2))
    return Network(*(np.zeros(shape, dtype=np.float32) for shape in shapes))


def _student(classes: int) -> tuple[Student, float]:
    """θ, and the bound of its map."""
    with np.load(_STUDENTS) as students:
        means, scales, log_prior, bound = (
            students[f"{name}{classes}"].astype(np.float64) for name in ("means", "scales", "log_prior", "bound")
        )
    return Student(means, scales, log_prior), float(bound)


def _fit(classes: int, folder: Path) -> dict[str, NDArray[np.float32]]:
    """θ of a fit with the defaults, and the bound of its map."""
    from darksight_core.bundle import read_bundle
    from darksight_core.fit.pipeline import fit_bundle
    from darksight_core.predictions import from_arrays

    fit_bundle(from_arrays(known_rows(classes)), folder / f"{classes}.safetensors")
    return _theta(read_bundle(folder / f"{classes}.safetensors").embedder, classes)


def _theta(embedder: Embedder, classes: int) -> dict[str, NDArray[np.float32]]:
    student = embedder.student
    parts = {"means": student.means, "scales": student.scales, "log_prior": student.log_prior, "bound": embedder.bound}
    return {f"{name}{classes}": np.asarray(part, dtype=np.float32) for name, part in parts.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        np.savez_compressed(_STUDENTS, **{name: part for k in CLASSES for name, part in _fit(k, Path(made)).items()})
