"""All numbers of a report, computed once; figures and page only show them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.evaluation import cases
from darksight_core.evaluation.cases import Alike, Case
from darksight_core.evaluation.classes import class_medians
from darksight_core.evaluation.compare import Comparison, compare
from darksight_core.evaluation.measures import MapMeasures, measure_map
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.map.paths import MapPath, bridge, confused_pairs, trace
from darksight_core.predictions import Predictions, labels_among
from darksight_core.progress import Report, silent
from darksight_core.runtime.scorer import Scorer
from darksight_core.simplex import Floats, entropy

__all__ = ["MAX_ROWS", "Baseline", "Findings", "find"]

MAX_ROWS = 10_000
"""Maximum number of rows that methods are compared on; of more rows a sample is drawn."""

Level = Literal["none", "quick", "full"]

_NEIGHBOURS = (2, 5, 10, 20, 50, 100, 200)
_NEIGHBOUR_ROWS = 2_000
_MIN_ROWS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """A map of the compared rows by another method.

    `key` is its name in JSON and `label` its name on the page; `points` are (n, 2); `seconds` and `cpu_seconds` are the
    time of its computation, which was in an earlier run if `cached`.
    """

    key: str
    label: str
    points: Floats
    measures: MapMeasures
    seconds: float
    cpu_seconds: float
    library: str
    cached: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "label": self.label,
            "library": self.library,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "cached": self.cached,
            **self.measures.as_dict(),
        }


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
    measures
        Measures of the map on these rows.
    compared
        Numbers of the rows that methods were compared on.
    measures_compared
        Measures of the map on those rows.
    baselines
        Maps of those rows by other methods.
    comparison
        Comparison of all scores; None with too few rows.
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
    measures: MapMeasures
    compared: NDArray[np.intp]
    measures_compared: MapMeasures
    baselines: tuple[Baseline, ...]
    comparison: Comparison | None
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

    def confusion(self) -> NDArray[np.int64] | None:
        """Rows by predicted (first axis) and true class, (K, K); None without labels."""
        if self.labels is None:
            return None
        pair = self.predicted * self.n_classes + self.labels
        return np.bincount(pair, minlength=self.n_classes**2).reshape(self.n_classes, self.n_classes)

    def as_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        confusion = self.confusion()
        return {
            "bundle": str(self.bundle.path),
            "version": self.bundle.version,
            "source": self.source,
            "class_names": list(self.class_names),
            **self.measures.as_dict(),
            "fitted": self.bundle.manifest.get("fidelity"),
            "compared_rows": len(self.compared),
            "map_on_compared_rows": self.measures_compared.as_dict(),
            "baselines": {baseline.key: baseline.as_dict() for baseline in self.baselines},
            **({} if self.comparison is None else self.comparison.as_dict()),
            "confusion": None if confusion is None else confusion.tolist(),
            "paths": [_path_dict(name, path) for name, path in self.paths],
            "cases": [case.as_dict() for case in self.cases],
            "mistakes_alike": None if self.alike is None else self.alike.as_dict(),
            "seconds": {
                "place": self.place_seconds,
                **{baseline.key: baseline.seconds for baseline in self.baselines},
            },
            "report_notes": list(self.notes),
        }


def _path_dict(name: str, path: MapPath) -> dict[str, Any]:
    return {
        "name": name,
        "points": np.round(path.points, 4).tolist(),
        "probs": np.round(path.probs, 5).tolist(),
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
    features: NDArray[np.floating] | None = None,
    level: Level = "quick",
    paths: Sequence[tuple[int, int]] = (),
    curves: Sequence[Floats] = (),
    cache: Path | None = None,
    resamples: int = 100,
    seed: int = 0,
    report: Report | None = None,
) -> Findings:
    """Compute the numbers of a report.

    Parameters
    ----------
    bundle, scorer
        The bundle, and its scorer.
    predictions, foreign
        Known rows, and foreign rows by name.
    features
        Features of the rows for t-SNE at level full, (n, d).
    level
        Which methods to compare with: none, quick or full; see `embeddings.recipes`.
    paths, curves
        Pairs of classes to connect, and curves (c, 2) on the map; by default the three most confused pairs.
    cache
        Directory that caches slow results.
    resamples
        Resamples of the bootstrap intervals.
    seed
        Seed of samples, splits and methods.
    report
        Called with a `Progress` during the computation.
    """
    notes: list[str] = [f"warning of the fit: {warning}" for warning in bundle.warnings]
    started = time.perf_counter()
    known = ScoredPredictions.of(predictions, scorer.score(predictions.probs))
    place_seconds = time.perf_counter() - started
    embedder, points = bundle.embedder, known.scores.points
    columns = tuple(range(embedder.n_inputs)) if embedder.columns is None else tuple(embedder.columns)
    log_pi = np.ascontiguousarray(embedder.shown(known.log_pi))
    labels = labels_among(predictions.labels, embedder.columns)
    if predictions.labels is None:
        notes.append(f"{predictions.source} has no labels, so errors are unknown")
    elif labels is None:
        notes.append("some labels are of classes that the map does not show, so there is no confusion matrix")
    predicted = log_pi.argmax(axis=1)
    measures = _measure(bundle, log_pi, points, labels, seed)
    compared = _compared(len(known), level, seed, notes)
    part = known.take(compared)
    baselines: list[Baseline] = []
    if level != "none":
        sources = {"prob": np.exp(part.log_pi)}
        if part.logits is not None:
            sources["logit"] = part.logits
        if features is not None:
            sources["features"] = np.asarray(features, dtype=np.float64)[compared]
        some = None if labels is None else labels[compared]
        baselines = _baselines(log_pi[compared], some, sources, level, cache, seed, report, notes)
    others = {name: ScoredPredictions.of(rows, scorer.score(rows.probs)) for name, rows in (foreign or {}).items()}
    comparison = None
    if len(part) < _MIN_ROWS:
        notes.append(f"the comparison of scores needs {_MIN_ROWS} rows, and there are {len(part)}")
    else:
        maps = {baseline.key: baseline.points for baseline in baselines if baseline.key.startswith("tsne")}
        comparison = compare(bundle, part, others, maps=maps, resamples=resamples, seed=seed)
    names = tuple(bundle.class_names[k] for k in columns)
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
        measures=measures,
        compared=compared,
        measures_compared=measures if len(compared) == len(known) else _measure(
            bundle, log_pi[compared], points[compared], None if labels is None else labels[compared], seed
        ),
        baselines=tuple(baselines),
        comparison=comparison,
        foreign={name: rows.scores.points for name, rows in others.items()},
        paths=_paths(bundle, log_pi, points, names, paths, curves),
        cases=_cases(known, log_pi, predicted, labels),
        alike=None if labels is None else cases.alike(points, predicted, labels),
        place_seconds=place_seconds,
        notes=tuple(notes),
    )  # fmt: skip


def _measure(
    bundle: Bundle, log_pi: Floats, points: Floats, labels: NDArray[np.int64] | None, seed: int
) -> MapMeasures:
    student = bundle.embedder.student
    log_q = student.log_posterior(points)
    options: dict[str, Any] = {"neighbours": _NEIGHBOURS, "max_rows": _NEIGHBOUR_ROWS, "seed": seed}
    return measure_map(log_pi, log_q, points, student.means, labels, **options)


def _compared(n: int, level: Level, seed: int, notes: list[str]) -> NDArray[np.intp]:
    if level == "none" or n <= MAX_ROWS:
        return np.arange(n)
    notes.append(f"methods and scores are compared on a random sample of {MAX_ROWS:,} of the {n:,} rows (seed {seed})")
    return np.sort(np.random.default_rng(seed).choice(n, MAX_ROWS, replace=False))


def _baselines(
    log_pi: Floats,
    labels: NDArray[np.int64] | None,
    sources: Mapping[str, Floats],
    level: Level,
    cache: Path | None,
    seed: int,
    report: Report | None,
    notes: list[str],
) -> list[Baseline]:
    """Maps by other methods, and DarkSight fitted to the same rows; a method that fails becomes a note."""
    try:
        from darksight_core.evaluation.baselines.embeddings import LEAST_ROWS, embed, recipes
        from darksight_core.fit.map.fitting import fit_map
    except ImportError as error:
        missing = f"no other methods: {error.name} is not installed; run: pip install 'darksight[fit,compare]'"
        notes.append(missing)
        return []
    if len(log_pi) < LEAST_ROWS:
        notes.append(f"no other methods: they need {LEAST_ROWS} rows, and there are {len(log_pi)}")
        return []
    tell = silent if report is None else report
    options: dict[str, Any] = {"neighbours": _NEIGHBOURS, "max_rows": _NEIGHBOUR_ROWS, "seed": seed}
    cpu = time.process_time()
    fitted = fit_map(np.exp(log_pi), report=tell)
    cpu = time.process_time() - cpu
    student: Any = fitted.student
    log_q = student.log_posterior(fitted.points)
    figures = measure_map(log_pi, log_q, fitted.points, student.means, labels, **options)
    label = "DarkSight, fitted to these rows"
    found = [Baseline("fitted_here", label, fitted.points, figures, fitted.seconds, cpu, "darksight", False)]
    for recipe in recipes(level, sources):
        try:
            made = embed(recipe, sources[recipe.source], seed=seed, cache=cache, report=tell)
        except ConfigError as error:
            notes.append(f"{recipe.label} is omitted: {error.message}")
            continue
        figures = measure_map(log_pi, None, made.points, class_medians(log_pi, made.points), labels, **options)
        times = (made.seconds, made.cpu_seconds)
        found.append(
            Baseline(made.recipe.key, made.recipe.label, made.points, figures, *times, made.library, made.cached)
        )
    return found


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
    found = cases.typical(known.scores.log_kde, predicted, classes=classes) if classes <= 20 else []
    found.append(cases.unusual(known.scores.outlier_score))
    found += cases.midway(log_pi)
    if labels is not None:
        found += cases.wrong_alike(known.scores.points, predicted, labels)
    if known.errors is not None:
        found.append(cases.confident_wrong(known.log_pi, known.errors))
    return tuple(case for case in found if case.rows)
