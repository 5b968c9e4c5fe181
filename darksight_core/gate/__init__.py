"""The gate: accept or reject scored rows, with a reason and a certificate.

gate                 the rules in order, and the policy that applies them
segment_thresholds   thresholds by the value of a tag
certify              thresholds with a guarantee, chosen on labelled rows
segment_certificate  the same for each value of a tag
certify_sets         prediction sets for rejected rows
attainable           what could be promised instead of an infeasible target
scored_predictions   the rows that a gate is certified on
"""

from __future__ import annotations

from darksight_core.gate.certify import Certification, Targets, certify
from darksight_core.gate.gate import RULES, Gate, accepted_reasons
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.gate.segment_thresholds import SegmentThresholds

__all__ = [
    "RULES",
    "Certification",
    "Gate",
    "ScoredPredictions",
    "SegmentThresholds",
    "Targets",
    "accepted_reasons",
    "certify",
]
