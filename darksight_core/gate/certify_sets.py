"""Prediction sets for the rows that a gate rejects, with their certificate.

Three groups of labelled rows must not share a row: those that certify the threshold, those that choose the penalty λ of
the sets, and those that calibrate the sets. The threshold decides which rows are rejected, so rows that found it are
not exchangeable with new rejected rows. Rows that certified the threshold may choose λ, as neither is promised
anything about the sets. So `certify` draws `SET_SHARE` of the rows by seed to calibrate sets, and the others do the
rest. Sets of a gate that exists have no such rows: there `CHOICE_SHARE` of the rows chooses λ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate, has_set
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.prediction_sets import (
    PredictionSets,
    calibrate_sets,
    choose_penalty,
    class_ranks,
    coverage_range,
    rows_for_sets,
)

__all__ = [
    "CHOICE_SHARE",
    "SET_SHARE",
    "add_sets",
    "in_segments",
    "rejected_rows",
    "sets_for_gate",
    "split_for_sets",
    "worst_class",
]

SET_SHARE = 1.0 / 3.0
"""Share of the rows that calibrate prediction sets, if the other rows certify the threshold."""

CHOICE_SHARE = 1.0 / 4.0
"""Share of the rows that choose the penalty, if the gate was certified on other rows before."""

# Fewest rows of a class whose coverage is stated.
_CLASS_ROWS = 20


def split_for_sets(rows: ScoredPredictions, share: float, seed: int) -> tuple[ScoredPredictions, ScoredPredictions]:
    """A share of the rows, drawn by seed, and the others; ConfigError without labels."""
    if rows.labels is None:
        raise ConfigError("prediction sets need labels, and these rows have none")
    # Not the permutation that draws the rows that choose a score.
    order = np.random.default_rng([seed, 1]).permutation(len(rows))
    first = math.floor(share * len(rows))
    return rows.take(np.sort(order[:first])), rows.take(np.sort(order[first:]))


def sets_for_gate(
    gate: Gate, rows: ScoredPredictions, coverage: float, *, seed: int = 0
) -> tuple[Gate, dict[str, Any]]:
    """A gate that was certified on other rows, with prediction sets calibrated on these; see `add_sets`."""
    choosing, calibrating = split_for_sets(rows, CHOICE_SHARE, seed)
    return add_sets(gate, calibrating, choosing, coverage)


def add_sets(
    gate: Gate, rows: ScoredPredictions, choosing: ScoredPredictions, coverage: float
) -> tuple[Gate, dict[str, Any]]:
    """The gate with prediction sets, and what they promise; without sets if it rejects too few of the rows.

    Parameters
    ----------
    gate
        A gate that these rows have not made.
    rows
        Labelled rows; those that the gate rejects for one of `SET_REASONS` calibrate the sets.
    choosing
        Other labelled rows, which choose the penalty.
    coverage
        Least share of rejected rows whose true class is in the set.
    """
    needed = rows_for_sets(coverage)
    calibrating, other = rejected_rows(gate, rows), rejected_rows(gate, choosing)
    n, share = len(calibrating), len(calibrating) / max(len(rows), 1)
    part: dict[str, Any] = {
        "promise": f"the true class of at least {coverage:.6g} of the rows rejected as OUTLIER or LOW_CONFIDENCE is in "
        "the prediction set, on average over such rows and calibrations",
        "kind": "set_coverage",
        "promised": coverage,
        "delta": None,
        "feasible": n >= needed,
        "n": n,
        "rows": len(rows),
        "rejected_needed": needed,
        "labels_needed": None if n >= needed or n == 0 else math.ceil(needed / share),
        "choosing": len(other),
        "sha256": calibrating.fingerprint()["sha256"],
    }
    if n < needed:
        return replace(gate, sets=None), {
            **part,
            "range": None,
            "penalty": None,
            "mean_size": None,
            "worst_class": None,
        }
    assert calibrating.labels is not None
    assert other.labels is not None
    penalty = choose_penalty(other.log_pi, other.labels, coverage)
    sets = calibrate_sets(calibrating.log_pi, calibrating.labels, coverage, penalty)
    sizes = sets.sizes(calibrating.log_pi)
    part |= {"range": list(coverage_range(n, coverage)), "penalty": penalty, "mean_size": float(sizes.mean())}
    return replace(gate, sets=sets), part | {"worst_class": worst_class(sets, calibrating, other)}


def worst_class(sets: PredictionSets, *rows: ScoredPredictions) -> dict[str, Any] | None:
    """The true class whose rows are covered least, with the share that is; None without a class of 20 rows.

    The promise is about all classes together. The share is of these rows, the smallest of several, and no promise.
    """
    known = [(each.log_pi, each.labels) for each in rows if len(each) and each.labels is not None]
    labels = np.concatenate([given for _, given in known])
    covered = np.concatenate([class_ranks(log_pi, given) < sets.sizes(log_pi) for log_pi, given in known])
    count = np.bincount(labels)
    share = np.bincount(labels, weights=covered) / np.maximum(count, 1)
    enough = np.flatnonzero(count >= _CLASS_ROWS)
    if not len(enough):
        return None
    worst = int(enough[share[enough].argmin()])
    return {"class": worst, "coverage": float(share[worst]), "rows": int(count[worst])}


def rejected_rows(gate: Gate, rows: ScoredPredictions) -> ScoredPredictions:
    """The rows that a gate rejects for one of `SET_REASONS`; regions come after these reasons and change nothing."""
    if not len(rows):
        return rows
    plain = replace(gate, regions=(), sets=None)
    segments = None if rows.segments is None else rows.segments.tolist()
    return rows.take(has_set(plain.decide(rows.log_pi, rows.scores, logits=rows.logits, segments=segments)))


def in_segments(gate: Gate, rows: ScoredPredictions, tags: Mapping[str, Sequence[str]]) -> ScoredPredictions:
    """The rows with the values of the tag by which the thresholds of a gate differ, if it has any; `tags` by key."""
    values = None if gate.segments is None else tags.get(gate.segments.key)
    return replace(rows, segments=None if values is None else np.array(values, dtype=np.str_))
