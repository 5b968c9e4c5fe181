"""All numbers of a report, computed once; figures and page only show them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle
from darksight_core.evaluation import cases
from darksight_core.evaluation.cases import Alike, Case
from darksight_core.evaluation.compare import Comparison, compare
from darksight_core.evaluation.measures import MapMeasures, measure_map
from darksight_core.evaluation.reliability import ClassFigures, Reliability, class_figures, reliability
from darksight_core.evaluation.segment_figures import SegmentFigures, measure_segments
from darksight_core.evaluation.set_coverage import SetCoverage, set_coverage
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.map.paths import MapPath, bridge, confused_pairs, trace
from darksight_core.map.strip import spread_over_strip
from darksight_core.predictions import Predictions, labels_among
from darksight_core.rows.simplex import Floats, entropy
from darksight_core.rows.tags import REFERENCE
from darksight_core.runtime.scorer import Scorer

__all__ = ["Findings", "find"]

# Of more rows, scores are compared on a sample.
_SCORE_ROWS = 10_000
_MIN_ROWS = 40
_SEGMENTS = 100
_LEAST_PROBABILITY = 0.01
_NEIGHBOURS = (2, 5, 10, 20, 50, 100, 200)
# Local fidelity is measured on a sample of more rows.
_NEIGHBOUR_ROWS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """The numbers of a bundle on a file of rows.

    Parameters
    ----------
    bundle
        The bundle.
    source, class_names, ids
        Name of the file, names of the classes on the map, ids of the n rows.
    log_pi
        log π over the classes on the map, (n, K).
    points, scores
        Points (n, 2) and scores (n,) of the serving scorer.
    predicted, labels
        Class numbers, (n,); labels are None if unknown, or if the map does not show all their classes.
    wrong
        Whether the prediction differs from the label, (n,); None without labels.
    entropy
        Entropy of π in nats, (n,).
    reliability
        Confidence and accuracy of the classifier; None without labels.
    classes
        Figures of each class.
    segments
        Figures of the values of each tag, those with the most rows.
    measures
        Measures of the map on these rows.
    comparison
        Comparison of all scores; None with too few rows.
    sets
        Prediction sets of rejected rows; None if the bundle has none.
    foreign
        Points of the rows of each foreign file, (m, 2).
    paths
        Paths on the map, by name.
    cases, alike
        Selected rows.
    place_seconds
        Time to place and score the n rows.
    notes
        What is missing or reduced, and why.
    """

    bundle: Bundle
    source: str
    class_names: tuple[str, ...]
    ids: tuple[str, ...] | None
    log_pi: Floats
    points: Floats
    scores: Any
    predicted: NDArray[np.intp]
    labels: NDArray[np.int64] | None
    wrong: NDArray[np.bool_] | None
    entropy: Floats
    reliability: Reliability | None
    classes: tuple[ClassFigures, ...]
    segments: dict[str, tuple[SegmentFigures, ...]]
    measures: MapMeasures
    comparison: Comparison | None
    sets: SetCoverage | None
    foreign: dict[str, Floats]
    paths: tuple[tuple[str, MapPath], ...]
    cases: tuple[Case, ...]
    alike: Alike | None
    place_seconds: float
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def n_classes(self) -> int:
        """Number of classes on the map."""
        return len(self.class_names)

    @property
    def drawn(self) -> Floats:
        """Points as figures draw them, (n, 2)."""
        return spread_over_strip(self.bundle.embedder.student, self.points)

    def confusion(self) -> NDArray[np.int64] | None:
        """Rows by predicted (first axis) and true class, (K, K); None without labels."""
        if self.labels is None:
            return None
        pair = self.predicted * self.n_classes + self.labels
        return np.bincount(pair, minlength=self.n_classes**2).reshape(self.n_classes, self.n_classes)

    def as_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        return {
            "bundle": str(self.bundle.path),
            "version": self.bundle.version,
            "source": self.source,
            "class_names": list(self.class_names),
            "classes": [each.as_dict() for each in self.classes],
            "segments": {key: [each.as_dict() for each in values] for key, values in self.segments.items()},
            "calibration": None if self.reliability is None else self.reliability.as_dict(),
            **self.measures.as_dict(),
            "fitted": self.bundle.manifest.get("fidelity"),
            **({} if self.comparison is None else self.comparison.as_dict()),
            "sets": None if self.sets is None else self.sets.as_dict(),
            "confusion": _cells(self.confusion()),
            "paths": [_path_dict(name, path) for name, path in self.paths],
            "cases": [case.as_dict() for case in self.cases],
            "mistakes_alike": None if self.alike is None else self.alike.as_dict(),
            "seconds": {"place": self.place_seconds},
            "report_notes": list(self.notes),
        }


def _cells(confusion: NDArray[np.int64] | None) -> list[dict[str, int]] | None:
    """The cells of a confusion matrix that are not zero."""
    if confusion is None:
        return None
    return [
        {"predicted": int(predicted), "true": int(true), "rows": int(confusion[predicted, true])}
        for predicted, true in np.argwhere(confusion)
    ]


def _path_dict(name: str, path: MapPath) -> dict[str, Any]:
    shown = np.flatnonzero(path.probs.max(axis=0) >= _LEAST_PROBABILITY)
    return {
        "name": name,
        "points": np.round(path.points, 4).tolist(),
        "classes": shown.tolist(),
        "probs": np.round(path.probs[:, shown], 5).tolist(),
        "log_density": np.round(path.log_density, 4).tolist(),
        "rows": path.rows.tolist(),
        "row_position": np.round(path.row_position, 4).tolist(),
    }


def find(
    bundle: Bundle,
    scorer: Scorer,
    predictions: Predictions,
    foreign: Mapping[str, Predictions] | None = None,
    *,
    paths: Sequence[tuple[int, int]] = (),
    curves: Sequence[Floats] = (),
    resamples: int = 100,
    seed: int = 0,
) -> Findings:
    """Compute the numbers of a report.

    Parameters
    ----------
    bundle, scorer
        The bundle, and its scorer.
    predictions, foreign
        Known rows, and foreign rows by name.
    paths, curves
        Pairs of classes to connect, and curves (c, 2) on the map; by default the three most confused pairs.
    resamples
        Resamples of the bootstrap intervals.
    seed
        Seed of samples and splits.
    """
    notes = [f"warning of the fit: {warning}" for warning in bundle.warnings]
    started = time.perf_counter()
    known = scorer.scored(predictions)
    place_seconds = time.perf_counter() - started
    others = {name: scorer.scored(rows) for name, rows in (foreign or {}).items()}
    embedder, points = bundle.embedder, known.scores.points
    columns = tuple(range(embedder.n_inputs)) if embedder.columns is None else tuple(embedder.columns)
    names = tuple(bundle.class_names[k] for k in columns)
    log_pi = np.ascontiguousarray(embedder.shown(known.log_pi))
    predicted, confidence = log_pi.argmax(axis=1), np.exp(log_pi.max(axis=1))
    labels = labels_among(predictions.labels, embedder.columns)
    scored = _sample(len(known), _SCORE_ROWS, seed)
    notes += _label_notes(predictions, labels)
    if len(scored) < len(known):
        notes.append(f"scores are compared on a random sample of {len(scored):,} of the {len(known):,} rows")
    comparison = None
    if len(scored) < _MIN_ROWS:
        notes.append(f"the comparison of scores needs {_MIN_ROWS} rows, and there are {len(scored)}")
    else:
        comparison = compare(bundle, known.take(scored), others, resamples=resamples, seed=seed)
    return Findings(
        bundle=bundle,
        source=predictions.source,
        class_names=names,
        ids=predictions.ids,
        log_pi=log_pi,
        points=points,
        scores=known.scores,
        predicted=predicted,
        labels=labels,
        wrong=known.errors,
        entropy=entropy(log_pi),
        reliability=None if labels is None else reliability(confidence, predicted == labels),
        classes=class_figures(names, confidence, predicted, labels),
        segments=_segments(bundle, known, predictions),
        measures=_measure(bundle, log_pi, points, labels, seed),
        comparison=comparison,
        sets=None if bundle.gate is None else set_coverage(bundle.gate, known, predictions.tags),
        foreign={name: rows.scores.points for name, rows in others.items()},
        paths=_paths(bundle, log_pi, points, names, paths, curves),
        cases=_cases(known, log_pi, predicted, labels),
        alike=None if labels is None else cases.alike(points, predicted, labels),
        place_seconds=place_seconds,
        notes=tuple(notes),
    )


def _label_notes(predictions: Predictions, labels: NDArray[np.int64] | None) -> list[str]:
    if predictions.labels is None:
        return [f"{predictions.source} has no labels, so errors are unknown"]
    if labels is None:
        return ["some labels are of classes that the map does not show, so there is no confusion matrix"]
    return []


def _segments(
    bundle: Bundle, known: ScoredPredictions, predictions: Predictions
) -> dict[str, tuple[SegmentFigures, ...]]:
    """Figures of the values of each tag."""
    found = {}
    for key, values in predictions.tags.items():
        if key != REFERENCE:
            rows = replace(known, segments=np.array(values, dtype=np.str_))
            found[key] = measure_segments(rows, bundle.gate)[:_SEGMENTS]
    return found


def _sample(n: int, most: int, seed: int) -> NDArray[np.intp]:
    """All of n row numbers, or a sorted random sample of `most` of them."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def _measure(
    bundle: Bundle, log_pi: Floats, points: Floats, labels: NDArray[np.int64] | None, seed: int
) -> MapMeasures:
    student = bundle.embedder.student
    log_q = student.log_posterior(points)
    return measure_map(
        log_pi,
        log_q,
        points,
        student.means,
        labels,
        seed=seed,
        neighbours=_NEIGHBOURS,
        max_rows=_NEIGHBOUR_ROWS,
    )


def _paths(
    bundle: Bundle,
    log_pi: Floats,
    points: Floats,
    names: tuple[str, ...],
    pairs: Sequence[tuple[int, int]],
    curves: Sequence[Floats],
) -> tuple[tuple[str, MapPath], ...]:
    student = bundle.embedder.student
    chosen = list(pairs) if pairs or curves else confused_pairs(log_pi)
    found = []
    for first, second in chosen:
        corners = bridge(log_pi, points, student.means, first, second)
        found.append((f"{names[first]} to {names[second]}", trace(student, corners, points)))
    found += [(f"drawn line {number}", trace(student, curve, points)) for number, curve in enumerate(curves, 1)]
    return tuple(found)


def _cases(
    known: ScoredPredictions, log_pi: Floats, predicted: NDArray[np.intp], labels: NDArray[np.int64] | None
) -> tuple[Case, ...]:
    """The cases that these rows have."""
    classes = log_pi.shape[1]
    confidence = np.exp(log_pi.max(axis=1))
    found = cases.typical(confidence, known.scores.log_kde, predicted, classes=classes) if classes <= 20 else []
    found.append(cases.unusual(known.scores.outlier_score))
    found += cases.midway(log_pi)
    if labels is not None:
        found += cases.wrong_alike(known.scores.points, predicted, labels)
    if known.errors is not None:
        found.append(cases.confident_wrong(known.log_pi, known.errors))
    return tuple(case for case in found if case.rows)
