"""All numbers of a report, computed once; pictures and page only show them."""

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
from darksight_core.evaluation.compare import Comparison, compare
from darksight_core.evaluation.measures import MapMeasures, class_medians, measure_map
from darksight_core.gate.certify import ScoredRows
from darksight_core.map.paths import MapPath, bridge, confused_pairs, trace
from darksight_core.predictions import Predictions, labels_among
from darksight_core.progress import Report, silent
from darksight_core.runtime.scorer import Scorer
from darksight_core.simplex import Floats, entropy

__all__ = ["MOST_ROWS", "Findings", "Rival", "find"]

MOST_ROWS = 10_000
"""Rows that other methods are compared on; of more, as many are drawn by seed."""

Level = Literal["none", "quick", "full"]

_NEIGHBOURS = (2, 5, 10, 20, 50, 100, 200)
_NEIGHBOUR_ROWS = 2_000
_LEAST_ROWS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """Another map of the compared rows.

    `key` and `label` name it for programs and people, `points` (n, 2) are its places, `measures` its figures,
    `seconds` and `cpu_seconds` the time it took, `library` what made it and `cached` whether in an earlier run.
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
        """Plain JSON values."""
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
    """What is known about a bundle on a file of rows.

    Parameters
    ----------
    bundle
        Whose map it is.
    source, class_names, ids
        File, names of the classes that the map shows, and of the n rows.
    log_pi
        log π over the shown classes, (n, K).
    points, scores
        Places (n, 2) and all else that the served scorer says, (n,) each.
    predicted, labels
        Shown class, (n,); labels are None where unknown, or where one is of a class that the map does not show.
    wrong
        Whether the classifier's own prediction is not the label, (n,); None without labels.
    unsure
        Entropy of the row in nats, (n,).
    measures
        Of the map on these rows.
    compared
        Row numbers that other methods were compared on.
    measures_compared
        Of the map on those rows.
    rivals
        Other maps of them.
    comparison
        Every score beside every other; None with too few rows.
    foreign
        Places of the rows of each foreign file, (m, 2).
    paths
        Curves on the map with a name each.
    cases, alike
        Rows worth a look.
    place_seconds
        Time that placing and scoring the n rows took.
    notes
        What is missing or reduced, in sentences.
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
    unsure: Floats
    measures: MapMeasures
    compared: NDArray[np.intp]
    measures_compared: MapMeasures
    rivals: tuple[Rival, ...]
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
        """Number of classes that the map shows."""
        return len(self.class_names)

    def confusion(self) -> NDArray[np.int64] | None:
        """Counts of rows by predicted (first axis) and true class, (K, K); None without labels."""
        if self.labels is None:
            return None
        pair = self.predicted * self.n_classes + self.labels
        return np.bincount(pair, minlength=self.n_classes**2).reshape(self.n_classes, self.n_classes)

    def as_dict(self) -> dict[str, Any]:
        """All numbers as plain JSON values."""
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
            "rivals": {rival.key: rival.as_dict() for rival in self.rivals},
            **({} if self.comparison is None else self.comparison.as_dict()),
            "confusion": None if confusion is None else confusion.tolist(),
            "paths": [_path_dict(name, path) for name, path in self.paths],
            "cases": [case.as_dict() for case in self.cases],
            "mistakes_alike": None if self.alike is None else self.alike.as_dict(),
            "seconds": {
                "place": self.place_seconds,
                **{rival.key: rival.seconds for rival in self.rivals},
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
    """Compute everything that a report shows.

    Parameters
    ----------
    bundle, scorer
        The map, and what places rows on it.
    predictions, foreign
        Rows of the known kind, and rows of other kinds by name.
    features
        What t-SNE reads beside probabilities and logits at level full, (n, d).
    level
        Which other methods to compare with: none, quick or full; see `embeddings.recipes`.
    paths, curves
        Pairs of shown classes, and lists of places (c, 2), to walk between; by default the three most confused pairs.
    cache
        Folder that keeps slow results.
    resamples
        Of the bootstrap intervals.
    seed
        Of draws, splits and methods.
    report
        Called with a `Progress` now and then.
    """
    notes: list[str] = []
    started = time.perf_counter()
    known = ScoredRows.of(predictions, scorer.score(predictions.probs))
    place_seconds = time.perf_counter() - started
    embedder, points = bundle.embedder, known.scores.points
    columns = tuple(range(embedder.n_inputs)) if embedder.columns is None else tuple(embedder.columns)
    log_pi = np.ascontiguousarray(embedder.shown(known.log_pi))
    labels = labels_among(predictions.labels, embedder.columns)
    if predictions.labels is None:
        notes.append(f"{predictions.source} has no labels, so nothing is said about mistakes")
    elif labels is None:
        notes.append("the map shows some of the classes only, and some labels are of others: no confusion matrix")
    predicted = log_pi.argmax(axis=1)
    measures = _measure(bundle, log_pi, points, labels, seed)
    compared = _compared(len(known), level, seed, notes)
    part = known.take(compared)
    rivals: list[Rival] = []
    if level != "none":
        sources = {"prob": np.exp(part.log_pi)}
        if part.logits is not None:
            sources["logit"] = part.logits
        if features is not None:
            sources["features"] = np.asarray(features, dtype=np.float64)[compared]
        some = None if labels is None else labels[compared]
        rivals = _rivals(log_pi[compared], some, sources, level, cache, seed, report, notes)
    strange = {name: ScoredRows.of(rows, scorer.score(rows.probs)) for name, rows in (foreign or {}).items()}
    comparison = None
    if len(part) < _LEAST_ROWS:
        notes.append(f"{len(part)} rows are too few to compare scores on; it takes {_LEAST_ROWS}")
    else:
        maps = {rival.key: rival.points for rival in rivals if rival.key.startswith("tsne")}
        comparison = compare(bundle, part, strange, maps=maps, resamples=resamples, seed=seed)
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
        unsure=entropy(log_pi),
        measures=measures,
        compared=compared,
        measures_compared=measures if len(compared) == len(known) else _measure(
            bundle, log_pi[compared], points[compared], None if labels is None else labels[compared], seed
        ),
        rivals=tuple(rivals),
        comparison=comparison,
        foreign={name: rows.scores.points for name, rows in strange.items()},
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
    if level == "none" or n <= MOST_ROWS:
        return np.arange(n)
    notes.append(f"methods and scores are compared on {MOST_ROWS:,} of the {n:,} rows, drawn by seed {seed}")
    return np.sort(np.random.default_rng(seed).choice(n, MOST_ROWS, replace=False))


def _rivals(
    log_pi: Floats,
    labels: NDArray[np.int64] | None,
    sources: Mapping[str, Floats],
    level: Level,
    cache: Path | None,
    seed: int,
    report: Report | None,
    notes: list[str],
) -> list[Rival]:
    """Maps by other methods, and ours fitted to the same rows; what cannot be made becomes a note."""
    try:
        from darksight_core.evaluation.baselines.embeddings import LEAST_ROWS, embed, recipes
        from darksight_core.fit.map.fitting import fit_map
    except ImportError as error:
        missing = f"no other methods: {error.name} is not installed; run: pip install 'darksight[fit,compare]'"
        notes.append(missing)
        return []
    if len(log_pi) < LEAST_ROWS:
        notes.append(f"no other methods: {len(log_pi)} rows are too few, they need {LEAST_ROWS}")
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
    found = [Rival("fitted_here", label, fitted.points, figures, fitted.seconds, cpu, "darksight", False)]
    for recipe in recipes(level, sources):
        try:
            made = embed(recipe, sources[recipe.source], seed=seed, cache=cache, report=tell)
        except ConfigError as error:
            notes.append(f"{recipe.label} is left out: {error.message}")
            continue
        figures = measure_map(log_pi, None, made.points, class_medians(log_pi, made.points), labels, **options)
        times = (made.seconds, made.cpu_seconds)
        found.append(Rival(made.recipe.key, made.recipe.label, made.points, figures, *times, made.library, made.cached))
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
    known: ScoredRows, log_pi: Floats, predicted: NDArray[np.intp], labels: NDArray[np.int64] | None
) -> tuple[Case, ...]:
    """Every case that these rows have."""
    classes = log_pi.shape[1]
    found = cases.typical(known.scores.log_kde, predicted, classes=classes) if classes <= 20 else []
    found.append(cases.unusual(known.scores.outlier_score))
    found += cases.midway(log_pi)
    if labels is not None:
        found += cases.wrong_alike(known.scores.points, predicted, labels)
    if known.errors is not None:
        found.append(cases.confident_wrong(known.log_pi, known.errors))
    return tuple(case for case in found if case.rows)
