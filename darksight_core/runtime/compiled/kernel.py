"""One pass over a batch: prepare, start, Newton steps, densities, outlier score, rank, gate."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from darksight_core.runtime import arrays
from darksight_core.runtime.arrays import Density, Outlier, Plane, Rule, Start
from darksight_core.runtime.compiled.densities import log_kde
from darksight_core.runtime.compiled.gate import confidence_of, outcome_of
from darksight_core.runtime.compiled.newton import LOG_TOTAL, LOSS, descend, edge, leads
from darksight_core.runtime.compiled.numerics import OPTIONS, count_not_above, two_largest
from darksight_core.runtime.compiled.outlier import gen, outlier_score
from darksight_core.runtime.compiled.prepare import prepare, show
from darksight_core.runtime.compiled.start import best_anchor, guess
from darksight_core.simplex import Floats

__all__ = ["score_rows"]

# Classes from which on a row is worked on alone, and rows that are worked on together where classes are fewer.
_MANY, _BLOCK = 32, 64


def _score_rows(
    probs: Floats,
    points: Floats,
    columns: Floats,
    predicted: NDArray[np.int32],
    outcomes: NDArray[np.int8],
    plane: Plane,
    start: Start,
    density: Density,
    outlier: Outlier,
    calibration: Floats,
    rule: Rule,
) -> int:
    """Score rows (n, n_inputs) and decide on them; the number of rows that are close to the threshold.

    Parameters
    ----------
    probs
        The rows as they came in.
    points, columns, predicted, outcomes
        Where the results go: (n, 2), (7, n), (n,), and decisions and reasons (2, n). A row that cannot be used is NaN
        throughout, and its class is -1.
    plane, start, density, outlier, calibration, rule
        The model and the gate.
    """
    (count, inputs), classes, close = probs.shape, plane.theta.shape[1], 0
    is_whole = classes == inputs and start.temperature == 1.0
    size = max(min(_BLOCK, count), 1) if classes < _MANY and plane.power == 2.0 else 1
    pi, log_pi, row = np.empty((size, inputs)), np.empty((size, inputs)), np.empty(inputs)
    shown, log_shown = np.empty((size, classes)), np.empty((size, classes))
    costs, hidden, labels = (
        np.empty(start.weights.shape[2]),
        np.empty(start.second.shape[1]),
        np.empty(size, dtype=np.int64),
    )
    inside, last, known = np.empty((2, 1)), np.empty((2, 1)), np.empty((14, 1))
    for first in range(0, count, size):
        n = min(size, count - first)
        pis, logs, here = np.empty((classes, n)), np.empty((classes, n)), np.empty((14, n))
        starts, others = np.empty((2, n)), np.empty((2, n))
        for i in range(n):
            valid = prepare(probs[first + i], pi[i], log_pi[i])
            predicted[first + i] = two_largest(pi[i])[0] if valid else -1
            if is_whole:
                for k in range(classes):
                    shown[i, k], log_shown[i, k] = pi[i, k], log_pi[i, k]
            else:
                show(log_pi[i], start.columns, start.temperature, shown[i], log_shown[i])
            for k in range(classes):
                pis[k, i], logs[k, i] = shown[i, k], log_shown[i, k]
            best, least = 0, np.inf
            labels[i], second = two_largest(shown[i])
            for label in (labels[i], second):
                anchor, loss = best_anchor(shown[i], log_shown[i], label, start, costs)
                if loss < least:
                    best, least = anchor, loss
                    starts[0, i], starts[1, i] = start.points[label, best, 0], start.points[label, best, 1]
            if least > start.network_above:
                others[0, i], others[1, i] = guess(shown[i], labels[i], second, start, plane.bound, hidden)
                if least == np.inf:
                    starts[0, i], starts[1, i] = others[0, i], others[1, i]
            else:
                others[0, i], others[1, i] = starts[0, i], starts[1, i]
        descend(starts, others, pis, logs, shown[0], log_shown[0], labels, False, plane, here)
        for i in range(n):
            label = labels[i]
            if not leads(starts[0, i], starts[1, i], label, plane):
                anchor, loss = best_anchor(shown[i], log_shown[i], label, start, costs)
                if loss < np.inf:
                    inside[0, 0], inside[1, 0] = start.points[label, anchor, 0], start.points[label, anchor, 1]
                    edge(inside, starts[0, i], starts[1, i], label, plane, last)
                    descend(inside, last, pis, logs, shown[i], log_shown[i], labels[i:], True, plane, known)
                    starts[0, i], starts[1, i] = inside[0, 0], inside[1, 0]
                    here[LOSS, i], here[LOG_TOTAL, i] = known[LOSS, 0], known[LOG_TOTAL, 0]
        for i in range(n):
            at, label = first + i, predicted[first + i]
            if label < 0:
                points[at, 0] = points[at, 1] = np.nan
                for j in range(len(columns)):
                    columns[j, at] = np.nan
                outcomes[0, at], outcomes[1, at] = rule.table[0, arrays.INVALID], rule.table[1, arrays.INVALID]
                continue
            points[at, 0], points[at, 1] = starts[0, i], starts[1, i]
            log_density, gen_score = here[LOG_TOTAL, i] + density.log_norm, gen(pi[i], label)
            on_map, score = log_kde(points[at, 0], points[at, 1], density), 0.0
            score = outlier_score(log_pi[i], label, gen_score, outlier, row)
            p_value = (1.0 + count_not_above(calibration, score)) / (1.0 + len(calibration))
            confidence = confidence_of(pi[i], log_pi[i], label, gen_score, log_density, on_map, score, rule)
            columns[arrays.LOG_DENSITY, at], columns[arrays.LOG_KDE, at], columns[arrays.FIDELITY, at] = (
                log_density,
                on_map,
                here[LOSS, i],
            )
            columns[arrays.OUTLIER_SCORE, at], columns[arrays.P_VALUE, at] = score, p_value
            columns[arrays.CONFIDENCE, at], columns[arrays.TOP, at] = confidence, pi[i, label]
            outcome = outcome_of(p_value, confidence, rule)
            outcomes[0, at], outcomes[1, at] = rule.table[0, outcome], rule.table[1, outcome]
            close += 1 if abs(confidence - rule.threshold) <= rule.closeness else 0
    return close


score_rows: Any = numba.njit(**OPTIONS)(_score_rows)
