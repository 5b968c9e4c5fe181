"""Damped Newton steps on KL_sym from the better of two starts; see `darksight_core.map.placement`.

Sums over classes are taken for one row at a time where classes are many, and for a block of rows at a time where they
are few: the inner loop is then long enough to work on several numbers at once.
"""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.anchors import MARGIN
from darksight_core.map.placement import BISECTIONS, REST, SLACK
from darksight_core.runtime.arrays import Plane
from darksight_core.runtime.compiled.numerics import Ints, compiled, exponentials, log_and_inverse
from darksight_core.simplex import Floats

__all__ = ["LOG_TOTAL", "LOSS", "descend", "edge", "leads"]

LOSS, LOG_TOTAL, G_X, G_Y, H_XX, H_YY, H_XY, MEAN_X, MEAN_Y, TILT_X, TILT_Y, BEND, MEAN, TOTAL = range(14)
"""What is known at a point: KL_sym, log Σ exp s, gradient and Hessian, and sums on the way to them."""


@compiled
def _look_at_row(x: float, y: float, pi: Floats, log_pi: Floats, plane: Plane, work: Floats, sums: Floats) -> None:
    """Write what is known of one row (K,) at a point to the first column of `sums`; see `placement._look`."""
    theta, power = plane.theta, plane.power
    at_x, at_y, offset, spread, factor = theta[0], theta[1], theta[2], theta[3], theta[4]
    slope, surprise, q, total, top = work[0], work[1], work[2], 0.0, 0.0
    for k in range(len(at_x)):
        gap_x, gap_y = x - at_x[k], y - at_y[k]
        log, inverse = log_and_inverse(gap_x * gap_x + gap_y * gap_y + spread[k])
        slope[k] = -2.0 * power * inverse
        surprise[k] = power * log - offset[k]
        q[k] = factor[k] * slope[k] * slope[k]
    # ν = 2 is the default, and there exp(s) takes no exponential.
    if power != 2.0:
        top = -np.inf
        for k in range(len(at_x)):
            top = max(top, -surprise[k])
        for k in range(len(at_x)):
            q[k] = -surprise[k] - top
        exponentials(q, q)
    for k in range(len(at_x)):
        total += q[k]
    log_total, scale, loss, mean = top + math.log(total), 1.0 / total, 0.0, 0.0
    for k in range(len(at_x)):
        q[k] *= scale
        surprise[k] += log_pi[k] + log_total
        loss += (pi[k] - q[k]) * surprise[k]
        mean += q[k] * surprise[k]
    g_x, g_y, mean_x, mean_y, tilt_x, tilt_y = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    h_xx, h_yy, h_xy, bend, share = 0.0, 0.0, 0.0, 0.0, 1.0 / power
    for k in range(len(at_x)):
        along_x, along_y = slope[k] * (x - at_x[k]), slope[k] * (y - at_y[k])
        tilt = q[k] * (surprise[k] - mean)
        pull = 0.5 * (q[k] - pi[k] - tilt)
        weight = q[k] - 0.5 * tilt + share * pull
        mean_x += q[k] * along_x
        mean_y += q[k] * along_y
        tilt_x += tilt * along_x
        tilt_y += tilt * along_y
        g_x += pull * along_x
        g_y += pull * along_y
        bend += pull * slope[k]
        h_xx += weight * along_x * along_x
        h_yy += weight * along_y * along_y
        h_xy += weight * along_x * along_y
    sums[LOSS, 0], sums[LOG_TOTAL, 0], sums[G_X, 0], sums[G_Y, 0] = 0.5 * loss, log_total, g_x, g_y
    sums[H_XX, 0] = h_xx + bend - mean_x * (mean_x - tilt_x)
    sums[H_YY, 0] = h_yy + bend - mean_y * (mean_y - tilt_y)
    sums[H_XY, 0] = h_xy + 0.5 * (tilt_x * mean_y + tilt_y * mean_x) - mean_x * mean_y


@compiled
def _look_at_block(points: Floats, pis: Floats, logs: Floats, plane: Plane, work: Floats, sums: Floats) -> None:
    """Write what is known of a block of rows (K, n) at points (2, n) to `sums`, (14, n); ν = 2."""
    (classes, n), x, y, power, theta = pis.shape, points[0], points[1], plane.power, plane.theta
    loss, log_total, g_x, g_y, bend = sums[LOSS], sums[LOG_TOTAL], sums[G_X], sums[G_Y], sums[BEND]
    h_xx, h_yy, h_xy, mean, total = sums[H_XX], sums[H_YY], sums[H_XY], sums[MEAN], sums[TOTAL]
    mean_x, mean_y, tilt_x, tilt_y = sums[MEAN_X], sums[MEAN_Y], sums[TILT_X], sums[TILT_Y]
    for j in range(len(sums)):
        for i in range(n):
            sums[j, i] = 0.0
    for k in range(classes):
        slope, surprise, q, log_pi = work[0, k], work[1, k], work[2, k], logs[k]
        at_x, at_y, offset, spread, factor = theta[0, k], theta[1, k], theta[2, k], theta[3, k], theta[4, k]
        for i in range(n):
            gap_x, gap_y = x[i] - at_x, y[i] - at_y
            log, inverse = log_and_inverse(gap_x * gap_x + gap_y * gap_y + spread)
            slope[i] = -2.0 * power * inverse
            surprise[i] = log_pi[i] - offset + power * log
            q[i] = factor * slope[i] * slope[i]
            total[i] += q[i]
    for i in range(n):
        log_total[i], total[i] = log_and_inverse(total[i])
    for k in range(classes):
        surprise, q, pi = work[1, k], work[2, k], pis[k]
        for i in range(n):
            q[i] *= total[i]
            surprise[i] += log_total[i]
            loss[i] += 0.5 * (pi[i] - q[i]) * surprise[i]
            mean[i] += q[i] * surprise[i]
    for k in range(classes):
        slope, surprise, q, pi, at_x, at_y = work[0, k], work[1, k], work[2, k], pis[k], theta[0, k], theta[1, k]
        for i in range(n):
            along_x, along_y = slope[i] * (x[i] - at_x), slope[i] * (y[i] - at_y)
            tilt = q[i] * (surprise[i] - mean[i])
            pull = 0.5 * (q[i] - pi[i] - tilt)
            weight = q[i] - 0.5 * tilt + pull / power
            bend[i] += pull * slope[i]
            mean_x[i] += q[i] * along_x
            mean_y[i] += q[i] * along_y
            tilt_x[i] += tilt * along_x
            tilt_y[i] += tilt * along_y
            g_x[i] += pull * along_x
            g_y[i] += pull * along_y
            h_xx[i] += weight * along_x * along_x
            h_yy[i] += weight * along_y * along_y
            h_xy[i] += weight * along_x * along_y
    for i in range(n):
        h_xx[i] += bend[i] - mean_x[i] * (mean_x[i] - tilt_x[i])
        h_yy[i] += bend[i] - mean_y[i] * (mean_y[i] - tilt_y[i])
        h_xy[i] += 0.5 * (tilt_x[i] * mean_y[i] + tilt_y[i] * mean_x[i]) - mean_x[i] * mean_y[i]


@compiled
def leads(x: float, y: float, label: int, plane: Plane) -> bool:
    """Whether the student predicts a class at a point by `MARGIN`.

    s_l - s_k > margin is d_k exp(b_l / c) > exp(margin / c) d_l exp(b_k / c) with d = |y - μ|² + v, without logarithms.
    """
    at_x, at_y, spread, ratio, rivals = plane.theta[0], plane.theta[1], plane.theta[3], plane.theta[5], 0
    own = (x - at_x[label]) * (x - at_x[label]) + (y - at_y[label]) * (y - at_y[label]) + spread[label]
    own *= math.exp(MARGIN / plane.power) / ratio[label]
    for k in range(len(ratio)):
        gap_x, gap_y = x - at_x[k], y - at_y[k]
        rivals += 1 if gap_x * gap_x + gap_y * gap_y + spread[k] <= own * ratio[k] else 0
    # The class is one of its own rivals.
    return rivals <= 1


@compiled
def edge(inside: Floats, x: float, y: float, label: int, plane: Plane, last: Floats) -> None:
    """Write the last point at which a class leads on the way from an anchor of it (2, 1) to a point, by halving."""
    low, high, from_x, from_y = 0.0, 1.0, inside[0, 0], inside[1, 0]
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if leads(from_x + middle * (x - from_x), from_y + middle * (y - from_y), label, plane):
            low = middle
        else:
            high = middle
    last[0, 0], last[1, 0] = from_x + low * (x - from_x), from_y + low * (y - from_y)


@compiled
def descend(
    points: Floats,
    others: Floats,
    pis: Floats,
    logs: Floats,
    row: Floats,
    log_row: Floats,
    labels: Ints,
    inside: bool,
    plane: Plane,
    here: Floats,
) -> None:
    """Move points (2, n) of rows (K, n) to where their search ends, and write what is known there to `here`, (14, n).

    A single row (K,) stands in `row` and `log_row` alone. Searches start from the better of the points and of `others`.
    Steps after which the student does not predict the label of a row are not taken if the search is to stay inside.
    """
    n, bound, steps = points.shape[1], plane.bound, plane.inside_steps if inside else plane.steps
    work, row_work, there = np.empty((3, *pis.shape)), np.empty((3, len(row))), np.empty((14, n))
    trial, damping, moves = np.empty((2, n)), np.empty(n), np.empty(n, dtype=np.bool_)
    for i in range(n):
        trial[0, i], trial[1, i], here[LOSS, i], damping[i], moves[i] = points[0, i], points[1, i], np.inf, 1e-3, True
    # The first two looks are at the starts.
    for step in range(steps + 2):
        if n == 1:
            _look_at_row(trial[0, 0], trial[1, 0], row, log_row, plane, row_work, there)
        else:
            _look_at_block(trial, pis, logs, plane, work, there)
        moving = 0
        for i in range(n):
            if moves[i]:
                better = there[LOSS, i] < here[LOSS, i] + (SLACK if step > 1 else 0.0)
                if better and inside and step > 1:
                    better = leads(trial[0, i], trial[1, i], labels[i], plane)
                if better:
                    points[0, i], points[1, i] = trial[0, i], trial[1, i]
                    for j in range(H_XY + 1):
                        here[j, i] = there[j, i]
                if step > 1:
                    damping[i] = max(0.2 * damping[i], 1e-6) if better else min(10.0 * damping[i], 1e4)
            if step == 0:
                trial[0, i], trial[1, i] = others[0, i], others[1, i]
                moving += 1
                continue
            g_x, g_y, h_xx, h_yy, h_xy = here[G_X, i], here[G_Y, i], here[H_XX, i], here[H_YY, i], here[H_XY, i]
            middle, half, shift = 0.5 * (h_xx + h_yy), 0.5 * (h_xx - h_yy), damping[i] + 1e-6
            split = max(math.sqrt(half * half + h_xy * h_xy), 1e-20)
            inverse_1, inverse_2 = 1.0 / (abs(middle + split) + shift), 1.0 / (abs(middle - split) + shift)
            even, odd = 0.5 * (inverse_1 + inverse_2), 0.5 * (inverse_1 - inverse_2) / split
            step_x = -(even * g_x + odd * (half * g_x + h_xy * g_y))
            step_y = -(even * g_y + odd * (h_xy * g_x - half * g_y))
            length = max(math.sqrt(step_x * step_x + step_y * step_y), 1e-20)
            factor = min(0.1 * bound / length, 1.0)
            moves[i] = length >= REST * bound
            moving += 1 if moves[i] else 0
            trial[0, i] = min(max(points[0, i] + factor * step_x, -bound), bound)
            trial[1, i] = min(max(points[1, i] + factor * step_y, -bound), bound)
        if moving == 0:
            break
