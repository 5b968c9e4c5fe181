"""The reject score of a row and the decision on it; see `darksight_core.gate.gate`."""

from __future__ import annotations

import math

from darksight_core.runtime.arrays import ACCEPTED, CONFIDENCES, LOW_CONFIDENCE, OUTLIER, UNSCORED, Rule
from darksight_core.runtime.compiled.numerics import compiled
from darksight_core.simplex import Floats

__all__ = ["confidence_of", "outcome_of"]

_NONE, _MSP, _ENTROPY, _MARGIN, _DOCTOR, _GEN, _LEARNED, _LOG_DENSITY, _LOG_KDE, _OUTLIER_SCORE = range(
    len(CONFIDENCES)
)


@compiled
def outcome_of(p_value: float, confidence: float, rule: Rule) -> int:
    """The outcome for a row that was scored, as a column of `Rule.table`."""
    if p_value <= rule.p_value:
        return OUTLIER
    if math.isnan(p_value) or (rule.score != _NONE and math.isnan(confidence)):
        return UNSCORED
    if rule.score != _NONE and not confidence > rule.threshold:
        return LOW_CONFIDENCE
    return ACCEPTED


@compiled
def confidence_of(
    pi: Floats, log_pi: Floats, label: int, gen: float, log_density: float, log_kde: float, outlier: float, rule: Rule
) -> float:
    """The reject score that the rule names, NaN for none; see `confidence` and `Learned.log_odds`."""
    if rule.score == _NONE:
        return math.nan
    if rule.score == _LOG_DENSITY:
        return log_density
    if rule.score == _LOG_KDE:
        return log_kde
    if rule.score == _OUTLIER_SCORE:
        return outlier
    if rule.score == _GEN:
        return gen
    first, others, second, minus_entropy, squares = pi[label], 0.0, 0.0, 0.0, 0.0
    for k in range(len(pi)):
        # The sum of the others keeps the digits that 1 - p₁ has not.
        p = pi[k] if k != label else 0.0
        others += p
        second = max(second, p)
        minus_entropy += p * log_pi[k]
        squares += p * p
    msp, margin = log_pi[label] - math.log(others), -math.log(others + second)
    minus_entropy += first * (math.log1p(-others) if others < 0.5 else log_pi[label])
    if rule.score == _MSP:
        return float(msp)
    if rule.score == _ENTROPY:
        return float(minus_entropy)
    if rule.score == _MARGIN:
        return float(margin)
    if rule.score == _DOCTOR:
        return float(-(first * others + (others - squares)) / (first * first + squares))
    log_odds = rule.learned[0] + rule.learned[1] * msp + rule.learned[2] * min(msp, rule.learned[3])
    features = (-math.log(max(-minus_entropy, 1e-300)), margin, log_density, log_kde)
    for j in range(len(features)):
        weight, mean, spread = rule.features[0, j], rule.features[1, j], rule.features[2, j]
        if weight != 0.0:
            cut = min(max(features[j], rule.features[3, j]), rule.features[4, j])
            log_odds += weight * (cut - mean) / spread
    return float(log_odds + rule.offsets[label])
