"""Damped Newton steps on KL_sym from the better of two starts; see `darksight_core.map.placement`.

Sums over classes are taken for one row at a time where classes are many, and for a block of rows at a time where they
are few: the inner loop is then long enough to work on several numbers at once.
"""

from __future__ import annotations

import math

import numpy as np

from darksight_core.map.anchors import MARGIN
from darksight_core.map.placement import BISECTIONS, REST, SLACK
from darksight_core.rows.simplex import Floats
from darksight_core.runtime.arrays import Plane
from darksight_core.runtime.compiled.numerics import Ints, compiled, exponentials, log_and_inverse

# Classes from which on rows are looked at one by one.
_MANY = 32

LOSS, LOG_TOTAL, G_X, G_Y, H_XX, H_YY, H_XY, MEAN_X, MEAN_Y, TILT_X, TILT_Y, BEND, MEAN, TOTAL = range(14)
"""What is known at a point: KL_sym, log Σ exp s, gradient and Hessian, and sums on the way to them."""


@compiled
def _look_at_row(i: int, points: Floats, pi: Floats, log_pi: Floats, plane: Plane, work: Floats, sums: Floats) -> None:
    """Write what is known of row `i` of rows (n, K) at its point to column `i` of `sums`; see `placement._look`."""
    theta, power, x, y, total, top = plane.theta, plane.power, points[0, i], points[1, i], 0.0, 0.0
    classes = theta.shape[1]
    for k in range(classes):
        gap_x, gap_y = x - theta[0, k], y - theta[1, k]
        log, inverse = log_and_inverse(gap_x * gap_x + gap_y * gap_y + theta[3, k])
        slope = -2.0 * power * inverse
        work[0, k], work[1, k], work[2, k] = slope, power * log - theta[2, k], theta[4, k] * slope * slope
    # ν = 2 is the default, and there exp(s) takes no exponential.
    if power != 2.0:
        top = -np.inf
        for k in range(classes):
            top = max(top, -work[1, k])
        for k in range(classes):
            work[2, k] = -work[1, k] - top
        exponentials(work[2], work[2])
    for k in range(classes):
        total += work[2, k]
    log_total, scale, loss, mean = top + math.log(total), 1.0 / total, 0.0, 0.0
    for k in range(classes):
        q, surprise = scale * work[2, k], work[1, k] + log_pi[i, k] + log_total
        work[2, k], work[1, k] = q, surprise
        loss += 0.5 * (pi[i, k] - q) * surprise
        mean += q * surprise
    g_x, g_y, mean_x, mean_y, tilt_x, tilt_y = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    h_xx, h_yy, h_xy, bend, share = 0.0, 0.0, 0.0, 0.0, 1.0 / power
    for k in range(classes):
        slope, q = work[0, k], work[2, k]
        along_x, along_y = slope * (x - theta[0, k]), slope * (y - theta[1, k])
        tilt = q * (work[1, k] - mean)
        pull = 0.5 * (q - pi[i, k] - tilt)
        weight = q - 0.5 * tilt + share * pull
        bend += pull * slope
        mean_x += q * along_x
        mean_y += q * along_y
        tilt_x += tilt * along_x
        tilt_y += tilt * along_y
        g_x += pull * along_x
        g_y += pull * along_y
        h_xx += weight * along_x * along_x
        h_yy += weight * along_y * along_y
        h_xy += weight * along_x * along_y
    sums[LOSS, i], sums[LOG_TOTAL, i], sums[G_X, i], sums[G_Y, i] = loss, log_total, g_x, g_y
    sums[H_XX, i] = h_xx + bend - mean_x * (mean_x - tilt_x)
    sums[H_YY, i] = h_yy + bend - mean_y * (mean_y - tilt_y)
    sums[H_XY, i] = h_xy + 0.5 * (tilt_x * mean_y + tilt_y * mean_x) - mean_x * mean_y


@compiled
def _look_at_block(points: Floats, pis: Floats, logs: Floats, plane: Plane, work: Floats, sums: Floats) -> None:
    """Write what is known of a block of rows (K, n) at points (2, n) to `sums`, (14, n); ν = 2."""
    (classes, n), power, theta = pis.shape, plane.power, plane.theta
    for j in range(len(sums)):
        for i in range(n):
            sums[j, i] = 0.0
    for k in range(classes):
        at_x, at_y, offset, spread, factor = theta[0, k], theta[1, k], theta[2, k], theta[3, k], theta[4, k]
        for i in range(n):
            gap_x, gap_y = points[0, i] - at_x, points[1, i] - at_y
            log, inverse = log_and_inverse(gap_x * gap_x + gap_y * gap_y + spread)
            slope = -2.0 * power * inverse
            work[0, k, i], work[1, k, i] = slope, logs[k, i] - offset + power * log
            work[2, k, i] = factor * slope * slope
            sums[TOTAL, i] += work[2, k, i]
    for i in range(n):
        sums[LOG_TOTAL, i], sums[TOTAL, i] = log_and_inverse(sums[TOTAL, i])
    for k in range(classes):
        for i in range(n):
            q, surprise = work[2, k, i] * sums[TOTAL, i], work[1, k, i] + sums[LOG_TOTAL, i]
            work[2, k, i], work[1, k, i] = q, surprise
            sums[LOSS, i] += 0.5 * (pis[k, i] - q) * surprise
            sums[MEAN, i] += q * surprise
    for k in range(classes):
        at_x, at_y = theta[0, k], theta[1, k]
        for i in range(n):
            slope, q = work[0, k, i], work[2, k, i]
            along_x, along_y = slope * (points[0, i] - at_x), slope * (points[1, i] - at_y)
            tilt = q * (work[1, k, i] - sums[MEAN, i])
            pull = 0.5 * (q - pis[k, i] - tilt)
            weight = q - 0.5 * tilt + pull / power
            sums[BEND, i] += pull * slope
            sums[MEAN_X, i] += q * along_x
            sums[MEAN_Y, i] += q * along_y
            sums[TILT_X, i] += tilt * along_x
            sums[TILT_Y, i] += tilt * along_y
            sums[G_X, i] += pull * along_x
            sums[G_Y, i] += pull * along_y
            sums[H_XX, i] += weight * along_x * along_x
            sums[H_YY, i] += weight * along_y * along_y
            sums[H_XY, i] += weight * along_x * along_y
    for i in range(n):
        mean_x, mean_y, tilt_x, tilt_y = sums[MEAN_X, i], sums[MEAN_Y, i], sums[TILT_X, i], sums[TILT_Y, i]
        sums[H_XX, i] += sums[BEND, i] - mean_x * (mean_x - tilt_x)
        sums[H_YY, i] += sums[BEND, i] - mean_y * (mean_y - tilt_y)
        sums[H_XY, i] += 0.5 * (tilt_x * mean_y + tilt_y * mean_x) - mean_x * mean_y


@compiled
def leads(x: float, y: float, label: int, plane: Plane) -> bool:
    """Whether the student predicts a class at a point by `MARGIN`.

    s_l - s_k > margin is d_k exp(b_l / c) > exp(margin / c) d_l exp(b_k / c) with d = |y - μ|² + v, without logarithms.
    """
    theta, rivals, own = plane.theta, 0, 0.0
    gap_x, gap_y = x - theta[0, label], y - theta[1, label]
    own = (gap_x * gap_x + gap_y * gap_y + theta[3, label]) * math.exp(MARGIN / plane.power) / theta[5, label]
    for k in range(theta.shape[1]):
        gap_x, gap_y = x - theta[0, k], y - theta[1, k]
        rivals += 1 if gap_x * gap_x + gap_y * gap_y + theta[3, k] <= own * theta[5, k] else 0
    # The class is one of its own rivals.
    return rivals <= 1


@compiled
def edge(from_x: float, from_y: float, x: float, y: float, label: int, plane: Plane) -> tuple[float, float]:
    """The last point at which a class leads on the way from an anchor of it to a point, by halving."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if leads(from_x + middle * (x - from_x), from_y + middle * (y - from_y), label, plane):
            low = middle
        else:
            high = middle
    return from_x + low * (x - from_x), from_y + low * (y - from_y)


@compiled
def descend(
    points: Floats, others: Floats, pi: Floats, log_pi: Floats, labels: Ints, inside: bool, plane: Plane, here: Floats
) -> None:
    """Move points (2, n) of rows (n, K) to where their search ends, and write what is known there to `here`, (14, n).

    Searches start from the better of the points and of `others`. Steps after which the student does not predict the
    label of a row are not taken if the search is to stay inside.
    """
    (n, classes), is_block = pi.shape, pi.shape[0] > 1 and pi.shape[1] < _MANY and plane.power == 2.0
    width = n if is_block else 0
    pis, logs, work = np.empty((classes, width)), np.empty((classes, width)), np.empty((3, classes, width))
    trial, there, damping, lengths = np.empty((2, n)), np.empty((14, n)), np.empty(n), np.empty(n)
    row_work, moves, step = np.empty((3, classes)), np.empty(n, dtype=np.bool_), 0
    for i in range(n):
        trial[0, i], trial[1, i], here[LOSS, i], damping[i], moves[i] = points[0, i], points[1, i], np.inf, 1e-3, True
        if is_block:
            for k in range(classes):
                pis[k, i], logs[k, i] = pi[i, k], log_pi[i, k]
    # The first two looks are at the starts.
    for step in range((plane.inside_steps if inside else plane.steps) + 2):
        if is_block:
            _look_at_block(trial, pis, logs, plane, work, there)
        moving = 0
        for i in range(n):
            if moves[i]:
                if not is_block:
                    _look_at_row(i, trial, pi, log_pi, plane, row_work, there)
                better = there[LOSS, i] < here[LOSS, i] + (SLACK if step > 1 else 0.0)
                if better and inside and step > 1:
                    better = leads(trial[0, i], trial[1, i], labels[i], plane)
                if better:
                    points[0, i], points[1, i] = trial[0, i], trial[1, i]
                    for j in range(H_XY + 1):
                        here[j, i] = there[j, i]
                if step > 1:
                    damping[i] = max(0.2 * damping[i], 1e-6) if better else min(10.0 * damping[i], 1e4)
        if step > 0:
            _propose(points, here, damping, plane.bound, trial, lengths)
        for i in range(n):
            if step == 0:
                # A start that is the same again needs no look.
                trial[0, i], trial[1, i] = others[0, i], others[1, i]
                moves[i] = others[0, i] != points[0, i] or others[1, i] != points[1, i]
            else:
                moves[i] = lengths[i] >= REST * plane.bound
            moving += 1 if moves[i] or step == 0 else 0
        if moving == 0:
            break


@compiled
def _propose(points: Floats, here: Floats, damping: Floats, bound: float, trial: Floats, lengths: Floats) -> None:
    """Write where a damped Newton step from every point ends, and how long it is; see `placement._direction`."""
    for i in range(len(lengths)):
        g_x, g_y, h_xx, h_yy, h_xy = here[G_X, i], here[G_Y, i], here[H_XX, i], here[H_YY, i], here[H_XY, i]
        middle, half, shift = 0.5 * (h_xx + h_yy), 0.5 * (h_xx - h_yy), damping[i] + 1e-6
        split = max(math.sqrt(half * half + h_xy * h_xy), 1e-20)
        inverse_1, inverse_2 = 1.0 / (abs(middle + split) + shift), 1.0 / (abs(middle - split) + shift)
        even, odd = 0.5 * (inverse_1 + inverse_2), 0.5 * (inverse_1 - inverse_2) / split
        step_x = -(even * g_x + odd * (half * g_x + h_xy * g_y))
        step_y = -(even * g_y + odd * (h_xy * g_x - half * g_y))
        lengths[i] = max(math.sqrt(step_x * step_x + step_y * step_y), 1e-20)
        factor = min(0.1 * bound / lengths[i], 1.0)
        trial[0, i] = min(max(points[0, i] + factor * step_x, -bound), bound)
        trial[1, i] = min(max(points[1, i] + factor * step_y, -bound), bound)
