"""From predictions to a bundle: split, map, f_p, density, calibration, test.

    fit rows          -> map (θ, Y) -> f_p, fine-tuning -> KDE on the points where the served scorer puts them
                      -> the outlier score, which needs no map
    calibration rows  -> outlier scores, which give p-values
    all but fit rows  -> how well rows that no step has fitted are reproduced

Every figure about served rows comes from the scorer that will serve them, and a row is used by one step only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.bundle import (
    MAX_CALIBRATION,
    MAX_REFERENCES,
    MAX_STEPS,
    Bundle,
    Reference,
    SplitSketches,
    make_manifest,
    refuse_existing,
    write_bundle,
)
from darksight_core.bundle.levels import Resolutions, Rows
from darksight_core.drift.estimate import fit_accuracy_model
from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.segment_cells import SegmentCells, SegmentCounts, tag_hashes
from darksight_core.errors import ConfigError
from darksight_core.evaluation.fidelity import Fidelity
from darksight_core.evaluation.progress import Progress
from darksight_core.fit.anchors import choose_anchors, network_threshold
from darksight_core.fit.config import FitConfig
from darksight_core.fit.context import FitContext
from darksight_core.fit.distributed.process_group import Arrays
from darksight_core.fit.distributed.shards import RowSet
from darksight_core.fit.figures import FitReport, Measurements, StageFigures
from darksight_core.fit.levels import fit_levels, resolve_rows
from darksight_core.fit.map.fitting import MapFit, decide_map, draw_core, entropies, place_rows
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.network.distil import Distilled, distil
from darksight_core.fit.network.training_rows import TrainingRows
from darksight_core.fit.probes import make_probes, spread_by_confidence
from darksight_core.fit.sample import Sample
from darksight_core.fit.warnings import RowFacts, fit_warnings
from darksight_core.map.density import Kde
from darksight_core.map.placement import Embedder
from darksight_core.map.student import Student
from darksight_core.predictions import Predictions, labels_among
from darksight_core.predictions.sketch import RowSketch
from darksight_core.predictions.split import Split, make_split
from darksight_core.rows.partial import TopRows
from darksight_core.rows.resolution import FULL, is_rounded, name_of
from darksight_core.rows.simplex import Floats, largest_probs, log_probs, log_softmax, temper
from darksight_core.scores.outlier import draw_known

__all__ = ["fit_bundle"]

# Rows on which the stages are measured, and from which anchors are chosen.
_MEASURED_ROWS = 20_000
# Probabilities in the rows on which the stages are measured: fewer rows where there are many classes.
_MEASURED_NUMBERS = 1 << 21
# Above every KL_sym: f_p makes no second guess.
_NEVER = 1e30


def fit_bundle(
    predictions: Predictions,
    out: str | Path,
    *,
    config: FitConfig | None = None,
    distil_config: DistilConfig | None = None,
    columns: Sequence[int] | None = None,
    shares: tuple[float, float, float] = (0.6, 0.3, 0.1),
    refine_steps: int = 5,
    top_k: Sequence[int] = (),
    overwrite: bool = False,
    sample: Sample | None = None,
    context: FitContext | None = None,
) -> FitReport:
    """Fit predictions and write the bundle.

    Parameters
    ----------
    predictions
        Rows to fit, calibrate and test on; with several processes, the rows of this one.
    out
        File to write. It is written completely or not at all.
    config, distil_config
        Options of the map and of f_p; seed and device of f_p are those of the map.
    columns
        Classes to map, as columns of the rows, or None for all; the others are dropped and the rest renormalised.
    shares
        Shares of fit, calibration and test rows.
    refine_steps
        Newton steps when new rows are placed.
    top_k
        Numbers of most probable classes that rows to score may be known by, besides what the rows given here have.
    overwrite
        Whether an existing bundle may be replaced.
    sample
        How the rows were sampled from more rows, if they were.
    context
        Processes, checkpoints and progress; by default one process without checkpoints and reports.
    """
    out = Path(out)
    config = config or FitConfig()
    context = context or FitContext.alone(len(predictions))
    _check_options(config, refine_steps, context.group.size)
    refuse_existing(out, overwrite=overwrite)
    started = time.perf_counter()
    distil_config = replace(distil_config or DistilConfig(), seed=config.seed, device=config.device)
    split = make_split(context.shard.total, config.seed, shares) if sample is None else sample.split
    _check_split(split)
    resolutions, at_own = resolve_rows(predictions, top_k, context.group, split.fit)
    fit = _Fit(at_own, predictions, resolutions, top_k, columns, split, sample, config, distil_config, context)

    fitted, training_rows = fit.map()
    distilled, embedder = fit.network(fitted, training_rows, refine_steps)
    served = fit.served_points(embedder)
    kde = fit.density(served)
    figures = fit.figures(fitted, embedder, served)
    reference = fit.reference(served)
    manifest = fit.manifest(shares, figures, distilled)
    written = fit.write(out, embedder, kde, reference, manifest, figures.as_served, overwrite=overwrite)
    version, warnings, levels = written
    context.checkpoints.done()

    last = figures.stages[-1]
    heldout = None
    if last.heldout_kl_sym is not None and last.heldout_agree is not None:
        heldout = {"kl_sym": last.heldout_kl_sym, "acc_teacher": last.heldout_agree}
    return FitReport(
        kl_sym=figures.on_map.kl_sym,
        acc_teacher=figures.on_map.acc_teacher,
        acc_ground=figures.on_map.acc_ground,
        heldout=heldout,
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
        bound=embedder.bound,
        reference=reference,
        warnings=warnings,
        resolution=name_of(resolutions.own),
        levels=levels,
    )


def _check_options(config: FitConfig, refine_steps: int, processes: int) -> None:
    if config.method == "svd":
        raise ConfigError("method svd has no density on the map, so it makes no bundle; use method fast")
    if not 0 <= refine_steps <= MAX_STEPS:
        raise ConfigError(f"refine_steps is {refine_steps}; it must be from 0 to {MAX_STEPS}")
    if processes > 1 and config.method != "fast":
        raise ConfigError(f"method {config.method} runs in one process; with several processes use method fast")


def _check_split(split: Split) -> None:
    if len(split.calibrate) > MAX_CALIBRATION:
        raise ConfigError(
            f"{len(split.calibrate):,} calibration rows are more than the {MAX_CALIBRATION:,} that a bundle can hold; "
            "fit a sample of the rows or give the calibration a smaller share"
        )


class _Figures(NamedTuple):
    """Fidelity of the map, figures of each stage, KL_sym after each Newton step, and fidelity as served."""

    on_map: Fidelity
    stages: tuple[StageFigures, ...]
    refinement: tuple[float, ...]
    as_served: Fidelity


@dataclass(slots=True)
class _Fit:
    """The steps of one fit, in order; each is the same on every process.

    `predictions` are at the resolution of the fit rows, `given` as they came. `fit` are the fit rows. `uniform` are
    those of them that were drawn uniformly: they alone describe how dense and how usual a place is, while rows drawn by
    entropy help to decide where it is.
    """

    predictions: Predictions
    given: Predictions
    resolutions: Resolutions
    top_k: Sequence[int]
    columns: Sequence[int] | None
    split: Split
    sample: Sample | None
    config: FitConfig
    distil_config: DistilConfig
    context: FitContext
    fit: RowSet = field(init=False)
    uniform: RowSet = field(init=False)
    mapped: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        shard = self.context.shard
        self.fit = shard.select(self.split.fit)
        self.uniform = self.fit if self.sample is None else shard.select(self.sample.even)
        self.mapped = self.predictions.probs
        if self.columns is not None:
            chosen = log_probs(self.predictions.probs)[:, list(self.columns)]
            self.mapped = np.exp(log_softmax(chosen)).astype(np.float32)

    def map(self) -> tuple[MapFit, TrainingRows]:
        """The map with the points of this process's fit rows, and the rows on which f_p is trained."""
        context, probs = self.context, self._tempered(self.fit)
        # The rows are tempered already.
        config = replace(self.config, temperature=1.0)
        counts = None if self.sample is None else torch.tensor(self.sample.counts)
        entropy = torch.tensor(self.fit.gather(entropies(probs, blocks=self.fit.blocks).numpy()))
        core, core_rows = None, probs
        if config.method == "fast":
            core = draw_core(entropy, probs.shape[1], config, counts)
            core_rows = self.fit.pick(probs, core.rows.numpy())
        made = context.checkpoints.once(
            "map", lambda: decide_map(core_rows, core, config, report=context.report).tensors()
        )
        fitted = MapFit.from_tensors(made)
        if config.method == "fast":
            points = context.checkpoints.rows(
                "points",
                context.shard.rows,
                lambda: place_rows(
                    probs, fitted, config, precision=torch.float32, blocks=self.fit.blocks, report=context.report
                ),
            )
            fitted = replace(fitted, points=points)
        return fitted, TrainingRows.draw(entropy, self.distil_config, counts)

    def network(self, fitted: MapFit, rows: TrainingRows, refine_steps: int) -> tuple[Distilled, Embedder]:
        """f_p, and the embedder that serves it with its anchors."""
        student, report = fitted.student, self.context.report
        assert isinstance(student, Student)
        probs, points = (self.fit.pick(each, rows.numbers) for each in (self._tempered(self.fit), fitted.points))
        some = np.random.default_rng(0).permutation(self.uniform.total)[:_MEASURED_ROWS]
        measured = self.uniform.pick(self._tempered(self.uniform), some)

        def make() -> Arrays:
            made = distil(probs, points, student, fitted.bound, self.distil_config, rows=rows.renumbered, report=report)
            if student.n_classes == 2:
                # Anchors stand close together all along the line. A second start would break its order.
                return {**made.tensors(), "anchors": fitted.anchors, "network_above": np.array([_NEVER])}
            candidates = np.clip(np.concatenate([fitted.anchors, points]), -fitted.bound, fitted.bound)
            anchors = choose_anchors(made.student, candidates, measured, self.config.seed, report)
            threshold = network_threshold(made.student, anchors, measured)
            return {**made.tensors(), "anchors": anchors, "network_above": np.array([threshold])}

        made = self.context.checkpoints.once("network", make)
        distilled = Distilled.from_tensors(made)
        embedder = Embedder(
            student=distilled.student,
            network=distilled.network,
            anchors=made["anchors"],
            bound=fitted.bound,
            n_inputs=self.predictions.n_classes,
            refine_steps=refine_steps,
            temperature=self.config.temperature,
            columns=None if self.columns is None else tuple(self.columns),
            network_above=float(made["network_above"][0]),
        )
        return distilled, embedder

    def served_points(self, embedder: Embedder) -> Floats:
        """Points (n, 2) of this process's uniform fit rows as the served scorer places them."""
        probs, rows = self.predictions.probs, self.uniform

        def place() -> Floats:
            points = np.empty((len(rows.own), 2))
            for block in rows.blocks:
                points[block], loss = embedder.embed(log_probs(probs[rows.own[block]]))
                self.context.report(Progress("score", block.stop, len(rows.own), float(loss.mean())))
            return points

        return self.context.checkpoints.rows("served", self.context.shard.rows, place)

    def density(self, served: Floats) -> Kde:
        """The density of the served points of all processes."""
        points = self.uniform.gather(served)
        made = self.context.checkpoints.once("density", lambda: Kde.fit(points, seed=self.config.seed).tensors())
        return Kde.from_tensors(made)

    def figures(self, fitted: MapFit, embedder: Embedder, served: Floats) -> _Figures:
        """How faithful the map is, as fitted and as served."""
        on_map = fitted.points[self.fit.where(self.uniform)]
        shard, rng = self.context.shard, np.random.default_rng(self.config.seed)
        measure = Measurements(self.predictions.probs, self.mapped, fitted, self.config, self.context.report)
        labels = labels_among(self.predictions.labels, self.columns)
        if not self.context.group.gather(np.array([labels is not None])).all():
            labels = None
        most = min(_MEASURED_ROWS, _MEASURED_NUMBERS // self.mapped.shape[1])
        fit = shard.select(self.uniform.numbers[_draw(np.arange(self.uniform.total), most, rng)])
        held = shard.select(_draw(np.sort(np.concatenate([self.split.calibrate, self.split.test])), most, rng))
        where = self.uniform.where(fit)
        stages = measure.stages(fit, held, embedder, on_map[where], served[where])
        return _Figures(measure.fidelity(self.uniform, on_map, labels), *stages)

    def manifest(
        self, shares: tuple[float, float, float], figures: _Figures, distilled: Distilled
    ) -> dict[str, object]:
        """Options and figures of the fit, for the manifest of its bundle."""
        config = {**self.config.as_dict(), "shares": list(shares), "distil": asdict(self.distil_config)}
        if self.sample is not None:
            config["sample"] = self.sample.as_dict()
        fidelity = {
            "map": figures.on_map.as_dict(),
            "served": figures.as_served.as_dict(),
            "stages": [asdict(stage) for stage in figures.stages],
            "refinement": list(figures.refinement),
            # How long a stage took is no property of the map: without it the same fit gives the same file.
            "distillation": [
                {name: value for name, value in asdict(stage).items() if name != "seconds"}
                for stage in distilled.stages
            ],
        }
        return make_manifest(self.predictions.class_names, config, fidelity)

    def reference(self, served: Floats) -> Reference:
        """Points to show on the map, drawn from the rows of all processes."""
        rows, predictions = self.uniform, self.predictions
        shown = np.arange(rows.total)
        if rows.total > MAX_REFERENCES:
            rng = np.random.default_rng(self.config.seed)
            shown = np.sort(rng.choice(rows.total, MAX_REFERENCES, replace=False))
        probs = rows.pick(predictions.probs[rows.own], shown)
        labels = None if predictions.labels is None else rows.pick(predictions.labels[rows.own], shown)
        return Reference.of(rows.pick(served, shown), probs, labels)

    def write(
        self,
        out: Path,
        embedder: Embedder,
        kde: Kde,
        reference: Reference,
        manifest: dict[str, object],
        as_served: Fidelity,
        *,
        overwrite: bool,
    ) -> tuple[str, tuple[str, ...], str]:
        """Fit the outlier scores, calibrate them and write the bundle on the first process.

        Returns its version, warnings and the names of its levels.
        """
        group, probs, uniform = self.context.group, self.predictions.probs, self.uniform
        drawn = draw_known(uniform.total, self.config.seed)
        known = uniform.pick(probs[uniform.own], drawn)
        held = group.pick(probs, self.context.shard.rows.start, self.split.calibrate)
        labels = np.full(len(probs), -1) if self.predictions.labels is None else self.predictions.labels
        known_labels = uniform.pick(labels[uniform.own], drawn)
        held_labels = group.pick(labels, self.context.shard.rows.start, self.split.calibrate)
        hashes = group.gather(self.given.row_hashes())
        calibrate = self.context.shard.select(self.split.calibrate)
        held_tags = calibrate.gather(tag_hashes(self.predictions.tags, calibrate.own))
        own = probs[uniform.own]
        probe_rows = uniform.pick(own, spread_by_confidence(uniform.gather(own.max(axis=1))))
        # Rows drawn by entropy would look like a leak: equal rows among them are not spread by chance.
        sketched = (uniform.numbers, self.split.calibrate, self.split.test)
        splits = SplitSketches(*(RowSketch.of(hashes[rows]) for rows in sketched))
        facts = RowFacts.of(self.given.probs[uniform.own], splits.fit.n_distinct, uniform.gather)
        rows: tuple[Rows, Rows] = known, held
        if self.given.top is not None:
            rows = self.given.top.take(uniform.numbers[drawn]), self.given.top.take(self.split.calibrate)

        def make() -> Arrays:
            level, resolutions = fit_levels(self.resolutions, (known, held), rows, self.top_k)
            outlier_score, calibration = level.outlier_score, level.calibration
            scores = level.score(log_probs(held), rows[1].other if isinstance(rows[1], TopRows) else None)
            segments = None
            if held_tags.any():
                cells = SegmentCells(calibration, np.bincount(reference.predicted, minlength=embedder.n_inputs))
                uniforms = np.random.default_rng(self.config.seed).random((len(held), 3))
                places = cells.cells(scores, largest_probs(held), held.argmax(axis=1), uniforms)
                segments = SegmentCounts.of(cells, places, held_tags)
            accuracy_model = None
            if min(known_labels.min(initial=0), held_labels.min(initial=0)) >= 0:
                accuracy_model = fit_accuracy_model(
                    known, known_labels, held, held_labels, calibration.p_value(scores), seed=self.config.seed
                )
            has_place = embedder.starts.has_class
            warnings = fit_warnings(facts, calibration, as_served, self.predictions.class_names, has_place)
            rounded = is_rounded(held, [level.number for level in resolutions.coarser])
            features = None
            if resolutions.own <= FULL and not rounded.all():
                fine, means = log_probs(held[~rounded]), outlier_score.log_ratios.means
                features = RowFeatures.fit(log_probs(known), fine, means, usual_coarse=float(rounded.mean()))
            bundle = Bundle(
                embedder=embedder,
                kde=kde,
                outlier_score=outlier_score,
                calibration=calibration,
                reference=reference,
                probes=make_probes(embedder, kde, outlier_score, probe_rows).ranked(calibration),
                splits=splits,
                manifest={**manifest, "warnings": list(warnings)},
                resolutions=resolutions,
                accuracy_model=accuracy_model,
                segments=segments,
                features=features,
            )
            texts = {"version": write_bundle(out, bundle, overwrite=overwrite), "warnings": json.dumps(warnings)}
            texts["levels"] = resolutions.names
            return {name: np.frombuffer(text.encode(), dtype=np.uint8) for name, text in texts.items()}

        made = {name: text.tobytes().decode() for name, text in group.broadcast(make).items()}
        return made["version"], tuple(json.loads(made["warnings"])), made["levels"]

    def _tempered(self, rows: RowSet) -> NDArray[np.float32]:
        """Rows (n, K) of a set that this process has, at the map's temperature."""
        probs, temperature = self.mapped[rows.own], self.config.temperature
        return probs if temperature == 1.0 else np.exp(temper(log_probs(probs), temperature)).astype(np.float32)


def _draw(rows: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
