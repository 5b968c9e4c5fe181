"""From predictions to a bundle: split, map, f_p, density, calibration, test.

    fit rows        -> map (θ, Y) -> f_p, fine-tuning -> KDE on the points where the served scorer puts them
                    -> the outlier score, which needs no map
    calibrate rows  -> scores of the served scorer, which give p-values
    all but the fit -> how well rows that no step has fitted are reproduced

Every figure about served rows comes from the scorer that will serve them, and a row is used by one step only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.bundle import (
    Bundle,
    BundleExistsError,
    Probes,
    Reference,
    SplitSketches,
    make_manifest,
    write_bundle,
)
from darksight_core.combined import Combined
from darksight_core.embed import Embedder, Network
from darksight_core.errors import ConfigError, FitError
from darksight_core.fit.config import FitConfig, Progress, Report, silent
from darksight_core.fit.distil import DistilConfig, distil
from darksight_core.fit.fitting import MapFit, fit_map, place_rows
from darksight_core.fit.plane import Theta, best_candidate, nearest_candidate, newton, rows_of
from darksight_core.kde import Kde
from darksight_core.measures import fidelity
from darksight_core.predictions import Predictions, labels_among
from darksight_core.scorer import OUTLIER_SCORES, Calibration, Scorer
from darksight_core.simplex import Floats, kl_sym, log_probs, log_softmax, temper
from darksight_core.split import RowSketch, Split, make_split
from darksight_core.student import Student

__all__ = ["FitReport", "StageFigures", "fit_bundle", "refuse_existing"]

_ANCHORS = 1_000
_PROBES = 48
_SCORE_ROWS = 1 << 15
# Held-out rows on which what each refinement step buys is measured, and the exact placement they are compared with.
_MEASURED_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class StageFigures:
    """KL_sym and agreement with the watched classifier after a stage, on fit rows and on held-out rows."""

    name: str
    fit_kl_sym: float
    heldout_kl_sym: float | None
    fit_agree: float
    heldout_agree: float | None


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit found.

    `class_names` and `reference` are of the classes that come in, `student` of `columns` among them.
    `kl_sym`, `acc_teacher` and `acc_ground` are of the map on its fit rows; `heldout` of the served scorer on rows
    that no step has fitted; `refinement` lists their KL_sym after each Newton step.
    """

    kl_sym: float
    acc_teacher: float
    acc_ground: float | None
    heldout: dict[str, float] | None
    stages: tuple[StageFigures, ...]
    refinement: tuple[float, ...]
    rows: dict[str, int]
    bandwidth: float
    seconds: float
    bundle: Path
    version: str
    class_names: tuple[str, ...]
    columns: tuple[int, ...] | None
    student: Student
    reference: Reference

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "kl_sym": self.kl_sym,
            "acc_teacher": self.acc_teacher,
            "acc_ground": self.acc_ground,
            "heldout": self.heldout,
            "stages": [asdict(stage) for stage in self.stages],
            "refinement": list(self.refinement),
            "rows": self.rows,
            "bandwidth": self.bandwidth,
            "seconds": self.seconds,
            "bundle": str(self.bundle),
            "version": self.version,
        }


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Say before a long fit, not after it, that its bundle would have no place."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file to write")
    if path.exists() and not overwrite:
        raise BundleExistsError(f"{path} is there already; use --overwrite or another name", source=str(path))
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no folder; make it first")


def fit_bundle(
    predictions: Predictions,
    out: Path,
    *,
    config: FitConfig | None = None,
    distil_config: DistilConfig | None = None,
    columns: Sequence[int] | None = None,
    shares: tuple[float, float, float] = (0.6, 0.3, 0.1),
    refine_steps: int = 5,
    overwrite: bool = False,
    report: Report = silent,
) -> FitReport:
    """Fit predictions and write the bundle.

    Parameters
    ----------
    predictions
        Rows to fit, calibrate and test on.
    out
        File to write; it appears whole or not at all.
    config, distil_config
        Options of the map and of f_p; seed and device of f_p are the map's.
    columns
        Classes to map, as columns of the rows, or None for all; the others are left out and the rest renormalised.
    shares
        Share of rows to fit, calibrate and test.
    refine_steps
        Newton steps when new rows are placed.
    overwrite
        Whether an existing bundle may be replaced.
    report
        Called with a `Progress` now and then.
    """
    config = config or FitConfig()
    if config.method == "svd":
        raise ConfigError("method svd has no density on the map, so it makes no bundle; use method fast")
    refuse_existing(out, overwrite=overwrite)
    started = time.perf_counter()
    split = make_split(len(predictions), config.seed, shares)
    mapped = _mapped(predictions.probs, columns)
    fitted = fit_map(mapped[split.fit], config, report=report)
    assert isinstance(fitted.student, Student)
    options = asdict(distil_config or DistilConfig()) | {"seed": config.seed, "device": config.device}
    soft = _tempered(mapped[split.fit], config.temperature)
    f_p = distil(soft, fitted.points, fitted.student, fitted.bound, DistilConfig(**options), report=report)
    embedder = Embedder(
        student=f_p.student,
        network=Network(f_p.weights, f_p.biases, f_p.features),
        anchors=_useful_anchors(fitted, f_p.student, soft),
        bound=fitted.bound,
        n_inputs=predictions.n_classes,
        refine_steps=refine_steps,
        temperature=config.temperature,
        columns=None if columns is None else tuple(columns),
    )

    points = _served_points(embedder, predictions.probs, split.fit, report)
    kde = Kde.fit(points, seed=config.seed)
    combined = Combined.fit(log_probs(predictions.probs[split.fit]), seed=config.seed)
    scorer = Scorer(embedder, kde, combined, Calibration.empty())
    calibration = Calibration(_outlier_scores(scorer, predictions.probs, split.calibrate, report))
    figures = _figures(predictions, mapped, split, fitted, embedder, points, config)
    map_figures = fidelity(
        temper(log_probs(mapped[split.fit]), config.temperature),
        fitted.student.log_posterior(fitted.points),
        labels_among(None if predictions.labels is None else predictions.labels[split.fit], columns),
    )
    hashes = predictions.row_hashes()
    reference = Reference.of(
        points,
        predictions.probs[split.fit].argmax(axis=1),
        None if predictions.labels is None else predictions.labels[split.fit],
        seed=config.seed,
        probs=predictions.probs[split.fit],
    )
    manifest = make_manifest(
        predictions.class_names,
        {**config.as_dict(), "shares": list(shares), "distil": _plain(options)},
        {
            "map": map_figures.as_dict(),
            "stages": [asdict(stage) for stage in figures.stages],
            "refinement": list(figures.refinement),
            # How long a stage took is no property of the map: without it the same fit gives the same file.
            "distillation": [{k: v for k, v in stage.as_dict().items() if k != "seconds"} for stage in f_p.stages],
        },
    )
    bundle = Bundle(
        embedder=embedder,
        kde=kde,
        combined=combined,
        calibration=calibration,
        reference=reference,
        probes=_probes(embedder, kde, combined, predictions.probs[split.fit]).ranked(calibration),
        splits=SplitSketches(*(RowSketch.of(hashes[part]) for part in (split.fit, split.calibrate, split.test))),
        manifest=manifest,
    )
    version = write_bundle(out, bundle, overwrite=overwrite)
    served = figures.stages[-1]
    return FitReport(
        kl_sym=map_figures.kl_sym,
        acc_teacher=map_figures.acc_teacher,
        acc_ground=map_figures.acc_ground,
        heldout=None
        if served.heldout_kl_sym is None or served.heldout_agree is None
        else {"kl_sym": served.heldout_kl_sym, "acc_teacher": served.heldout_agree},
        stages=figures.stages,
        refinement=figures.refinement,
        rows={"fit": len(split.fit), "calibrate": len(split.calibrate), "test": len(split.test)},
        bandwidth=kde.bandwidth,
        seconds=time.perf_counter() - started,
        bundle=out,
        version=version,
        class_names=predictions.class_names,
        columns=embedder.columns,
        student=f_p.student,
        reference=reference,
    )


def _mapped(probs: NDArray[np.float32], columns: Sequence[int] | None) -> NDArray[np.float32]:
    """Rows of the classes that the map shows, renormalised over classes."""
    if columns is None:
        return probs
    return np.exp(log_softmax(log_probs(probs)[:, list(columns)])).astype(np.float32)


def _tempered(probs: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
    return probs if temperature == 1.0 else np.exp(temper(log_probs(probs), temperature)).astype(np.float32)


def _plain(options: dict[str, object]) -> dict[str, object]:
    """Tuples as lists, as they come back from JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _useful_anchors(fitted: MapFit, student: Student, probs: NDArray[np.float32]) -> Floats:
    """The anchors from which searches start most often, at most `_ANCHORS`, with one for every class that has any."""
    anchors = np.clip(fitted.anchors.astype(np.float32).astype(np.float64), -fitted.bound, fitted.bound)
    theta, candidates = Theta.of(student), torch.tensor(anchors.T[None], dtype=torch.float32)
    wins = np.zeros(len(anchors))
    order = np.random.default_rng(0).permutation(len(probs))[:_MEASURED_ROWS]
    for start in range(0, len(order), 4_096):
        part = probs[order[start : start + 4_096]]
        rows = rows_of(torch.tensor(log_probs(part).T, dtype=torch.float32))
        for faithful in (False, True):
            best = best_candidate(theta, rows, candidates, faithful=faithful)[0]
            wins += np.bincount(best.numpy(), minlength=len(anchors))
    classes = student.log_posterior(anchors).argmax(axis=1)
    for k in range(student.n_classes):
        own = np.flatnonzero(classes == k)
        if len(own):
            wins[own[wins[own].argmax()]] += len(probs)
    chosen = np.sort(np.argsort(-wins, kind="stable")[:_ANCHORS])
    return anchors[chosen]


def _served_points(embedder: Embedder, probs: NDArray[np.float32], rows: NDArray[np.int64], report: Report) -> Floats:
    """Points (n, 2) of these rows as the served scorer places them, in chunks."""
    points = np.empty((len(rows), 2))
    for start in range(0, len(rows), _SCORE_ROWS):
        part = slice(start, start + _SCORE_ROWS)
        points[part], loss = embedder.embed(log_probs(probs[rows[part]]))
        report(Progress("score", min(start + _SCORE_ROWS, len(rows)), len(rows), float(loss.mean())))
    return points


def _outlier_scores(
    scorer: Scorer, probs: NDArray[np.float32], rows: NDArray[np.int64], report: Report
) -> dict[str, Floats]:
    """Scores of these rows by the scorer that will serve, kernel and all."""
    scores: dict[str, Floats] = {name: np.empty(len(rows)) for name in OUTLIER_SCORES}
    for start in range(0, len(rows), _SCORE_ROWS):
        part = slice(start, start + _SCORE_ROWS)
        found = scorer.score(probs[rows[part]])
        for name in OUTLIER_SCORES:
            scores[name][part] = getattr(found, name)
        report(Progress("calibrate", min(start + _SCORE_ROWS, len(rows)), len(rows), float("nan")))
    return scores


@dataclass(frozen=True, slots=True)
class _Figures:
    stages: tuple[StageFigures, ...]
    refinement: tuple[float, ...]


def _figures(
    predictions: Predictions,
    mapped: NDArray[np.float32],
    split: Split,
    fitted: MapFit,
    embedder: Embedder,
    points: Floats,
    config: FitConfig,
) -> _Figures:
    """KL_sym of the map, of f_p alone and of the embedder, which put the fit rows at `points`, there and held out."""
    assert isinstance(fitted.student, Student)
    rng = np.random.default_rng(config.seed)
    fit = _some(split.fit, rng)
    held = _some(np.concatenate([split.calibrate, split.test]), rng)
    position = np.searchsorted(split.fit, fit)

    def stage(name: str, student: Student, on_fit: Floats, on_held: Floats) -> StageFigures:
        a = _fidelity(mapped[fit], student, on_fit, config)
        b = _fidelity(mapped[held], student, on_held, config) if len(held) else (None, None)
        return StageFigures(name, a[0], b[0], a[1], b[1])

    exact = place_rows(mapped[held], fitted, config) if len(held) else np.empty((0, 2))
    guess = [embedder.network(np.exp(temper(log_probs(mapped[rows]), config.temperature))) for rows in (fit, held)]
    served = (points[position], embedder.embed(log_probs(predictions.probs[held]))[0])
    stages = (
        stage("map, each row solved", fitted.student, fitted.points[position], exact),
        stage("f_p alone", embedder.student, *guess),
        stage(f"served: f_p, anchors, {embedder.refine_steps} steps", embedder.student, *served),
    )
    return _Figures(stages, _refinement(embedder, predictions.probs[held]))


def _some(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= _MEASURED_ROWS else np.sort(rng.choice(rows, _MEASURED_ROWS, replace=False))


def _fidelity(probs: NDArray[np.float32], student: Student, points: Floats, config: FitConfig) -> tuple[float, float]:
    log_pi, log_q = temper(log_probs(probs), config.temperature), student.log_posterior(points)
    return float(kl_sym(log_pi, log_q).mean()), float((log_pi.argmax(axis=1) == log_q.argmax(axis=1)).mean())


def _refinement(embedder: Embedder, probs: NDArray[np.float32]) -> tuple[float, ...]:
    """KL_sym of rows after 0, 1, ... refinement steps."""
    if len(probs) == 0:
        return ()
    log_pi = log_probs(probs)
    return tuple(
        float(replace(embedder, refine_steps=steps).embed(log_pi)[1].mean())
        for steps in range(embedder.refine_steps + 1)
    )


def _probes(embedder: Embedder, kde: Kde, combined: Combined, probs: NDArray[np.float32]) -> Probes:
    """Rows spread from the surest to the least sure, with the scores that torch computes for them.

    Rows that the label-faithful rule moves are left to the tests: it ends in a bisection that two libraries need not
    round alike.
    """
    log_pi = log_probs(probs)
    order = np.argsort(-np.exp(log_pi).max(axis=1), kind="stable")
    picked = order[np.unique(np.linspace(0, len(order) - 1, 4 * _PROBES).astype(int))]
    rows = embedder.prepare(log_pi[picked])
    classes = embedder.student.n_classes
    theta = Theta.of(embedder.student, dtype=torch.float64)
    torch_rows = rows_of(torch.tensor(rows[:, classes : 2 * classes].T))
    bound = torch.tensor([embedder.bound], dtype=torch.float64)
    values = torch.tensor(embedder.network.inputs(rows[:, :classes]))
    for i, (weight, bias) in enumerate(embedder.network.layers):
        values = values @ torch.tensor(weight) + torch.tensor(bias)
        values = values.relu() if i + 1 < len(embedder.network.layers) else values
    guess = values.T[None].clamp(-embedder.bound, embedder.bound)
    anchor = nearest_candidate(theta, torch_rows, torch.tensor(embedder.anchors.T[None]))
    starts = [newton(theta, torch_rows, start, steps=0, bound=bound)[1] for start in (guess, anchor)]
    start = torch.where((starts[0] <= starts[1])[:, None, :], guess, anchor)
    points = newton(theta, torch_rows, start, steps=embedder.refine_steps, bound=bound)[0][0].T.numpy()
    numpy_points = embedder.embed(log_pi[picked])[0]
    same = np.abs(points - numpy_points).max(axis=1) < 1e-6 * (1.0 + np.abs(points).max())
    kept_class = embedder.student.log_posterior(points).argmax(axis=1) == rows[:, :classes].argmax(axis=1)
    if same[kept_class].mean() < 0.9:
        raise FitError("numpy and torch place the same rows at different points; please report this")
    chosen = np.flatnonzero(same)[:: max(1, int(same.sum()) // _PROBES)][:_PROBES]
    density = torch.logsumexp(theta.scores(torch.tensor(points[chosen].T[None])), dim=1)[0].numpy()
    return Probes.of(
        probs[picked[chosen]],
        points[chosen],
        density + _log_constant(embedder.student),
        kde.log_density(points[chosen]),
        combined.score(log_pi[picked[chosen]]),
    )


def _log_constant(student: Student) -> float:
    """What class scores leave out of log P(y, k): the part of the normaliser that all classes share."""
    # log t_ν = -log 2π - log s² + c log v - c log(|y - μ|² + v) with v = ν s², and -log s² = log ν - log v.
    return float(np.log(student.dof) - np.log(2.0 * np.pi))
