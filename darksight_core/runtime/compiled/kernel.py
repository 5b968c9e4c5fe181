"""One pass over a batch: prepare, start, Newton steps, densities, outlier score, rank, gate."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats
from darksight_core.runtime.arrays import INVALID, Model, Rule
from darksight_core.runtime.compiled.densities import log_kde
from darksight_core.runtime.compiled.gate import decide
from darksight_core.runtime.compiled.newton import LOG_TOTAL, LOSS, descend, edge, leads
from darksight_core.runtime.compiled.numerics import OPTIONS, count_not_above, exponentials, two_largest
from darksight_core.runtime.compiled.outlier import gen, outlier_score
from darksight_core.runtime.compiled.prepare import looks_rounded, prepare
from darksight_core.runtime.compiled.start import find_start, guess
from darksight_core.scores.outlier import TOP_CLASSES

# Rows that are worked on together, and numbers in them: they stay in cache.
_BLOCK, _NUMBERS = 64, 4096


def _score_rows(
    probs: Floats,
    mapped: Floats,
    results: Floats,
    predicted: NDArray[np.int32],
    outcomes: NDArray[np.int8],
    model: Model,
    rule: Rule,
) -> None:
    """Score rows (n, n_inputs) and decide on them.

    `mapped` has their log-probabilities as the map shows them, (n, K), or nothing if it shows them as they are. What is
    found goes to `results` (10, n), `predicted` (n,), and `outcomes` (2, n), decisions over reasons. Of a row that is
    not on the simplex all results are NaN, and its class is -1. The last result is 1 for a row that looks rounded.
    """
    plane, start, density, outlier, calibration = model
    (count, inputs), classes, is_whole = probs.shape, plane.theta.shape[1], len(mapped) == 0
    costs, row, residual = np.empty(start.weights.shape[2]), np.empty(inputs), np.empty(inputs)
    inside, last, there, kept = (
        np.empty((2, 1)),
        np.empty((2, 1)),
        np.empty((14, 1)),
        np.empty(min(inputs, TOP_CLASSES)),
    )
    block = max(min(_BLOCK, _NUMBERS // inputs), 1)
    for first in range(0, count, block):
        n = min(block, count - first)
        pi, log_pi, labels = np.empty((n, inputs)), np.empty((n, inputs)), np.empty(n, dtype=np.int64)
        shown = pi if is_whole else np.empty((n, classes))
        log_shown = log_pi if is_whole else np.empty((n, classes))
        at, others, here = np.empty((2, n)), np.empty((2, n)), np.empty((14, n))
        for i in range(n):
            valid = prepare(probs[first + i], pi[i], log_pi[i])
            labels[i], second = two_largest(pi[i])
            predicted[first + i] = labels[i] if valid else -1
            if not is_whole:
                for k in range(classes):
                    log_shown[i, k] = mapped[first + i, k]
                exponentials(log_shown[i], shown[i])
                labels[i], second = two_largest(shown[i])
            least = find_start(i, shown[i], log_shown[i], labels[i], second, start, costs, at)
            others[0, i], others[1, i] = at[0, i], at[1, i]
            if least > start.network_above:
                others[0, i], others[1, i] = guess(shown[i], labels[i], second, start, plane.bound)
                if least == np.inf:
                    at[0, i], at[1, i] = others[0, i], others[1, i]
        descend(at, others, shown, log_shown, labels, False, plane, here)
        for i in range(n):
            label = labels[i]
            if leads(at[0, i], at[1, i], label, plane):
                continue
            if find_start(0, shown[i], log_shown[i], label, label, start, costs, inside) < np.inf:
                last[0, 0], last[1, 0] = edge(inside[0, 0], inside[1, 0], at[0, i], at[1, i], label, plane)
                one = slice(i, i + 1)
                descend(inside, last, shown[one], log_shown[one], labels[one], True, plane, there)
                at[0, i], at[1, i] = inside[0, 0], inside[1, 0]
                here[LOSS, i], here[LOG_TOTAL, i] = there[LOSS, 0], there[LOG_TOTAL, 0]
        for i in range(n):
            number, label, outcome = first + i, predicted[first + i], INVALID
            found = (np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan)
            if label >= 0:
                x, y, gen_score = at[0, i], at[1, i], gen(pi[i], label, kept)
                log_density, on_map = here[LOG_TOTAL, i] + density.log_norm, log_kde(x, y, density)
                score = outlier_score(log_pi[i], label, gen_score, outlier, row, residual)
                p_value = (1.0 + count_not_above(calibration, score)) / (1.0 + len(calibration))
                scores = (gen_score, log_density, on_map, score)
                confidence, outcome = decide(pi[i], log_pi[i], label, scores, p_value, rule)
                found = (x, y, log_density, on_map, here[LOSS, i], score, p_value, confidence, pi[i, label])
            for j in range(len(found)):
                results[j, number] = found[j]
            results[len(found), number] = 1.0 if looks_rounded(probs[number]) else 0.0
            outcomes[0, number], outcomes[1, number] = rule.table[0, outcome], rule.table[1, outcome]


score_rows: Any = numba.njit(**OPTIONS)(_score_rows)
