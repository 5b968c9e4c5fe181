"""One call from rows to a finished map, whatever the method.

`fit_map` decides θ and places every row; `place_rows` puts any further rows on a finished map. Both take rows as
probabilities and work through them in chunks: beyond the input and the points, memory does not grow with n.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.errors import ConfigError, FitError
from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.fit.config import FitConfig
from darksight_core.fit.device import choose_device, one_thread
from darksight_core.fit.map.coreset import Coreset
from darksight_core.fit.map.fast import fit_theta
from darksight_core.fit.map.line import line_anchors, line_end, line_student, place_on_line
from darksight_core.fit.map.paper import fit_paper
from darksight_core.fit.map.placement import Rows, Theta, candidate_grid, map_bound, place, place_faithful, rows_of
from darksight_core.fit.map.svd import fit_svd
from darksight_core.map.student import SoftmaxStudent, Student
from darksight_core.rows.simplex import FLOOR, Floats, kl_sym, log_probs, temper

__all__ = ["MapFit", "decide_map", "draw_core", "entropies", "fit_map", "place_rows"]

_CHUNK_ROWS = 1 << 14
_NEWTON_STEPS = 10
_FAITHFUL_STEPS = 20
_ANCHOR_ROWS = 500
_ANCHOR_GRID = 32
_LARGEST = 1 << 23
# Elements of (K, rows) that are placed between two reports of progress.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class MapFit:
    """A finished map.

    `student` θ, `points` (n, 2) of the rows in their order, `anchors` (m, 2) where the search for a row's place begins,
    `bound` the largest coordinate a point may have, `history` the objective as it fell, `seconds` of wall time.
    """

    student: Student | SoftmaxStudent
    points: Floats
    anchors: Floats
    bound: float
    history: tuple[float, ...]
    seconds: float

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a map with a `Student`."""
        assert isinstance(self.student, Student)
        return {
            **self.student.tensors(),
            "points": self.points,
            "anchors": self.anchors,
            "bound": np.array([self.bound]),
            "history": np.array(self.history),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> MapFit:
        """Inverse of `tensors`; the time is not stored."""
        history = tuple(tensors["history"].tolist())
        student, bound = Student.from_tensors(tensors), float(tensors["bound"][0])
        return cls(student, tensors["points"], tensors["anchors"], bound, history, 0.0)


def fit_map(probs: NDArray[np.floating], config: FitConfig | None = None, *, report: Report = silent) -> MapFit:
    """Fit a map to rows on the simplex.

    Parameters
    ----------
    probs
        Class probabilities, (n, K); `darksight_core.predictions` makes sure that rows are sound.
    config
        Method and options.
    report
        Called with a `Progress` now and then.
    """
    config = config or FitConfig()
    if probs.ndim != 2 or probs.shape[1] < 2 or probs.shape[0] < 1:
        raise ConfigError(f"a map needs at least one row and two classes; the rows have shape {probs.shape}")
    started = time.perf_counter()
    if config.method == "svd":
        softmax, points, history = fit_svd(probs, config.temperature)
        return MapFit(softmax, points, points[:0], float("inf"), history, time.perf_counter() - started)
    core = None
    if config.method == "fast":
        core = draw_core(entropies(probs, config.temperature), probs.shape[1], config)
    fitted = decide_map(probs if core is None else probs[core.rows.numpy()], core, config, report=report)
    if core is not None:
        fitted = replace(fitted, points=place_rows(probs, fitted, config, precision=torch.float32, report=report))
    return replace(fitted, seconds=time.perf_counter() - started)


def draw_core(entropy: Tensor, n_classes: int, config: FitConfig, counts: Tensor | None = None) -> Coreset:
    """The rows that decide θ, by the entropy (n,) of all; `counts` (n,) says how many rows each one stands for."""
    # A joint step holds some twenty arrays of (K, rows).
    size = min(config.theta_rows, max(1_000, _LARGEST // n_classes))
    return Coreset.draw(entropy, size, torch.Generator().manual_seed(config.seed), counts)


def decide_map(
    probs: NDArray[np.floating], core: Coreset | None, config: FitConfig, *, report: Report = silent
) -> MapFit:
    """The map that rows (m, K) decide, with their points.

    Parameters
    ----------
    probs
        The rows of a coreset in its order; all rows for `paper`, which has none.
    core
        The coreset.
    config
        Method and options.
    report
        Called with a `Progress` now and then.
    """
    started = time.perf_counter()
    if probs.shape[1] == 2:
        return _line_map(probs, config)
    like = torch.empty(0, device=choose_device(config.device))
    # The draw of the coreset began with the seed itself.
    generator = torch.Generator().manual_seed(config.seed ^ 1)
    with one_thread(like.device):
        rows = _load(probs, config.temperature, like)
        if core is not None:
            theta, placed, steps = fit_theta(rows, core, config, generator, report)
        else:
            theta, placed, steps = fit_paper(rows, config, generator, report)
        if not np.isfinite(steps[-1]):
            raise FitError(f"the fit diverged: its loss is {steps[-1]}; try another seed, or method fast")
        anchors = _anchors(theta, rows, placed, generator)
    seconds = time.perf_counter() - started
    bound = float(map_bound(theta)[0])
    return MapFit(theta.to_student(), _numpy(placed), _numpy(anchors), bound, tuple(steps), seconds)


def place_rows(
    probs: NDArray[np.floating],
    fitted: MapFit,
    config: FitConfig | None = None,
    *,
    precision: torch.dtype = torch.float64,
    blocks: Sequence[slice] | None = None,
    report: Report = silent,
) -> Floats:
    """Put rows (n, K) on a finished map by solving each row's own problem: points (n, 2).

    The place of a row depends on the map alone, not on the other rows. In float64 it agrees with the points of
    `fit_map`, which are placed in float32, to about 1e-3 of a unit where the map is not flat.

    Parameters
    ----------
    probs, fitted, config
        Rows, the map and how it was fitted.
    precision
        In which to compute.
    blocks
        Rows to work on together; the last bits of a point may depend on them.
    report
        Called with a `Progress` now and then.
    """
    config = config or FitConfig()
    if isinstance(fitted.student, SoftmaxStudent):
        return fitted.student.place(probs, config.temperature)
    if fitted.student.n_classes == 2:
        return _place_on_line(probs, fitted.student, config.temperature)
    device = choose_device(config.device)
    theta = Theta.of(fitted.student, device=device, dtype=precision)
    anchors = torch.tensor(fitted.anchors.T[None], device=device, dtype=precision)
    with one_thread(device):
        return _place(probs, theta, anchors, config, blocks or _chunks(probs), report)


def entropies(probs: NDArray[np.floating], temperature: float = 1.0, blocks: Sequence[slice] | None = None) -> Tensor:
    """Entropy of every row (n, K) at a temperature, (n,)."""
    found = torch.empty(len(probs), dtype=torch.float64)
    for block in blocks or _chunks(probs):
        found[block] = _load(probs[block], temperature, torch.empty(0)).entropy.double()
    return found


def _line_map(probs: NDArray[np.floating], config: FitConfig) -> MapFit:
    """The map of two classes, with the points of rows (n, 2)."""
    student = line_student(config.dof)
    points = _place_on_line(probs, student, config.temperature)
    loss = kl_sym(temper(log_probs(probs), config.temperature), student.log_posterior(points)).mean()
    return MapFit(student, points, line_anchors(student), line_end(student), (float(loss),), 0.0)


def _place_on_line(probs: NDArray[np.floating], student: Student, temperature: float) -> Floats:
    log_pi = log_probs(probs)
    return place_on_line(student, (log_pi[:, 1] - log_pi[:, 0]) / temperature)


def _chunks(probs: NDArray[np.floating]) -> list[slice]:
    return [slice(start, start + _CHUNK_ROWS) for start in range(0, len(probs), _CHUNK_ROWS)]


def _load(probs: NDArray[np.floating], temperature: float, like: Tensor) -> Rows:
    """Rows (n, K) of probabilities, class-first, on the device and in the precision of `like`."""
    scores = torch.tensor(probs.T, device=like.device, dtype=like.dtype).clamp_min_(FLOOR).log_()
    return rows_of(scores.div_(temperature))


def _numpy(points: Tensor) -> Floats:
    """Points (1, 2, n) as (n, 2)."""
    return np.ascontiguousarray(points[0].T.double().cpu().numpy())


def _anchors(theta: Theta, rows: Rows, points: Tensor, generator: torch.Generator) -> Tensor:
    """Where the search for a row's place begins, (1, 2, m): a grid, the centres, and where unsure rows stand."""
    some = Coreset.draw(rows.entropy, _ANCHOR_ROWS, generator).rows
    grid = candidate_grid(theta, 0.6 * map_bound(theta), _ANCHOR_GRID)
    return torch.cat((grid, points[:, :, some.to(points.device)]), dim=2)


def _place(
    probs: NDArray[np.floating],
    theta: Theta,
    anchors: Tensor,
    config: FitConfig,
    blocks: Sequence[slice],
    report: Report,
) -> Floats:
    """Place rows block by block, in pieces that take about a second at most."""
    bound = map_bound(theta)
    points = np.empty((len(probs), 2))
    size = max(64, _PIECE // theta.n_classes)
    pieces = (
        slice(start, min(start + size, block.stop, len(probs)))
        for block in blocks
        for start in range(block.start, min(block.stop, len(probs)), size)
    )
    for piece in pieces:
        rows = _load(probs[piece], config.temperature, anchors)
        found, loss = place(theta, rows, anchors, steps=_NEWTON_STEPS, bound=bound)
        if config.faithful:
            found = place_faithful(theta, rows, found, anchors, steps=_FAITHFUL_STEPS, bound=bound)
        points[piece] = _numpy(found)
        report(Progress("place", piece.stop, len(probs), float(loss.mean())))
    return points
