"""A gate with a certificate: thresholds chosen on labelled rows, and what they guarantee.

    --alpha             at most α of usual rows are outliers                   calibration rows of the bundle
    --coverage          at least c of the rows are accepted, on average        no labels
    --target-accuracy   at least a of accepted rows are right, P >= 1 - δ      Learn-then-Test
    --max-undetected    at most α of all rows are accepted and wrong           conformal risk control
    --target-precision, --target-recall  of one class, P >= 1 - δ              see `class_targets`
    --sets              the true class of a rejected row is in its set         see `certify_sets`

A guarantee is about the gate as a whole. With an outlier rule, the accuracy is that of rows that pass both rules, and
rows that the outlier rule rejects count as rejected in the other two.

Rows that choose a score must not certify it: a score chosen because it did well on some rows does well on these rows.
So if the reject score is chosen or learned, a third of the rows is drawn by seed for that, and the threshold is
certified on the others. The first third also provides the thresholds to be tested, which makes the certificate exact
for any score.

Labels that choose are missing where they certify, and the choice seldom pays. So `auto` is max-softmax on all rows if
there are fewer than `CHOICE_ROWS`. With more, a coverage or a bound on undetected failures uses the chosen score. For
an accuracy, two thresholds are certified: of max-softmax on all rows with δ_1 = 0.9 δ, and of the chosen score with
δ_2 = 0.1 δ. Both hold with probability 1 - δ_1 - δ_2, so the one that accepts more rows may be taken.

With `by`, each value of a tag whose rows support the target has a threshold of its own, with `per_class` each predicted
class (`segment_certificate`). An accuracy is then certified for max-softmax unless a score is given.

Rows are certified at their resolution, and made coarser at each coarser one that the bundle has (`certify_levels`).

A target that the rows do not support is infeasible: the gate then lacks that rule, and the certificate says how many
labels would be needed and which target they would support (`attainable`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.gate.attainable import attainable_accuracy, attainable_alpha, attainable_coverage, attainable_risk
from darksight_core.gate.certify_sets import SET_SHARE, add_sets, split_for_sets
from darksight_core.gate.class_targets import ClassTarget, certify_class
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.gate.segment_certificate import PREDICTED_CLASS, CertifiedSegments, certify_segments, class_delta
from darksight_core.guarantees.calibration import Calibration
from darksight_core.guarantees.class_conditional import class_limits
from darksight_core.guarantees.conformal import Cutoff, cutoff
from darksight_core.guarantees.thresholds import (
    Threshold,
    threshold_by_accuracy,
    threshold_by_coverage,
    threshold_by_joint_risk,
)
from darksight_core.rows.resolution import name_of
from darksight_core.rows.schema import Reason, ScoredBatch
from darksight_core.rows.simplex import Floats
from darksight_core.scores.choice import ScoreChoice, choose_score
from darksight_core.scores.confidence import msp
from darksight_core.scores.learned import MIN_ROWS, Learned, densities_of
from darksight_core.scores.registry import REJECT_SCORES, map_scores, row_scores

__all__ = [
    "CHOICE_ROWS",
    "CHOICE_SHARE",
    "PROMISES",
    "Certification",
    "Targets",
    "candidates",
    "certify",
    "certify_levels",
]

Bools: TypeAlias = NDArray[np.bool_]

CHOICE_SHARE = 1.0 / 3.0
"""Share of the rows that choose or learn the reject score; the others certify it."""

CHOICE_ROWS = 3_000
"""Labelled rows below which the score is not chosen: it is max-softmax, and all rows certify."""

PROMISES = ("outlier", "reject", "classes", "sets")
"""Parts of a certificate that promise something, if they are there."""

_DELTA = 0.05
# Share of delta for a score that is not max-softmax: the less, the more labels are left to max-softmax.
_CHOICE_DELTA = 0.1


@dataclass(frozen=True, slots=True)
class Targets:
    """What a gate is to guarantee: an outlier rule, one of the three reject rules, or both.

    Parameters
    ----------
    alpha
        Largest share of usual rows that are outliers.
    coverage, accuracy, undetected
        Smallest share of rows accepted; smallest share of accepted rows that are right; largest share of all rows
        that are accepted and wrong.
    delta
        Probability that a guarantee fails: for `accuracy` 0.05 by default; `alpha` holds on average by default.
    score
        The reject score, or "auto" to choose it.
    seed
        Seed of the split into rows that choose the score, rows that certify it and rows that calibrate sets.
    sets
        Least share of rejected rows whose true class is in the prediction set; None for no sets.
    by
        Key of a tag whose values have their own thresholds; None for one threshold.
    per_class
        Whether `accuracy` holds within each predicted class that has enough labels.
    classes
        Precision and recall of classes, in place of the other rules on confidence.
    """

    alpha: float | None = None
    coverage: float | None = None
    accuracy: float | None = None
    undetected: float | None = None
    delta: float | None = None
    score: str = "auto"
    seed: int = 0
    sets: float | None = None
    by: str | None = None
    per_class: bool = False
    classes: tuple[ClassTarget, ...] = ()

    def __post_init__(self) -> None:
        if self.per_class and (self.accuracy is None or self.by is not None):
            raise ConfigError("a promise within each predicted class needs a target accuracy, and excludes segments")
        if self.classes and (self.by is not None or self._has_rule):
            raise ConfigError("a target precision or recall of a class excludes other rules on confidence and segments")
        if self.by is not None and not self._has_rule:
            raise ConfigError("thresholds by segment need a coverage, a target accuracy or undetected failures")
        if sum(value is not None for value in (self.coverage, self.accuracy, self.undetected)) > 1:
            raise ConfigError("coverage, target accuracy and undetected failures exclude each other; give one")
        if self.alpha is None and not self.rejects:
            raise ConfigError("no target: give alpha, coverage, target accuracy or undetected failures")
        if self.delta is not None and self.alpha is None and self.accuracy is None and not self.classes:
            raise ConfigError("delta needs alpha, or a target accuracy, precision or recall; others hold on average")
        if self.score not in ("auto", *REJECT_SCORES):
            raise ConfigError(f"score is {self.score!r}; it must be auto or one of {', '.join(REJECT_SCORES)}")

        if self.sets is not None and not 0.0 < self.sets < 1.0:
            raise ConfigError(f"coverage of prediction sets is {self.sets}; it must be between 0 and 1")

    @property
    def rejects(self) -> bool:
        """Whether there is a rule on confidence."""
        return self._has_rule or bool(self.classes)

    @property
    def _has_rule(self) -> bool:
        """Whether there is a rule on the confidence of rows of all classes."""
        return any(value is not None for value in (self.coverage, self.accuracy, self.undetected))


@dataclass(frozen=True, slots=True, eq=False)
class Certification:
    """A gate with its certificate.

    Parameters
    ----------
    gate
        The gate, with the feasible rules only.
    certificate
        JSON values: which rows, what each rule guarantees, and what was observed.
    choice
        How the reject score was chosen; None if it was given.
    effect
        JSON values: `by_class`, what was observed in each predicted class, and `majority`, the most frequent true class
        of accepted rows with its share, the accuracy of always answering it.
    """

    gate: Gate
    certificate: dict[str, Any]
    choice: ScoreChoice | None
    effect: dict[str, Any] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether all targets are feasible."""
        return all(part["feasible"] for name in PROMISES if (part := self.certificate.get(name)) is not None)

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
            **self.effect,
        }


def certify(
    rows: ScoredPredictions, targets: Targets, calibration_rows: int, classes: Calibration | None = None
) -> Certification:
    """The gate that meets the targets, as far as the rows support them.

    Parameters
    ----------
    rows
        A random sample of future traffic that no step of the fit has used.
    targets
        What to guarantee.
    calibration_rows
        Number of rows among which p-values are ranks.
    classes
        Calibration with predicted classes, for an outlier rule within each class; None for one rule.
    """
    if classes is not None and targets.alpha is None:
        raise ConfigError("an outlier rule within each class needs alpha")
    if len(rows) == 0 or not rows.scores.valid.all():
        raise ConfigError("a gate is certified on at least one row, and all rows must be valid")
    given, for_sets = rows, None
    if targets.sets is not None:
        for_sets, rows = split_for_sets(rows, SET_SHARE, targets.seed)
    outlier = None if targets.alpha is None else cutoff(calibration_rows, targets.alpha, targets.delta)
    gate, pooled = Gate(outlier=outlier if outlier is not None and outlier.feasible else None), None
    if classes is not None and gate.outlier is not None:
        if classes.predicted is None:
            raise ConfigError("the bundle has no classes of its calibration rows; fit it again")
        count, rule = rows.log_pi.shape[1], gate.outlier
        limits, pooled = class_limits(classes.ranked, classes.predicted, count, rule.alpha, rule.delta)
        gate = replace(gate, class_limits=limits)
    found = _reject_rule(gate, rows, targets) if targets.rejects else None
    segments = by_class = None
    if found is not None and targets.classes:
        gate, by_class = _class_rule(found, targets)
    elif found is not None and (targets.by is not None or targets.per_class):
        found, segments = _by_segment(found, targets)
    certifying = rows if found is None else found.certifying
    reject = None if found is None or targets.classes else _reject_part(found)
    if found is not None and reject is not None and found.threshold.feasible:
        gate = replace(found.gate, threshold=found.threshold.value)
    if reject is not None and segments is not None:
        part = "classes" if targets.per_class else "segments"
        reject |= {"promise": segments.promise(reject["promise"]), part: segments.certificate()}
        if reject["feasible"] and segments.own and targets.per_class:
            thresholds = segments.by_class(rows.log_pi.shape[1], gate.threshold)
            gate = replace(gate, class_thresholds=thresholds)
        elif reject["feasible"] and segments.own:
            gate = replace(gate, segments=segments.table())
    decided = _decided(gate, certifying)
    observed = _observed(certifying, decided)
    if reject is not None:
        # Of the whole gate: the threshold alone does not count the outliers.
        reject |= {name: observed[name] if reject["feasible"] else None for name in ("coverage", "errors_accepted")}
    sets = None
    if targets.sets is not None and for_sets is not None:
        gate, sets = add_sets(gate, for_sets, rows, targets.sets)
    certificate = {
        "holds_while": "new rows are drawn as these rows were",
        "rows": {
            **given.fingerprint(),
            "errors": None if given.errors is None else int(given.errors.sum()),
            "seed": targets.seed,
            "choosing": len(rows) - len(certifying),
            "certifying": len(certifying),
            **({} if for_sets is None else {"sets": len(for_sets)}),
        },
        "outlier": None if outlier is None else _outlier_part(outlier, _flags(gate, rows), pooled),
        "reject": reject,
        **({} if by_class is None else {"classes": by_class}),
        "observed": observed,
        **({} if sets is None else {"sets": sets}),
    }
    return Certification(gate, certificate, None if found is None else found.choice, _effect(certifying, decided))


def certify_levels(
    rows: Mapping[int, ScoredPredictions], targets: Targets, calibrations: Mapping[int, Calibration], *, by_class: bool
) -> Certification:
    """The gate of rows of one resolution, and with it those of coarser ones, each certified by the same rows.

    A coarser resolution for which a target is not feasible has no gate, and its rows are ranked at another level.

    Parameters
    ----------
    rows
        The same rows at each resolution, by number, the finest first; see `Scorer.by_resolution`.
    targets
        What to guarantee, at each resolution by itself.
    calibrations
        Calibration of each resolution.
    by_class
        Whether the outlier rule is within each predicted class.
    """
    found = {
        number: certify(each, targets, len(calibrations[number]), calibrations[number] if by_class else None)
        for number, each in rows.items()
    }
    (own, first), *others = found.items()
    levels = {number: each.gate for number, each in others if each.feasible or not first.feasible}
    resolutions = {"resolution": name_of(own), "levels": [name_of(number) for number in levels]}
    return replace(
        first,
        gate=replace(first.gate, resolution=own, levels=levels),
        certificate={**first.certificate, **resolutions},
    )


def candidates(rows: ScoredPredictions, *, seed: int = 0) -> dict[str, Floats]:
    """Reject scores that `auto` chooses from, (n,) each; the learned one is cross-fitted.

    Parameters
    ----------
    rows
        Labelled rows, (n,).
    seed
        Seed of the folds.
    """
    if rows.other is not None and rows.other.any():
        # The other scores do not know what is no class.
        return {"msp": msp(rows.log_pi, rows.other)}
    computed = row_scores(rows.log_pi) | map_scores(rows.scores)
    found = {name: scores for name, scores in computed.items() if np.isfinite(scores).all()}
    if len(rows) >= 2 * MIN_ROWS and rows.errors is not None:
        found["learned"] = Learned.cross_fit(rows.log_pi, ~rows.errors, seed=seed, **densities_of(rows.scores))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _RejectRule:
    """A gate with a reject score, its threshold, the rows that certify it, those that chose it, and how."""

    gate: Gate
    threshold: Threshold
    certifying: ScoredPredictions
    usual: ScoredPredictions | None
    choice: ScoreChoice | None


def _by_segment(found: _RejectRule, targets: Targets) -> tuple[_RejectRule, CertifiedSegments]:
    """The rule with the pooled threshold of rows whose segment has none of its own, and the thresholds of segments."""
    delta = targets.delta or _DELTA
    rows, key, each_delta = found.certifying, targets.by or PREDICTED_CLASS, delta
    if targets.per_class:
        assert targets.accuracy is not None
        predicted = rows.scores.predicted
        each_delta = class_delta(np.bincount(predicted[~_flags(found.gate, rows)]), targets.accuracy, delta)
        rows = replace(rows, segments=predicted.astype(np.str_))
        threshold = _threshold(found.gate, rows, targets, found.usual, each_delta)
        found = replace(found, threshold=replace(threshold, delta=delta))

    def threshold_of(rows: ScoredPredictions) -> Threshold | None:
        if _flags(found.gate, rows).all():
            return None
        return _threshold(found.gate, rows, targets, found.usual, each_delta, finds_attainable=False)

    stated = delta if targets.accuracy is not None else None
    segments, pooled = certify_segments(rows, key, stated, threshold_of)
    if pooled is None:
        return found, segments
    return replace(found, threshold=replace(pooled, delta=stated)), segments


def _class_rule(found: _RejectRule, targets: Targets) -> tuple[Gate, dict[str, Any]]:
    """The gate with thresholds of the classes that have a target, as far as feasible, and their certificate."""
    rows, usual, delta = found.certifying, found.usual, targets.delta or _DELTA
    confidence, flagged = _confidence(found.gate, rows), _flags(found.gate, rows)
    promises = [promise for target in targets.classes for promise in target.promises]
    thresholds, parts = np.full(rows.log_pi.shape[1], -np.inf), []
    for target in targets.classes:
        reference = None
        if usual is not None:
            reference = _confidence(found.gate, usual)[usual.scores.predicted == target.label]
        # All promises hold together.
        each_delta = delta / len(promises)
        thresholds[target.label], part = certify_class(target, rows, confidence, flagged, each_delta, reference)
        parts.append(part)
    return replace(found.gate, class_thresholds=thresholds), {
        "promise": f"{'; '.join(promises)}; with confidence {1.0 - delta:.6g} for all of it",
        "delta": delta,
        "feasible": all(part["feasible"] for part in parts),
        "score": found.gate.reject_score,
        "values": parts,
    }


def _reject_rule(gate: Gate, rows: ScoredPredictions, targets: Targets) -> _RejectRule:
    """The rule on confidence beside the outlier rule of a gate."""
    delta = targets.delta or _DELTA
    if targets.score != "auto":
        return _certified(gate, rows, targets, delta)
    _check_labels(rows, targets)
    plain = replace(targets, score="msp")
    if len(rows) < CHOICE_ROWS or targets.classes:
        return _certified(gate, rows, plain, delta)
    if targets.accuracy is None:
        return _certified(gate, rows, targets, delta)
    if targets.by is not None or targets.per_class:
        return _certified(gate, rows, plain, delta)
    tried = _certified(gate, rows, targets, _CHOICE_DELTA * delta)
    best = _certified(gate, rows, plain, (1.0 - _CHOICE_DELTA) * delta)
    if tried.threshold.coverage > best.threshold.coverage:
        best = tried
    assert tried.choice is not None
    choice = replace(tried.choice, chosen=str(best.gate.reject_score))
    return replace(best, threshold=replace(best.threshold, delta=delta), choice=choice)


def _certified(gate: Gate, rows: ScoredPredictions, targets: Targets, delta: float) -> _RejectRule:
    """The rule that is certified with this delta, for the given score or one that a third of the rows chooses."""
    choosing, certifying = _split(rows, targets)
    usual = None if choosing is None else choosing.take(~_flags(gate, choosing))
    proposal, choice = _propose(gate, targets, usual)
    threshold = _threshold(proposal, certifying, targets, usual, delta)
    return _RejectRule(proposal, threshold, certifying, usual, choice)


def _check_labels(rows: ScoredPredictions, targets: Targets) -> None:
    if rows.errors is None:
        text = f"score {targets.score} needs labels, and these rows have none; give another score, such as msp"
        raise ConfigError(text, score=targets.score)


def _split(rows: ScoredPredictions, targets: Targets) -> tuple[ScoredPredictions | None, ScoredPredictions]:
    """Rows that choose or learn the score, None if it is given, and rows that certify."""
    if targets.score not in ("auto", "learned"):
        return None, rows
    _check_labels(rows, targets)
    order = np.random.default_rng(targets.seed).permutation(len(rows))
    first = math.floor(CHOICE_SHARE * len(rows))
    if first < MIN_ROWS:
        raise ConfigError(f"a learned score needs at least {3 * MIN_ROWS} rows, not {len(rows)}")
    return rows.take(np.sort(order[:first])), rows.take(np.sort(order[first:]))


def _propose(gate: Gate, targets: Targets, usual: ScoredPredictions | None) -> tuple[Gate, ScoreChoice | None]:
    """The gate with its reject score but no threshold yet, and how the score was chosen."""
    if usual is None or usual.errors is None:
        return replace(gate, reject_score=targets.score), None
    choice = None if targets.score != "auto" else choose_score(candidates(usual, seed=targets.seed), usual.errors)
    name = targets.score if choice is None else choice.chosen
    learned = None
    if name == "learned":
        learned = Learned.fit(usual.log_pi, ~usual.errors, seed=targets.seed, **densities_of(usual.scores))
    return replace(gate, reject_score=name, learned=learned), choice


def _threshold(
    gate: Gate,
    rows: ScoredPredictions,
    targets: Targets,
    usual: ScoredPredictions | None,
    delta: float,
    *,
    finds_attainable: bool = True,
) -> Threshold:
    """The loosest threshold that meets the target for rows that pass the outlier rule too."""
    confidence, flagged = _confidence(gate, rows), _flags(gate, rows)
    if targets.classes:
        # Rows of other classes are not rejected.
        return threshold_by_coverage(confidence, 1.0)
    if targets.coverage is not None:
        found = _threshold_by_coverage(confidence, flagged, targets.coverage, has_outliers=gate.outlier is not None)
        return found if found.feasible else replace(found, attainable=attainable_coverage(flagged))
    if rows.errors is None:
        raise ConfigError("a target accuracy or a bound on undetected failures needs labels, and these rows have none")
    if targets.undetected is not None:
        wrong = rows.errors & ~flagged
        found = threshold_by_joint_risk(confidence, wrong, targets.undetected)
        return found if found.feasible else replace(found, attainable=attainable_risk(confidence, wrong))
    assert targets.accuracy is not None
    passed = ~flagged
    if not passed.any():
        raise ConfigError("the outlier rule rejects every row, so there is no row to certify an accuracy on")
    confidence, wrong = confidence[passed], rows.errors[passed]
    reference = None if usual is None else _confidence(gate, usual)
    found = threshold_by_accuracy(confidence, wrong, targets.accuracy, delta=delta, reference=reference)
    if found.feasible:
        return found
    needed = None if found.labels_needed is None else math.ceil(found.labels_needed / float(passed.mean()))
    instead = None
    if finds_attainable:
        instead = attainable_accuracy(confidence, wrong, targets.accuracy, delta, reference)
    return replace(found, labels_needed=needed, attainable=instead)


def _threshold_by_coverage(confidence: Floats, flagged: Bools, coverage: float, *, has_outliers: bool) -> Threshold:
    """Outliers count as the lowest scores, so that rows rejected by either rule are counted together."""
    found = threshold_by_coverage(np.where(flagged, -np.inf, confidence), coverage)
    if not has_outliers or found.value > -math.inf:
        return found
    # The outliers alone use up the rows that may be rejected, and their number is not guaranteed here.
    spare = 1.0 - coverage - float(flagged.mean())
    needed = None if spare <= 0.0 else max(len(flagged) + 1, math.ceil(1.0 / spare))
    return replace(found, value=math.inf, feasible=False, coverage=0.0, labels_needed=needed)


def _confidence(gate: Gate, rows: ScoredPredictions) -> Floats:
    return gate.reject_scores(rows.log_pi, rows.scores, logits=rows.logits, other=rows.other)


def _flags(gate: Gate, rows: ScoredPredictions) -> Bools:
    return gate.outlier_flags(rows.scores)


def _outlier_part(outlier: Cutoff, flags: Bools, pooled: Bools | None) -> dict[str, Any]:
    sure = "on average over calibrations" if outlier.delta is None else f"with confidence {1.0 - outlier.delta:.6g}"
    promise = f"at most {outlier.alpha:.6g} of usual rows are outliers, {sure}"
    by_class = {}
    if pooled is not None:
        own = int((~pooled).sum())
        promise = f"within each of {own} of {len(pooled)} predicted classes separately, {promise}"
        by_class = {"by_class": {"own": own, "pooled": np.flatnonzero(pooled).tolist()}}
    return {
        "promise": promise,
        "kind": "false_alarms",
        "promised": outlier.alpha,
        "delta": outlier.delta,
        "n": outlier.n,
        "rank": outlier.rank,
        "p_value": outlier.p_value,
        "feasible": outlier.feasible,
        "rows_needed": None if outlier.feasible else outlier.rows_needed,
        "attainable": None if outlier.feasible else attainable_alpha(outlier.n, outlier.delta),
        "observed": float(flags.mean()),
        **by_class,
    }


def _reject_part(found: _RejectRule) -> dict[str, Any]:
    threshold = found.threshold
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
        "score": found.gate.reject_score,
        "threshold": value if threshold.feasible else None,
        "chosen_by": None if found.choice is None else found.choice.as_dict(),
        "sha256": found.certifying.fingerprint()["sha256"],
    }


def _decided(gate: Gate, rows: ScoredPredictions) -> ScoredBatch:
    segments = None if rows.segments is None else rows.segments.tolist()
    return gate.decide(rows.log_pi, rows.scores, logits=rows.logits, segments=segments, other=rows.other)


def _observed(rows: ScoredPredictions, decided: ScoredBatch) -> dict[str, Any]:
    """What the gate decided on these rows; not a guarantee."""
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


def _effect(rows: ScoredPredictions, decided: ScoredBatch) -> dict[str, Any]:
    """The same by predicted class, and the most frequent true class of accepted rows with its share."""
    by_class, majority = [], None
    for label in np.unique(decided.predicted).tolist():
        own = decided.predicted == label
        by_class.append({"class": label, "rows": int(own.sum()), **_observed(rows.take(own), decided.take(own))})
    if rows.labels is not None and decided.accepted.any():
        counts = np.bincount(rows.labels[decided.accepted])
        majority = {"class": int(counts.argmax()), "share": float(counts.max() / counts.sum())}
    return {"by_class": by_class, "majority": majority}
