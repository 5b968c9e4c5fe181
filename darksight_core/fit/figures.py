"""Figures of a fit: how faithful the map is after each stage, on fit rows and on rows that no step has fitted.

Each process measures its own rows; means are over the rows of all processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.bundle import Reference
from darksight_core.evaluation.fidelity import Fidelity
from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.fit.config import FitConfig
from darksight_core.fit.distributed.shards import RowSet
from darksight_core.fit.map.fitting import MapFit, place_rows
from darksight_core.map.placement import Embedder
from darksight_core.map.student import SoftmaxStudent, Student
from darksight_core.map.verdict import is_on_border, nearest_stars
from darksight_core.rows.simplex import Floats, kl, kl_sym, kl_sym_of_zeros, log_probs, temper, total_variation

__all__ = ["FitReport", "Measurements", "StageFigures"]


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

    `class_names` and `reference` are of the classes that come in, `student` of `columns` among them; `bound` is the
    largest coordinate of a point.
    `kl_sym`, `acc_teacher` and `acc_ground` are of the map on its fit rows; `heldout` of the served scorer on rows
    that no step has fitted; `refinement` lists their KL_sym after each Newton step. `warnings` say what the rows do not
    allow; see `fit.warnings`. `resolution` is that of the rows, and `levels` those that the bundle is calibrated for.
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
    bound: float
    reference: Reference
    warnings: tuple[str, ...] = ()
    resolution: str = "full"
    levels: str = "full"

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
            "warnings": list(self.warnings),
            "resolution": self.resolution,
            "levels": self.levels.split(", "),
        }


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measures a fit.

    Parameters
    ----------
    probs
        Rows of this process, (n, n_inputs).
    mapped
        The same rows over the classes that the map shows, (n, K).
    fitted
        The map.
    config
        How it was fitted.
    report
        Called with a `Progress` for each part.
    """

    probs: NDArray[np.float32]
    mapped: NDArray[np.float32]
    fitted: MapFit
    config: FitConfig
    report: Report = silent

    def fidelity(
        self,
        rows: RowSet,
        points: Floats,
        labels: NDArray[np.int64] | None,
        student: Student | SoftmaxStudent | None = None,
    ) -> Fidelity:
        """Fidelity of the map at the points (n, 2) of this process's rows of a set.

        Parameters
        ----------
        rows
            The set.
        points
            Points of this process's rows of it.
        labels
            True classes of all rows of this process, if they are known.
        student
            Reads the points; by default that of the map before f_p was fine-tuned.
        """
        student = self.fitted.student if student is None else student
        assert isinstance(student, Student), "a map without a density has no bundle and is not measured here"
        found = np.empty((len(points), 10))
        for block in rows.blocks:
            log_pi = self._log_pi(rows.own[block])
            log_q = student.log_posterior(points[block])
            teacher, predicted = log_pi.argmax(axis=1), log_q.argmax(axis=1)
            truth = np.full(len(teacher), -1) if labels is None else labels[rows.own[block]]
            found[block] = np.stack(
                [kl_sym(log_pi, log_q), kl(log_pi, log_q), kl(log_q, log_pi),
                 predicted == teacher, predicted == truth, teacher == truth,
                 total_variation(log_pi, log_q), kl_sym_of_zeros(log_pi, log_q),
                 nearest_stars(points[block], student.means) == teacher,
                 is_on_border(points[block], self.fitted.bound)], axis=1
            )  # fmt: skip
        mean = rows.gather(found).mean(axis=0).tolist()
        return Fidelity(*mean[:4], *((None, None) if labels is None else mean[4:6]), *mean[6:])

    def stages(
        self, fit: RowSet, held: RowSet, embedder: Embedder, on_map: Floats, served: Floats
    ) -> tuple[tuple[StageFigures, ...], tuple[float, ...], Fidelity]:
        """KL_sym of the map, of f_p alone and as served; and of served held-out rows after each Newton step.

        At last the fidelity as served, on held-out rows if there are any.

        Parameters
        ----------
        fit, held
            Fit rows and held-out rows to measure.
        embedder
            Places rows as they are served.
        on_map, served
            Points of this process's fit rows on the map and as served, (n, 2).
        """
        exact = np.empty((0, 2))
        if len(held.own):
            exact = place_rows(
                self.mapped[held.own],
                self.fitted,
                self.config,
                precision=torch.float32,
                blocks=held.blocks,
                report=self.report,
            )
        guesses = [part.by_block(lambda rows: embedder.network(np.exp(self._log_pi(rows))), 2) for part in (fit, held)]
        refined: list[Floats] = []
        for steps in range(embedder.refine_steps + 1):
            fewer = embedder.with_steps(steps)
            refined.append(held.by_block(partial(self._embed, fewer), 3))
            self.report(Progress("measure", steps + 1, embedder.refine_steps + 1, float("nan")))

        def stage(
            name: str, student: Student | SoftmaxStudent, on_fit: Floats, on_held: Floats
        ) -> tuple[StageFigures, Fidelity]:
            seen = self.fidelity(fit, on_fit, None, student)
            if not held.total:
                return StageFigures(name, seen.kl_sym, None, seen.acc_teacher, None), seen
            new = self.fidelity(held, on_held, None, student)
            return StageFigures(name, seen.kl_sym, new.kl_sym, seen.acc_teacher, new.acc_teacher), new

        last = f"served: f_p, anchors, {embedder.refine_steps} steps"
        solved, _ = stage("map, each row solved", self.fitted.student, on_map, exact)
        alone, _ = stage("f_p alone", embedder.student, *guesses)
        as_served, fidelity = stage(last, embedder.student, served, refined[-1][:, :2])
        losses = [held.gather(found[:, 2]) for found in refined]
        return (solved, alone, as_served), tuple(float(loss.mean()) for loss in losses if len(loss)), fidelity

    def _embed(self, embedder: Embedder, rows: NDArray[np.int64]) -> Floats:
        """Points of rows of this process as served, and their KL_sym, (n, 3)."""
        return np.column_stack(embedder.embed(log_probs(self.probs[rows])))

    def _log_pi(self, rows: NDArray[np.int64]) -> Floats:
        """log π of rows of this process over the student's classes at the map's temperature."""
        return temper(log_probs(self.mapped[rows]), self.config.temperature)
