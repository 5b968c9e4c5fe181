"""From predictions to a bundle: split, map, f_p, density, calibration, test.

    fit rows        -> map (θ, Y) -> f_p, fine-tuning -> KDE on the points where the served scorer puts them
                    -> the outlier score, which needs no map
    calibrate rows  -> scores of the served scorer, which give p-values
    all but the fit -> how well rows that no step has fitted are reproduced

Every figure about served rows comes from the scorer that will serve them, and a row is used by one step only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.bundle import (
    MAX_REFERENCES,
    Bundle,
    Probes,
    Reference,
    SplitSketches,
    make_manifest,
    refuse_existing,
    write_bundle,
)
from darksight_core.errors import ConfigError, FitError
from darksight_core.evaluation.measures import Fidelity
from darksight_core.fit.anchors import choose_anchors, network_threshold
from darksight_core.fit.checkpoints import Checkpoints
from darksight_core.fit.config import FitConfig
from darksight_core.fit.distributed.process_group import Arrays, ProcessGroup
from darksight_core.fit.distributed.shards import Part, Share
from darksight_core.fit.map.fitting import MapFit, decide_map, draw_core, entropies, place_rows
from darksight_core.fit.map.placement import Theta
from darksight_core.fit.network.distil import DistilConfig, Lessons, distil
from darksight_core.fit.sample import Sample
from darksight_core.fit.served import place_served
from darksight_core.guarantees.calibration import Calibration
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder, Network
from darksight_core.map.student import SoftmaxStudent, Student
from darksight_core.predictions import Predictions, labels_among
from darksight_core.predictions.split import RowSketch, Split, make_split
from darksight_core.progress import Progress, Report, silent
from darksight_core.scores.outlier import OutlierScore, draw_known
from darksight_core.simplex import Floats, kl, kl_sym, log_probs, log_softmax, temper

__all__ = ["FitReport", "StageFigures", "fit_bundle"]

_PROBES = 48
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
    share: Share | None = None,
    sample: Sample | None = None,
    steps: Checkpoints | None = None,
    report: Report = silent,
) -> FitReport:
    """Fit predictions and write the bundle.

    Parameters
    ----------
    predictions
        Rows to fit, calibrate and test on; in a team, those of this process.
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
    share
        The team and which rows are this process's; by default a process alone that has all.
    sample
        How the rows were drawn from more, if they were.
    steps
        Keeps finished steps; by default nowhere.
    report
        Called with a `Progress` now and then.
    """
    config = config or FitConfig()
    share = share or Share(ProcessGroup(), range(len(predictions)), len(predictions))
    team, steps = share.team, steps or Checkpoints(share.team)
    report = report if team.leads else silent
    if config.method == "svd":
        raise ConfigError("method svd has no density on the map, so it makes no bundle; use method fast")
    if team.size > 1 and config.method != "fast":
        raise ConfigError(f"method {config.method} works in one process; with several use method fast")
    refuse_existing(out, overwrite=overwrite)
    started = time.perf_counter()
    split = make_split(share.total, config.seed, shares) if sample is None else sample.split
    fit = share.part(split.fit)
    # Only rows drawn alike describe how dense and how usual a place is; those drawn by entropy decide where it is.
    even = fit if sample is None else share.part(sample.even)
    probs, mapped = predictions.probs, _mapped(predictions.probs, columns)
    soft = _tempered(mapped[fit.own], config.temperature)
    options = asdict(distil_config or DistilConfig()) | {"seed": config.seed, "device": config.device}

    fitted, lessons = _fit_map(soft, fit, config, DistilConfig(**options), sample, steps, report)
    soft_even, even_points = _tempered(mapped[even.own], config.temperature), fitted.points[fit.where(even)]
    f_p, embedder = _distilled(
        soft, fit, soft_even, even, fitted, lessons, DistilConfig(**options), steps, report,
        n_inputs=predictions.n_classes, refine_steps=refine_steps, temperature=config.temperature,
        columns=None if columns is None else tuple(columns),
    )  # fmt: skip

    points = steps.rows("served", share.rows, lambda: _served_points(embedder, probs, even, report))
    all_points = team.gather(points)
    kde = Kde.from_tensors(steps.once_by_all("density", lambda: Kde.fit(all_points, seed=config.seed, crew=team)))
    known = even.pick(probs[even.own], draw_known(even.total, config.seed))
    figures = _figures(predictions, mapped, share, split, even, fitted, embedder, even_points, points, config)
    map_figures = _map_figures(mapped, even, fitted, even_points, _shown_labels(predictions, columns, team), config)
    held = team.pick(probs, share.rows.start, split.calibrate)
    hashes = team.gather(predictions.row_hashes())
    reference = _reference(predictions, even, points, config.seed)
    probe_rows = even.pick(probs[even.own], _probe_places(team.gather(probs[even.own].max(axis=1))))

    def write() -> Arrays:
        outlier_score = OutlierScore.fit(log_probs(known))
        calibration = Calibration(outlier_score.score(log_probs(held)))
        manifest = make_manifest(
            predictions.class_names,
            {
                **config.as_dict(),
                "shares": list(shares),
                "distil": _plain(options),
                **({} if sample is None else {"sample": sample.as_dict()}),
            },
            {
                "map": map_figures.as_dict(),
                "stages": [asdict(stage) for stage in figures.stages],
                "refinement": list(figures.refinement),
                # How long a stage took is no property of the map: without it the same fit gives the same file.
                "distillation": [{k: v for k, v in stage.items() if k != "seconds"} for stage in f_p.stages],
            },
        )
        # Rows drawn by entropy would look like a leak: twins among them are not spread as chance spreads them.
        told = sample.even if sample is not None else split.fit
        bundle = Bundle(
            embedder=embedder,
            kde=kde,
            outlier_score=outlier_score,
            calibration=calibration,
            reference=reference,
            probes=_probes(embedder, kde, outlier_score, probe_rows).ranked(calibration),
            splits=SplitSketches(*(RowSketch.of(hashes[part]) for part in (told, split.calibrate, split.test))),
            manifest=manifest,
        )
        version = write_bundle(out, bundle, overwrite=overwrite)
        return {"version": np.frombuffer(version.encode(), dtype=np.uint8)}

    version = team.share(write)["version"].tobytes().decode()
    steps.done()
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
        student=embedder.student,
        reference=reference,
    )


@dataclass(frozen=True, slots=True)
class _FP:
    """What is told of a distillation: θ, and its stages as plain values."""

    student: Student
    stages: list[dict[str, object]]


def _fit_map(
    soft: NDArray[np.float32],
    fit: Part,
    config: FitConfig,
    distil_config: DistilConfig,
    sample: Sample | None,
    steps: Checkpoints,
    report: Report,
) -> tuple[MapFit, Lessons]:
    """The map with the points of this process's fit rows, and which rows f_p is to learn from.

    Rows are tempered, so nothing here is tempered again.
    """
    plain, team = replace(config, temperature=1.0), fit.share.team
    counts = None if sample is None else torch.tensor(sample.counts)
    if config.method == "fast":
        entropy = torch.tensor(team.gather(entropies(soft, blocks=fit.blocks).numpy()))
        core = draw_core(entropy, soft.shape[1], config, counts)
        core_rows = fit.pick(soft, core.rows.numpy())
    else:
        entropy, core, core_rows = entropies(soft), None, soft
    made = steps.once("map", lambda: _map_arrays(decide_map(core_rows, core, plain, report=report)))
    fitted = _map_of(made)
    if config.method == "fast":
        points = steps.rows(
            "points",
            fit.share.rows,
            lambda: place_rows(soft, fitted, plain, precision=torch.float32, blocks=fit.blocks, report=report),
        )
        fitted = replace(fitted, points=points)
    return fitted, Lessons.draw(entropy, distil_config, counts)


def _map_arrays(fitted: MapFit) -> Arrays:
    student = fitted.student
    assert isinstance(student, Student)
    return {
        "means": student.means,
        "scales": student.scales,
        "log_prior": student.log_prior,
        "dof": np.array([student.dof]),
        "points": fitted.points,
        "anchors": fitted.anchors,
        "bound": np.array([fitted.bound]),
        "history": np.array(fitted.history),
    }


def _map_of(arrays: Arrays) -> MapFit:
    student = Student(arrays["means"], arrays["scales"], arrays["log_prior"], float(arrays["dof"][0]))
    return MapFit(
        student, arrays["points"], arrays["anchors"], float(arrays["bound"][0]), tuple(arrays["history"].tolist()), 0.0
    )


def _distilled(
    soft: NDArray[np.float32],
    fit: Part,
    soft_even: NDArray[np.float32],
    even: Part,
    fitted: MapFit,
    lessons: Lessons,
    config: DistilConfig,
    steps: Checkpoints,
    report: Report,
    **embedding: Any,
) -> tuple[_FP, Embedder]:
    """f_p and the embedder that serves it."""
    taught, taught_points = fit.pick(soft, lessons.rows), fit.pick(fitted.points, lessons.rows)
    some = even.pick(soft_even, np.random.default_rng(0).permutation(even.total)[:_MEASURED_ROWS])

    def make() -> Arrays:
        assert isinstance(fitted.student, Student)
        made = distil(taught, taught_points, fitted.student, fitted.bound, config, lessons=lessons.alone, report=report)
        candidates = np.clip(np.concatenate([fitted.anchors, taught_points]), -fitted.bound, fitted.bound)
        anchors = choose_anchors(made.student, candidates, some, config.seed)
        network = {f"weight{i}": weight for i, weight in enumerate(made.weights)}
        network |= {f"bias{i}": bias for i, bias in enumerate(made.biases)}
        return {
            **network,
            "means": made.student.means,
            "scales": made.student.scales,
            "log_prior": made.student.log_prior,
            "dof": np.array([made.student.dof]),
            "anchors": anchors,
            "network_above": np.array([network_threshold(made.student, anchors, some)]),
            "stages": np.frombuffer(json.dumps([stage.as_dict() for stage in made.stages]).encode(), dtype=np.uint8),
        }

    made = steps.once("network", make)
    student = Student(made["means"], made["scales"], made["log_prior"], float(made["dof"][0]))
    layers = range(sum(name.startswith("weight") for name in made))
    network = Network(
        tuple(made[f"weight{i}"] for i in layers), tuple(made[f"bias{i}"] for i in layers), config.features
    )
    embedder = Embedder(
        student=student,
        network=network,
        anchors=made["anchors"],
        bound=fitted.bound,
        network_above=float(made["network_above"][0]),
        **embedding,
    )
    return _FP(student, json.loads(made["stages"].tobytes())), embedder


def _reference(predictions: Predictions, even: Part, points: Floats, seed: int) -> Reference:
    """Points to look at, drawn from the rows of all processes."""
    shown = np.arange(even.total)
    if even.total > MAX_REFERENCES:
        shown = np.sort(np.random.default_rng(seed).choice(even.total, MAX_REFERENCES, replace=False))
    probs = even.pick(predictions.probs[even.own], shown)
    labels = None if predictions.labels is None else even.pick(predictions.labels[even.own], shown)
    return Reference.of(even.pick(points, shown), probs.argmax(axis=1), labels, probs=probs)


def _shown_labels(
    predictions: Predictions, columns: Sequence[int] | None, team: ProcessGroup
) -> NDArray[np.int64] | None:
    """`labels_among` of this process's rows; None if the rows of any process have none."""
    labels = labels_among(predictions.labels, columns)
    return labels if team.gather(np.array([labels is not None])).all() else None


def _map_figures(
    mapped: NDArray[np.float32],
    even: Part,
    fitted: MapFit,
    points: Floats,
    labels: NDArray[np.int64] | None,
    config: FitConfig,
) -> Fidelity:
    """How faithful the map is on its fit rows: means over the rows of all processes."""
    found = np.empty((len(points), 6))
    for block in even.blocks:
        log_pi = temper(log_probs(mapped[even.own[block]]), config.temperature)
        log_q = fitted.student.log_posterior(points[block])
        teacher, student = log_pi.argmax(axis=1), log_q.argmax(axis=1)
        truth = np.full(len(teacher), -1) if labels is None else labels[even.own[block]]
        found[block] = np.stack(
            [kl_sym(log_pi, log_q), kl(log_pi, log_q), kl(log_q, log_pi),
             student == teacher, student == truth, teacher == truth], axis=1
        )  # fmt: skip
    mean = even.share.team.gather(found).mean(axis=0).tolist()
    return Fidelity(*mean[:4], *((None, None) if labels is None else mean[4:]))


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


def _served_points(embedder: Embedder, probs: NDArray[np.float32], even: Part, report: Report) -> Floats:
    """Points (n, 2) of these rows as the served scorer places them, block by block."""
    points = np.empty((len(even.own), 2))
    for block in even.blocks:
        points[block], loss = embedder.embed(log_probs(probs[even.own[block]]))
        report(Progress("score", block.stop, len(even.own), float(loss.mean())))
    return points


@dataclass(frozen=True, slots=True)
class _Figures:
    stages: tuple[StageFigures, ...]
    refinement: tuple[float, ...]


def _figures(
    predictions: Predictions,
    mapped: NDArray[np.float32],
    share: Share,
    split: Split,
    even: Part,
    fitted: MapFit,
    embedder: Embedder,
    on_map: Floats,
    served: Floats,
    config: FitConfig,
) -> _Figures:
    """KL_sym of the map, of f_p alone and of the embedder, on fit rows, of which it has points, and on held-out rows.

    Each process measures its own rows; means are over those of all.
    """
    rng = np.random.default_rng(config.seed)
    fit = share.part(even.all[_some(np.arange(even.total), rng)])
    held = share.part(_some(np.sort(np.concatenate([split.calibrate, split.test])), rng))
    where = even.where(fit)
    exact = place_rows(mapped[held.own], fitted, config, blocks=held.blocks) if len(held.own) else np.empty((0, 2))
    guesses = [
        part.by_block(lambda rows: embedder.network(np.exp(temper(log_probs(mapped[rows]), config.temperature))), 2)
        for part in (fit, held)
    ]
    refined = [
        held.by_block(
            lambda rows, steps=steps: np.column_stack(  # type: ignore[misc] # a default binds the number of the loop
                replace(embedder, refine_steps=steps).embed(log_probs(predictions.probs[rows]))
            ),
            3,
        )
        for steps in range(embedder.refine_steps + 1)
    ]

    def stage(name: str, student: Student | SoftmaxStudent, on_fit: Floats, on_held: Floats) -> StageFigures:
        a, b = (_fidelity(mapped, part, student, points, config) for part, points in ((fit, on_fit), (held, on_held)))
        return StageFigures(name, a[0] or 0.0, b[0], a[1] or 0.0, b[1])

    stages = (
        stage("map, each row solved", fitted.student, on_map[where], exact),
        stage("f_p alone", embedder.student, *guesses),
        stage(
            f"served: f_p, anchors, {embedder.refine_steps} steps", embedder.student, served[where], refined[-1][:, :2]
        ),
    )
    losses = [share.team.gather(found[:, 2]) for found in refined]
    return _Figures(stages, tuple(float(loss.mean()) for loss in losses if len(loss)))


def _some(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= _MEASURED_ROWS else np.sort(rng.choice(rows, _MEASURED_ROWS, replace=False))


def _fidelity(
    mapped: NDArray[np.float32], part: Part, student: Student | SoftmaxStudent, points: Floats, config: FitConfig
) -> tuple[float | None, float | None]:
    """Mean KL_sym and agreement over the part of all processes; nothing of no rows."""
    found = np.empty((len(part.own), 2))
    for block in part.blocks:
        log_pi = temper(log_probs(mapped[part.own[block]]), config.temperature)
        log_q = student.log_posterior(points[block])
        found[block, 0], found[block, 1] = kl_sym(log_pi, log_q), log_pi.argmax(axis=1) == log_q.argmax(axis=1)
    found = part.share.team.gather(found)
    return (float(found[:, 0].mean()), float(found[:, 1].mean())) if len(found) else (None, None)


def _probe_places(top: NDArray[np.float32]) -> NDArray[np.int64]:
    """Places of rows spread from the surest to the least sure, by their largest probability (n,)."""
    order = np.argsort(-top, kind="stable")
    spread: NDArray[np.int64] = order[np.unique(np.linspace(0, len(order) - 1, 4 * _PROBES).astype(int))]
    return spread


def _probes(embedder: Embedder, kde: Kde, outlier_score: OutlierScore, probs: NDArray[np.float32]) -> Probes:
    """Some of the rows, with the scores that torch computes for them.

    Of a row that is led back to the region of its class the search begins at the end of a bisection, which two
    libraries need not round alike; such rows are left out if they differ.
    """
    log_pi = log_probs(probs)
    points = place_served(embedder, log_pi)
    numpy_points = embedder.embed(log_pi)[0]
    same = np.abs(points - numpy_points).max(axis=1) < 1e-6 * (1.0 + np.abs(points).max())
    if same.mean() < 0.9:
        raise FitError("numpy and torch place the same rows at different points; please report this")
    chosen = np.flatnonzero(same)[:: max(1, int(same.sum()) // _PROBES)][:_PROBES]
    theta = Theta.of(embedder.student, dtype=torch.float64)
    density = torch.logsumexp(theta.scores(torch.tensor(points[chosen].T[None])), dim=1)[0].numpy()
    return Probes.of(
        probs[chosen],
        points[chosen],
        density + _log_constant(embedder.student),
        kde.log_density(points[chosen]),
        outlier_score.score(log_pi[chosen]),
    )


def _log_constant(student: Student) -> float:
    """What class scores leave out of log P(y, k): the part of the normaliser that all classes share."""
    # log t_ν = -log 2π - log s² + c log v - c log(|y - μ|² + v) with v = ν s², and -log s² = log ν - log v.
    return float(np.log(student.dof) - np.log(2.0 * np.pi))
