"""What a bundle is made of.

embed.*         student, network and anchors     kde.*           density of the fit points
outlier_score.*      outlier score of the fit rows    calibration.*   scores that give p-values
reference.*     fit points to look at, labelled  probe.*         rows and their scores
level.<name>.*  outlier score and calibration of a coarser resolution
completion.*    by what the rest of a row is spread, and the rank of what is no class
split.<set>.*   sketches of the rows of each set
gate.*          the learned reject score, if there is one
segments.*      calibration rows of each segment in cells, if they had tags
features.*      features of fit and calibration rows, for the witnesses of drift
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.bundle.levels import Level, Resolutions
from darksight_core.bundle.summary import Facts, as_html, class_list, gate_facts, map_facts, p_value_fact
from darksight_core.bundle.thumbnail import thumbnail
from darksight_core.drift.estimate import AccuracyModel
from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.segment_cells import SegmentCounts
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.predictions.sketch import RowSketch
from darksight_core.rows.resolution import name_of
from darksight_core.rows.simplex import Floats
from darksight_core.rows.version import __version__
from darksight_core.scores.outlier import OutlierScore

__all__ = [
    "MAX_PROBES",
    "MAX_REFERENCES",
    "TOP_CLASSES",
    "Bundle",
    "Probes",
    "Reference",
    "SplitSketches",
    "make_manifest",
]

MAX_REFERENCES = 20_000
"""Points that a bundle keeps to be looked at."""

TOP_CLASSES = 10
"""Most probable classes of a reference point that a bundle keeps, with their probabilities: 800 kB at most."""

MAX_PROBES = 64
"""Rows that are scored again at every load."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Points of fit rows, to be drawn behind new ones.

    Parameters
    ----------
    points
        Places on the map, (m, 2) float32, at most `MAX_REFERENCES`.
    predicted
        Class that the watched classifier predicts, (m,) int16.
    labels
        True class, or -1 where it is not known, (m,) int16.
    top_classes, top_probs
        The most probable classes, the first one first, and their probabilities, (m, t) int16 and float16.
    """

    points: NDArray[np.float32]
    predicted: NDArray[np.int16]
    labels: NDArray[np.int16]
    top_classes: NDArray[np.int16]
    top_probs: NDArray[np.float16]

    def __post_init__(self) -> None:
        rows = len(self.points)
        if self.points.shape != (rows, 2) or not 1 <= rows <= MAX_REFERENCES:
            raise ConfigError(f"reference points must have shape (1..{MAX_REFERENCES}, 2), not {self.points.shape}")
        if self.predicted.shape != (rows,) or self.labels.shape != (rows,):
            raise ConfigError(f"{rows} reference points need as many predicted classes and labels")
        if self.predicted.min() < 0 or self.labels.min() < -1:
            raise ConfigError("reference classes must not be negative, and labels not below -1")
        if self.points.dtype != np.float32 or self.predicted.dtype != np.int16 or self.labels.dtype != np.int16:
            raise ConfigError("reference points must be float32, classes and labels int16")
        classes, probs = self.top_classes, self.top_probs
        if classes.shape != probs.shape or classes.shape[:1] != (rows,):
            raise ConfigError(f"{rows} reference points need as many rows of top classes and of their probabilities")
        if classes.ndim != 2 or not 1 <= classes.shape[1] <= TOP_CLASSES:
            raise ConfigError(f"a reference point has 1 to {TOP_CLASSES} top classes")
        if classes.dtype != np.int16 or probs.dtype != np.float16:
            raise ConfigError("top classes must be int16, their probabilities float16")
        if classes.min() < 0 or probs.min() < 0.0 or probs.max() > 1.0:
            raise ConfigError("top classes must not be negative, and probabilities between 0 and 1")

    @classmethod
    def of(
        cls, points: ArrayLike, probs: NDArray[np.floating], labels: ArrayLike | None = None, seed: int = 0
    ) -> Reference:
        """A reference of at most `MAX_REFERENCES` of these rows, drawn at random and kept in order.

        Parameters
        ----------
        points
            Places on the map, (n, 2).
        probs
            Rows on the simplex, (n, K).
        labels
            True class or -1, (n,); None if no label is known.
        seed
            Seed of the draw.
        """
        points = np.asarray(points)
        labels = np.full(len(points), -1) if labels is None else np.asarray(labels)
        if len(probs) != len(points) or labels.shape != points.shape[:1]:
            raise ConfigError(f"{len(points)} reference points need as many rows and labels")
        if max(probs.shape[1] - 1, labels.max(initial=0)) > np.iinfo(np.int16).max:
            raise ConfigError(f"a bundle holds at most {np.iinfo(np.int16).max + 1} classes")
        rows = np.arange(len(points))
        if len(rows) > MAX_REFERENCES:
            rows = np.sort(np.random.default_rng(seed).choice(len(rows), MAX_REFERENCES, replace=False))
        classes = np.argsort(-probs[rows], axis=1, kind="stable")[:, :TOP_CLASSES].astype(np.int16)
        return cls(
            points=points[rows].astype(np.float32),
            predicted=classes[:, 0],
            labels=labels[rows].astype(np.int16),
            top_classes=classes,
            top_probs=np.take_along_axis(probs[rows], classes, axis=1).astype(np.float16),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """Rows with the scores that they got where the map was fitted; see `Scores` for what each is.

    Parameters
    ----------
    inputs
        Rows on the simplex, (p, n_inputs) float32, at most `MAX_PROBES`.
    points, log_density, log_kde, outlier_score, p_value
        (p, 2) and (p,) float64.
    """

    inputs: NDArray[np.float32]
    points: Floats
    log_density: Floats
    log_kde: Floats
    outlier_score: Floats
    p_value: Floats

    def __post_init__(self) -> None:
        rows = len(self.inputs)
        if self.inputs.ndim != 2 or not 1 <= rows <= MAX_PROBES:
            raise ConfigError(f"probe rows must have shape (1..{MAX_PROBES}, K), not {self.inputs.shape}")
        scores = (self.log_density, self.log_kde, self.outlier_score, self.p_value)
        if self.points.shape != (rows, 2) or any(score.shape != (rows,) for score in scores):
            raise ConfigError(f"{rows} probe rows need as many points, densities and p-values")
        if self.inputs.dtype != np.float32 or any(score.dtype != np.float64 for score in (self.points, *scores)):
            raise ConfigError("probe rows must be float32, their scores float64")

    @classmethod
    def of(
        cls, inputs: ArrayLike, points: ArrayLike, log_density: ArrayLike, log_kde: ArrayLike, outlier_score: ArrayLike
    ) -> Probes:
        """Probes without p-values, which come from `ranked`."""
        rows, places = np.array(inputs, dtype=np.float32), np.array(points, dtype=np.float64)
        first, second, third = (np.array(score, dtype=np.float64) for score in (log_density, log_kde, outlier_score))
        return cls(rows, places, first, second, third, np.ones(len(rows)))

    def ranked(self, calibration: Calibration) -> Probes:
        """The same probes with their p-values under a calibration."""
        return replace(self, p_value=calibration.p_value(self.outlier_score))


@dataclass(frozen=True, slots=True, eq=False)
class SplitSketches:
    """Sketches of the rows that made the map, its calibration and its test; the last two may be of no row."""

    fit: RowSketch
    calibrate: RowSketch
    test: RowSketch


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A fitted map with everything that belongs to it.

    Parameters
    ----------
    embedder, kde, outlier_score, calibration
        What scores new rows.
    reference
        Points to look at.
    probes
        Rows that prove the scores at every load.
    splits
        Which rows made which part.
    manifest
        JSON values, begun by `make_manifest`; a bundle that was read has all of its file.
    gate
        The policy, whose settings are in the manifest too; see `with_gate`. None until there is one.
    resolutions
        Resolution of the fit rows, which the scores above are for, and the coarser levels.
    accuracy_model
        The label-free estimate of accuracy with its back-test; None if the fit had too few labels for one.
    segments
        Calibration rows of the segments that have enough of them; None without such segments.
    features
        What the witnesses of drift are learned from; None if drift is not followed.
    version
        SHA-256 of the file in hexadecimal; empty until there is one.
    path
        The file, if there is one.
    """

    embedder: Embedder
    kde: Kde
    outlier_score: OutlierScore
    calibration: Calibration
    reference: Reference
    probes: Probes
    splits: SplitSketches
    manifest: Mapping[str, Any]
    gate: Gate | None = None
    resolutions: Resolutions = field(default_factory=Resolutions)
    accuracy_model: AccuracyModel | None = None
    segments: SegmentCounts | None = None
    features: RowFeatures | None = None
    version: str = ""
    path: Path | None = None

    def with_gate(self, gate: Gate, certificate: Mapping[str, Any] | None = None) -> Bundle:
        """The same bundle with another gate and what was proven about it, not yet in a file."""
        manifest = {**self.manifest, "gate": gate.settings(), "certificate": certificate}
        return replace(self, gate=gate, manifest=manifest, version="", path=None)

    @property
    def levels(self) -> tuple[Level, ...]:
        """What ranks rows of each resolution, that of the fit rows first."""
        known = self.resolutions
        return (Level(known.own, self.outlier_score, self.calibration, known.own_other), *known.coarser)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of the rows that come in."""
        return tuple(self.manifest["class_names"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the rows of the fit do not allow; see `darksight_core.fit.warnings`."""
        return tuple(self.manifest.get("warnings", ()))

    @property
    def short_version(self) -> str:
        """The first twelve digits of the version: enough to tell bundles apart."""
        return self.version[:12]

    @property
    def title(self) -> str:
        """The heading of every view of the bundle."""
        return f"DarkSight bundle {self.short_version or 'not yet written'}"

    def facts(self) -> Facts:
        """Classes, rows, map, p-values, gate and warnings, as names and texts."""
        fit, calibrate, test = self.splits.fit.n, self.splits.calibrate.n, self.splits.test.n
        return [
            ("classes", class_list(self.class_names)),
            ("rows", f"{fit:,} to fit, {calibrate:,} to calibrate, {test:,} to test"),
            *map_facts(self.manifest["fidelity"], held_out=calibrate + test),
            p_value_fact(len(self.calibration)),
            ("resolution", f"fit rows {name_of(self.resolutions.own)}; calibrated for {self.resolutions.names}"),
            *gate_facts(self.gate, self.manifest["certificate"] or {}),
            *(("warning", warning) for warning in self.warnings),
            *([("file", str(self.path))] if self.path else []),
            *([("version", self.version)] if self.version else []),
        ]

    def _repr_html_(self) -> str:
        picture = thumbnail(self.embedder.student, self.reference.points, self.reference.predicted)
        return as_html(self.title, self.facts(), picture)


def make_manifest(
    class_names: tuple[str, ...],
    fit_config: Mapping[str, Any],
    fidelity: Mapping[str, Any],
    *,
    gate: Mapping[str, Any] | None = None,
    certificate: Mapping[str, Any] | None = None,
    created_at: str | None = None,
) -> dict[str, Any]:
    """What people give to a manifest; the rest is added when the bundle is written.

    Parameters
    ----------
    class_names
        Names of the classes of the rows that come in.
    fit_config
        The configuration of the fit, verbatim.
    fidelity
        How well the map reproduces the watched classifier, nested as one likes.
    gate, certificate
        The policy of the gate and what was proven about it, if there is one.
    created_at
        UTC time in ISO form. By default there is none, and the same content gives the same file.
    """
    return {
        "created_by": f"darksight {__version__}",
        "created_at": created_at,
        "class_names": list(class_names),
        "fit_config": dict(fit_config),
        "fidelity": dict(fidelity),
        "gate": None if gate is None else dict(gate),
        "certificate": None if certificate is None else dict(certificate),
    }
