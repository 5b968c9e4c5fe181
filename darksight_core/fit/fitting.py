"""One call from rows to a finished map, whatever the method.

`fit_map` decides θ and places every row; `place_rows` puts any further rows on a finished map. Both take rows as
probabilities and work through them in chunks: beyond the input and the points, memory does not grow with n.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darksight_core.errors import ConfigError, FitError
from darksight_core.fit.config import FitConfig, Progress, Report, choose_device, one_thread, silent
from darksight_core.fit.fast import Coreset, fit_theta
from darksight_core.fit.paper import fit_paper
from darksight_core.fit.plane import Rows, Theta, candidate_grid, map_bound, place, place_faithful, rows_of
from darksight_core.fit.svd import fit_svd
from darksight_core.simplex import FLOOR, Floats
from darksight_core.student import SoftmaxStudent, Student

__all__ = ["MapFit", "fit_map", "place_rows"]

_CHUNK_ROWS = 1 << 14
_NEWTON_STEPS = 10
_FAITHFUL_STEPS = 20
_ANCHOR_ROWS = 500
_ANCHOR_GRID = 32
_LARGEST = 1 << 22


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
    like = torch.empty(0, device=choose_device(config.device))
    generator = torch.Generator().manual_seed(config.seed)
    with one_thread(like.device):
        if config.method == "fast":
            core = Coreset.draw(_entropy(probs, config.temperature), _theta_rows(probs, config), generator)
            rows = _load(probs[core.rows.numpy()], config.temperature, like)
            theta, placed, steps = fit_theta(rows, core, config, generator, report)
        else:
            rows = _load(probs, config.temperature, like)
            theta, placed, steps = fit_paper(rows, config, generator, report)
        if not np.isfinite(steps[-1]):
            raise FitError(f"the fit diverged: its loss is {steps[-1]}; try another seed, or method fast")
        anchors = _anchors(theta, rows, placed, generator)
        points = _place(probs, theta, anchors, config, report) if config.method == "fast" else _numpy(placed)
    seconds = time.perf_counter() - started
    return MapFit(theta.to_student(), points, _numpy(anchors), float(map_bound(theta)[0]), tuple(steps), seconds)


def place_rows(
    probs: NDArray[np.floating], fitted: MapFit, config: FitConfig | None = None, *, report: Report = silent
) -> Floats:
    """Put rows (n, K) on a finished map by solving each row's own problem: points (n, 2).

    The place of a row depends on the map alone, not on the other rows. This runs in float64 and agrees with the points
    of `fit_map`, which are placed in float32, to about 1e-3 of a unit where the map is not flat.
    """
    config = config or FitConfig()
    if isinstance(fitted.student, SoftmaxStudent):
        return fitted.student.place(probs, config.temperature)
    device = choose_device(config.device)
    theta = Theta.of(fitted.student, device=device, dtype=torch.float64)
    anchors = torch.tensor(fitted.anchors.T[None], device=device, dtype=torch.float64)
    with one_thread(device):
        return _place(probs, theta, anchors, config, report)


def _theta_rows(probs: NDArray[np.floating], config: FitConfig) -> int:
    """How many rows decide θ: the joint step holds some thirty arrays of (K, rows)."""
    return min(config.theta_rows, max(1_000, _LARGEST // int(probs.shape[1])))


def _entropy(probs: NDArray[np.floating], temperature: float) -> Tensor:
    """Entropy of every row, (n,)."""
    found = torch.empty(len(probs), dtype=torch.float64)
    for start in range(0, len(probs), _CHUNK_ROWS):
        rows = _load(probs[start : start + _CHUNK_ROWS], temperature, torch.empty(0))
        found[start : start + len(rows)] = rows.entropy
    return found


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


def _place(probs: NDArray[np.floating], theta: Theta, anchors: Tensor, config: FitConfig, report: Report) -> Floats:
    """Place rows chunk by chunk."""
    bound = map_bound(theta)
    points = np.empty((len(probs), 2))
    for start in range(0, len(probs), _CHUNK_ROWS):
        rows = _load(probs[start : start + _CHUNK_ROWS], config.temperature, anchors)
        found, loss = place(theta, rows, anchors, steps=_NEWTON_STEPS, bound=bound)
        if config.faithful:
            found = place_faithful(theta, rows, found, anchors, steps=_FAITHFUL_STEPS, bound=bound)
        points[start : start + len(rows)] = _numpy(found)
        report(Progress("place", start + len(rows), len(probs), float(loss.mean())))
    return points
