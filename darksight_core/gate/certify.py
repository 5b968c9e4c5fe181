"""From labelled rows to a gate that says what it promises.

    --alpha             at most α of usual rows are called outliers           calibration rows of the bundle
    --coverage          at least c of rows are accepted, on average           no labels
    --target-accuracy   at least a of accepted rows are right, P >= 1 - δ     Learn-then-Test
    --max-undetected    at most α of all rows are accepted and wrong          conformal risk control

A promise is about the gate as a whole. With an outlier rule beside it, accuracy is that of rows which pass both rules,
and rows that the outlier rule rejects count as rejected in the other two.

Rows that choose must not certify: a score picked because it did well on some rows does well on these rows. So when the
reject score is chosen, or learned, a third of the rows is drawn by seed for that, and the threshold is certified on the
others. The first third also lays down the thresholds to be tested, which makes the certificate exact for any score.

A promise that the rows cannot carry is not made: the gate then lacks that rule, and the certificate says how many
labels it would take.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.gate.gate import LOGIT_SCORES, REJECT_SCORES, Gate
from darksight_core.guarantees.conformal import Cutoff, cutoff
from darksight_core.guarantees.thresholds import (
    Threshold,
    threshold_by_accuracy,
    threshold_by_coverage,
    threshold_by_joint_risk,
)
from darksight_core.predictions import Predictions
from darksight_core.scored import Reason, ScoredBatch
from darksight_core.scores.choice import ScoreChoice, choose_score
from darksight_core.scores.learned import MIN_ROWS, Learned
from darksight_core.simplex import Floats, log_probs

__all__ = ["CHOICE_ROWS", "CHOICE_SHARE", "Certification", "Rules", "ScoredRows", "candidates", "certify"]

Bools: TypeAlias = NDArray[np.bool_]

CHOICE_SHARE = 1.0 / 3.0
"""Share of the rows that choose or learn the reject score; they do not certify."""

CHOICE_ROWS = 100
"""Labelled rows below which nothing is chosen: the score is max-softmax, and all rows certify."""

_DELTA = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Rows with what the served scorer says about them.

    Parameters
    ----------
    log_pi
        Log-probabilities, (n, K).
    scores
        Of the same n rows, all valid.
    errors
        Whether the most probable class is not the label, (n,); None without labels.
    hashes
        `Predictions.row_hashes`, (n,).
    labels
        (n,) int64; None if there are none.
    logits
        (n, K); None if there are none.
    """

    log_pi: Floats
    scores: ScoredBatch
    errors: Bools | None
    hashes: NDArray[np.bytes_]
    labels: NDArray[np.int64] | None
    logits: Floats | None

    @classmethod
    def of(cls, predictions: Predictions, scores: ScoredBatch) -> ScoredRows:
        """Rows from a file, with their scores."""
        errors = None if predictions.labels is None else predictions.probs.argmax(axis=1) != predictions.labels
        logits = None if predictions.logits is None else predictions.logits.astype(np.float64)
        log_pi = log_probs(predictions.probs)
        return cls(log_pi, scores, errors, predictions.row_hashes(), predictions.labels, logits)

    def __len__(self) -> int:
        return len(self.log_pi)

    def take(self, rows: NDArray[np.int64] | Bools) -> ScoredRows:
        """Some of the rows."""
        return ScoredRows(
            self.log_pi[rows],
            self.scores.take(rows),
            None if self.errors is None else self.errors[rows],
            self.hashes[rows],
            None if self.labels is None else self.labels[rows],
            None if self.logits is None else self.logits[rows],
        )

    def fingerprint(self) -> dict[str, Any]:
        """Number and hashes of the rows and labels."""
        labels = None if self.labels is None else np.ascontiguousarray(self.labels, dtype="<i8").tobytes()
        return {
            "n": len(self),
            "sha256": hashlib.sha256(np.ascontiguousarray(self.hashes).tobytes()).hexdigest(),
            "labels_sha256": None if labels is None else hashlib.sha256(labels).hexdigest(),
        }


@dataclass(frozen=True, slots=True)
class Rules:
    """What a gate shall promise: an outlier rule, one of the three reject rules, or both.

    Parameters
    ----------
    alpha
        Most false alarms among usual rows.
    coverage, accuracy, undetected
        Least share of rows accepted, least share of accepted rows right, most rows accepted and wrong.
    delta
        Chance that a promise is broken: of `accuracy`, 0.05 if None, and of `alpha`, which holds on average if None.
    score
        The reject score, or "auto" to choose it.
    seed
        Seed of the split into rows that choose and rows that certify.
    """

    alpha: float | None = None
    coverage: float | None = None
    accuracy: float | None = None
    undetected: float | None = None
    delta: float | None = None
    score: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.coverage, self.accuracy, self.undetected)) > 1:
            raise ConfigError("coverage, target accuracy and undetected failures cannot be promised at once; take one")
        if self.alpha is None and not self.rejects:
            raise ConfigError("nothing to promise: give alpha, coverage, target accuracy or undetected failures")
        if self.delta is not None and self.alpha is None and self.accuracy is None:
            raise ConfigError("delta belongs to alpha or to a target accuracy; the other promises hold on average")
        if self.score not in ("auto", *REJECT_SCORES):
            raise ConfigError(f"score is {self.score!r}; it must be auto or one of {', '.join(REJECT_SCORES)}")

    @property
    def rejects(self) -> bool:
        """Whether there is a rule on confidence."""
        return any(value is not None for value in (self.coverage, self.accuracy, self.undetected))


@dataclass(frozen=True, slots=True, eq=False)
class Certification:
    """A gate with its certificate.

    Parameters
    ----------
    gate
        The policy, of the feasible rules alone.
    certificate
        JSON values: which rows, what is promised by each rule, and what was observed.
    choice
        The table that the reject score was chosen by; None if it was not chosen.
    """

    gate: Gate
    certificate: dict[str, Any]
    choice: ScoreChoice | None

    @property
    def feasible(self) -> bool:
        """Whether every promise that was asked for could be made."""
        return all(part["feasible"] for name in ("outlier", "reject") if (part := self.certificate[name]) is not None)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = () if self.choice is None else self.choice.rows
        table = [
            {"score": row.name, "augrc": row.augrc, "gain": row.gain, "standard_error": row.standard_error,
             "chosen": self.choice is not None and row.name == self.choice.chosen}
            for row in rows
        ]  # fmt: skip
        return {
            "gate": self.gate.settings(),
            "certificate": self.certificate,
            "feasible": self.feasible,
            "table": table,
        }


def certify(rows: ScoredRows, rules: Rules, calibration_rows: int) -> Certification:
    """The gate that keeps `rules`, as far as the rows can show it.

    Parameters
    ----------
    rows
        A fair draw from the traffic to come, unseen by the fit of the map.
    rules
        What to promise.
    calibration_rows
        How many rows the p-values are ranks among.
    """
    if len(rows) == 0 or not rows.scores.valid.all():
        raise ConfigError("a gate is certified on one or more rows, all of them valid")
    outlier = None if rules.alpha is None else cutoff(calibration_rows, rules.alpha, rules.delta)
    gate = Gate(outlier=outlier if outlier is not None and outlier.feasible else None)
    choice, certifying, reject = None, rows, None
    choosing = None
    if rules.rejects:
        choosing, certifying = _split(rows, rules)
        usual = None if choosing is None else choosing.take(~_flags(gate, choosing))
        proposal, choice = _propose(gate, rules, usual)
        threshold = _threshold(proposal, certifying, rules, usual)
        gate = replace(proposal, threshold=threshold.value) if threshold.feasible else gate
        reject = _reject_part(threshold, proposal, choice, certifying)
    observed = _observed(gate, certifying)
    if reject is not None:
        # Of the whole gate, as the threshold by itself knows nothing of the outliers; of no gate if there is none.
        reject |= {name: observed[name] if reject["feasible"] else None for name in ("coverage", "errors_accepted")}
    certificate = {
        "holds_while": "new rows are drawn as these rows were",
        "rows": {
            **rows.fingerprint(),
            "errors": None if rows.errors is None else int(rows.errors.sum()),
            "seed": rules.seed,
            "choosing": 0 if choosing is None else len(choosing),
            "certifying": len(certifying),
        },
        "outlier": None if outlier is None else _outlier_part(outlier, rows),
        "reject": reject,
        "observed": observed,
    }
    return Certification(gate, certificate, choice)


def candidates(rows: ScoredRows, *, seed: int = 0) -> dict[str, Floats]:
    """Reject scores that `auto` chooses among, (n,) each, the learned one by fits that have not seen their row.

    Parameters
    ----------
    rows
        Labelled rows, (n,).
    seed
        Seed of the folds.
    """
    found = {}
    for name in REJECT_SCORES:
        if name != "learned" and name not in LOGIT_SCORES:
            scores = Gate(reject_score=name).reject_scores(rows.log_pi, rows.scores)
            if np.isfinite(scores).all():
                found[name] = scores
    if len(rows) >= 2 * MIN_ROWS and rows.errors is not None:
        densities = {"log_density": rows.scores.log_density, "log_kde": rows.scores.log_kde}
        found["learned"] = Learned.cross_fit(rows.log_pi, ~rows.errors, seed=seed, **densities)
    return found


def _split(rows: ScoredRows, rules: Rules) -> tuple[ScoredRows | None, ScoredRows]:
    """Rows that choose or learn the score, if it is chosen or learned, and rows that certify."""
    if rules.score not in ("auto", "learned"):
        return None, rows
    if rows.errors is None:
        raise ConfigError(
            f"score {rules.score} takes labels, which these rows lack; name another, such as msp", score=rules.score
        )
    if rules.score == "auto" and len(rows) < CHOICE_ROWS:
        return None, rows
    order = np.random.default_rng(rules.seed).permutation(len(rows))
    first = math.floor(CHOICE_SHARE * len(rows))
    if first < MIN_ROWS:
        raise ConfigError(f"a score is learned from {3 * MIN_ROWS} rows or more, not from {len(rows)}")
    return rows.take(np.sort(order[:first])), rows.take(np.sort(order[first:]))


def _propose(gate: Gate, rules: Rules, usual: ScoredRows | None) -> tuple[Gate, ScoreChoice | None]:
    """The gate with its reject score but without a threshold, and the table it was chosen by."""
    if usual is None or usual.errors is None:
        return replace(gate, reject_score="msp" if rules.score == "auto" else rules.score), None
    choice = None if rules.score != "auto" else choose_score(candidates(usual, seed=rules.seed), usual.errors)
    name = rules.score if choice is None else choice.chosen
    learned = None
    if name == "learned":
        densities = {"log_density": usual.scores.log_density, "log_kde": usual.scores.log_kde}
        learned = Learned.fit(usual.log_pi, ~usual.errors, seed=rules.seed, **densities)
    return replace(gate, reject_score=name, learned=learned), choice


def _threshold(gate: Gate, rows: ScoredRows, rules: Rules, usual: ScoredRows | None) -> Threshold:
    """The loosest threshold that keeps the promise for rows that pass the outlier rule too."""
    confidence, flagged = _confidence(gate, rows), _flags(gate, rows)
    if rules.coverage is not None:
        return _threshold_by_coverage(confidence, flagged, rules.coverage, has_outliers=gate.outlier is not None)
    if rows.errors is None:
        raise ConfigError("this promise is about right and wrong predictions, so the rows must have labels")
    if rules.undetected is not None:
        return threshold_by_joint_risk(confidence, rows.errors & ~flagged, rules.undetected)
    assert rules.accuracy is not None
    passed = ~flagged
    if not passed.any():
        raise ConfigError("the outlier rule rejects every row, which leaves none to certify an accuracy on")
    found = threshold_by_accuracy(
        confidence[passed],
        rows.errors[passed],
        rules.accuracy,
        delta=_DELTA if rules.delta is None else rules.delta,
        reference=None if usual is None else _confidence(gate, usual),
    )
    if found.labels_needed is None:
        return found
    return replace(found, labels_needed=math.ceil(found.labels_needed / float(passed.mean())))


def _threshold_by_coverage(confidence: Floats, flagged: Bools, coverage: float, *, has_outliers: bool) -> Threshold:
    """Outliers take the lowest places, so that the rows rejected by either rule are counted together."""
    found = threshold_by_coverage(np.where(flagged, -np.inf, confidence), coverage)
    if not has_outliers or found.value > -math.inf:
        return found
    # All that may be rejected are outliers already, and whether those are not too many is what this cannot promise.
    spare = 1.0 - coverage - float(flagged.mean())
    needed = None if spare <= 0.0 else max(len(flagged) + 1, math.ceil(1.0 / spare))
    return replace(found, value=math.inf, feasible=False, coverage=0.0, labels_needed=needed)


def _confidence(gate: Gate, rows: ScoredRows) -> Floats:
    return gate.reject_scores(rows.log_pi, rows.scores, logits=rows.logits)


def _flags(gate: Gate, rows: ScoredRows) -> Bools:
    if gate.outlier is None:
        return np.zeros(len(rows), dtype=np.bool_)
    return gate.outlier.flags(rows.scores.p_value)


def _outlier_part(outlier: Cutoff, rows: ScoredRows) -> dict[str, Any]:
    sure = "on average over calibrations" if outlier.delta is None else f"with confidence {1.0 - outlier.delta:.6g}"
    return {
        "promise": f"at most {outlier.alpha:.6g} of usual rows are called outliers, {sure}",
        "kind": "false_alarms",
        "promised": outlier.alpha,
        "delta": outlier.delta,
        "n": outlier.n,
        "rank": outlier.rank,
        "p_value": outlier.p_value,
        "feasible": outlier.feasible,
        "rows_needed": None if outlier.feasible else outlier.rows_needed,
        "observed": float(outlier.flags(rows.scores.p_value).mean()),
    }


def _reject_part(
    threshold: Threshold, gate: Gate, choice: ScoreChoice | None, certifying: ScoredRows
) -> dict[str, Any]:
    words = {
        "coverage": f"at least {threshold.promised:.6g} of rows are accepted, on average over calibrations",
        "accuracy": f"at least {threshold.promised:.6g} of accepted rows are right, with confidence "
        f"{1.0 - (threshold.delta or 0.0):.6g}",
        "joint_risk": f"at most {threshold.promised:.6g} of all rows are accepted and wrong, on average over "
        "calibrations",
    }
    facts = threshold.as_dict()
    value = facts.pop("value")
    return {
        "promise": words[threshold.kind],
        **facts,
        "score": gate.reject_score,
        "threshold": value if threshold.feasible else None,
        "chosen_by": None if choice is None else choice.as_dict(),
        "sha256": certifying.fingerprint()["sha256"],
    }


def _observed(gate: Gate, rows: ScoredRows) -> dict[str, Any]:
    """What the finished gate does to the rows that certified it: a description, not a promise."""
    decided = gate.decide(rows.log_pi, rows.scores, logits=rows.logits)
    accepted = decided.accepted
    kept = int(accepted.sum())
    errors = None if rows.errors is None else int((rows.errors & accepted).sum())
    return {
        "coverage": kept / len(rows),
        "errors_accepted": errors,
        "accuracy": None if errors is None or kept == 0 else 1.0 - errors / kept,
        "undetected": None if errors is None else errors / len(rows),
        "outliers": int((decided.reason == Reason.OUTLIER).sum()),
        "low_confidence": int((decided.reason == Reason.LOW_CONFIDENCE).sum()),
    }
