"""The reject score of a row and the decision on it; see `darksight_core.gate.gate`."""

from __future__ import annotations

import math

from darksight_core.rows.simplex import Floats
from darksight_core.runtime.arrays import ACCEPTED, LOW_CONFIDENCE, OUTLIER, UNSCORED, Rule
from darksight_core.runtime.compiled.numerics import compiled
from darksight_core.scores.registry import KERNEL_NUMBERS

_NONE, _MSP = KERNEL_NUMBERS[None], KERNEL_NUMBERS["msp"]


@compiled
def decide(
    pi: Floats, log_pi: Floats, label: int, scores: tuple[float, ...], p_value: float, rule: Rule
) -> tuple[float, int]:
    """The reject score that the rule names, NaN for none, and the outcome as a column of `Rule.table`.

    `scores` are those with numbers above that of max-softmax, which is computed here, in the order of these numbers.
    """
    confidence = math.nan
    if rule.score == _MSP:
        others = 0.0
        for k in range(len(pi)):
            # The sum of the others keeps the digits that 1 - p₁ has not.
            others += pi[k] if k != label else 0.0
        confidence = log_pi[label] - math.log(others)
    elif rule.score != _NONE:
        confidence = scores[rule.score - _MSP - 1]
    if p_value <= rule.p_value:
        return confidence, OUTLIER
    if math.isnan(p_value) or (rule.score != _NONE and math.isnan(confidence)):
        return confidence, UNSCORED
    lowest = rule.lowest[min(label, len(rule.lowest) - 1)]
    return confidence, LOW_CONFIDENCE if rule.score != _NONE and confidence < lowest else ACCEPTED
