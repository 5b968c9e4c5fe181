"""The gate: accept a row, or reject it with a reason.

    INVALID          the row is not on the simplex
    OUTLIER          p-value <= k / (n + 1): unusual, at a stated false-alarm rate
    UNSCORED         the p-value or the reject score is missing
    LOW_CONFIDENCE   reject score < threshold: probably wrong, by a certified threshold
    REGION           inside a region of the map that an analyst has marked

`RULES` is this list. A row gets the first reason that applies to it, and a row without a reason is accepted. A stricter
gate, or one with an additional rule, accepts a subset of the rows.

A reject score within a millionth of the threshold equals it and is accepted; see `guarantees.risk_curve`. So rows that
tie with the threshold get the same decision from numpy, from compiled code and from stored float32 columns.

With `class_limits` a row is an OUTLIER if its outlier score is below the limit of its predicted class, which ranks it
within that class.

With `segments` the threshold of a row depends on the value of one of its tags.

A gate that labelled rows have certified has a `resolution`, theirs, and in `levels` a gate for each coarser one: the
same rows, made coarser, have certified it. `at_level` chooses.

With `fail_open` the rule UNSCORED does not reject: such a row is accepted, unless it is inside a region, and its reason
still says UNSCORED.

A row that is rejected as OUTLIER or LOW_CONFIDENCE may get a prediction set (`guarantees.prediction_sets`): these are
the reasons that depend on nothing but the row and the calibrated rules. INVALID and UNSCORED rows have no usable
probabilities, and regions are drawn after the sets were calibrated, so such rows get none.

`darksight_core.gate.certify` chooses the levels and thresholds and states what they guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.gate.segment_thresholds import SegmentThresholds
from darksight_core.guarantees.conformal import Cutoff
from darksight_core.guarantees.prediction_sets import PredictionSets
from darksight_core.guarantees.risk_curve import lowest_accepted
from darksight_core.map.regions import MAX_ENFORCED_CORNERS, Region, inside_any
from darksight_core.rows.resolution import name_of, number_of
from darksight_core.rows.schema import Decision, Reason, ScoredBatch
from darksight_core.rows.simplex import Floats
from darksight_core.scores.confidence import msp
from darksight_core.scores.learned import Learned, densities_of
from darksight_core.scores.registry import REJECT_SCORES, SCORES

__all__ = ["RULES", "SET_REASONS", "Gate", "accepted_reasons", "has_set"]

_RULE = "accept iff score >= threshold"
# Other texts, so that a version that does not know segments or classes refuses the gate.
_SEGMENT_RULE = "accept iff score >= threshold of its segment"
_CLASS_RULE = "accept iff score >= threshold of its predicted class"

RULES = (Reason.INVALID, Reason.OUTLIER, Reason.UNSCORED, Reason.LOW_CONFIDENCE, Reason.REGION)
"""The rules in order: the first that applies to a row gives its reason."""

SET_REASONS = (Reason.OUTLIER, Reason.LOW_CONFIDENCE)
"""Reasons of rows that can have a prediction set."""


def accepted_reasons(fail_open: bool) -> frozenset[Reason]:
    """Reasons with which a row is accepted."""
    return frozenset({Reason.NONE, Reason.UNSCORED} if fail_open else {Reason.NONE})


def has_set(batch: ScoredBatch) -> NDArray[np.bool_]:
    """Which rows get a prediction set if the gate has sets, (n,)."""
    return np.equal(batch.reason, SET_REASONS[0]) | np.equal(batch.reason, SET_REASONS[1])


def _decisions(fail_open: bool) -> NDArray[np.int8]:
    """Decision by number of the reason, (7,)."""
    table = np.full(len(Reason) + 1, Decision.REJECT, dtype=np.int8)
    table[list(accepted_reasons(fail_open))] = Decision.ACCEPT
    return table


_CLOSED, _OPEN = _decisions(False), _decisions(True)


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A policy. Without arguments it accepts every row that can be scored.

    Parameters
    ----------
    outlier
        Level of the p-value at which a row is an outlier; None for no such rule.
    reject_score
        One of `scores.registry.REJECT_SCORES`; None for no rule on confidence.
    threshold
        Reject if reject score < threshold; -inf accepts every score.
    learned
        The model of the reject score "learned".
    fail_open
        Whether rows that could not be scored are accepted.
    regions
        Parts of the map in which rows are rejected.
    segments
        Thresholds that some segments have instead of `threshold`; None if all rows have the same.
    class_limits
        Outlier score below which a row of each predicted class is an outlier, (K,), instead of the p-value among all
        rows; see `class_limits`.
    sets
        Prediction sets of rows that are rejected for one of `SET_REASONS`; None for no sets.
    class_thresholds
        Threshold of each predicted class, (K,), instead of `threshold`; excludes `segments`.
    resolution
        Number of the resolution of the rows that certified the gate; None for a gate of rows of any.
    levels
        Gates that the same rows, made coarser, have certified for other resolutions, by number.
    """

    outlier: Cutoff | None = None
    reject_score: str | None = None
    threshold: float = -math.inf
    learned: Learned | None = None
    fail_open: bool = False
    regions: tuple[Region, ...] = ()
    segments: SegmentThresholds | None = None
    class_limits: Floats | None = None
    sets: PredictionSets | None = None
    class_thresholds: Floats | None = None
    resolution: int | None = None
    levels: Mapping[int, Gate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reject_score not in (None, *REJECT_SCORES):
            raise ConfigError(f"reject score is {self.reject_score!r}; it must be one of {', '.join(REJECT_SCORES)}")
        if math.isnan(self.threshold) or self.threshold == math.inf:
            raise ConfigError(f"threshold is {self.threshold}, which accepts no row; it must be a number or -inf")
        if self.reject_score is None and self.threshold != -math.inf:
            raise ConfigError("a threshold needs a reject score")
        if self.reject_score is None and self.segments is not None:
            raise ConfigError("thresholds of segments need a reject score")
        if self.class_limits is not None:
            limits = np.array(self.class_limits, dtype=np.float64)
            if self.outlier is None or limits.ndim != 1 or len(limits) < 2 or not np.isfinite(limits).all():
                raise ConfigError("limits of classes must be finite, one for each class, beside an outlier rule")
            limits.flags.writeable = False
            object.__setattr__(self, "class_limits", limits)
        if self.class_thresholds is not None:
            thresholds = np.array(self.class_thresholds, dtype=np.float64)
            if self.reject_score is None or self.segments is not None or thresholds.ndim != 1 or len(thresholds) < 2:
                raise ConfigError("thresholds of classes must be one for each class, with a reject score, not segments")
            if not (thresholds < math.inf).all():
                raise ConfigError("a threshold of a class is not a number or accepts no row")
            thresholds.flags.writeable = False
            object.__setattr__(self, "class_thresholds", thresholds)
        if (self.reject_score == "learned") != (self.learned is not None):
            raise ConfigError('the reject score "learned" needs a learned model, and other scores must have none')
        if self.outlier is not None and not 0 < self.outlier.rank <= self.outlier.n:
            raise ConfigError(f"rank of the outlier rule is {self.outlier.rank}; it must be from 1 to {self.outlier.n}")

    @property
    def certified_levels(self) -> tuple[int, ...]:
        """Numbers of the resolutions that the gate is for; none if it is for all."""
        return () if self.resolution is None else (self.resolution, *self.levels)

    def at_level(self, number: int) -> Gate | None:
        """The gate of rows of a resolution, with the outlier level, regions and options of this one.

        None if rows of this resolution have certified no threshold.
        """
        if self.resolution in (None, number):
            return self
        own = self.levels.get(number)
        if own is None:
            return None
        return replace(
            own,
            outlier=self.outlier,
            class_limits=None if self.class_limits is None else own.class_limits,
            fail_open=self.fail_open,
            regions=self.regions,
            sets=None if self.sets is None else own.sets,
        )

    @property
    def lowest_accepted(self) -> float:
        """The reject score below which rows are rejected: the threshold, less a tie."""
        return float(lowest_accepted(self.threshold))

    @property
    def lowest_by_class(self) -> Floats:
        """`lowest_accepted` of each predicted class, (K,); (1,) if all have the same."""
        return lowest_accepted([self.threshold] if self.class_thresholds is None else self.class_thresholds)

    @property
    def needs_logits(self) -> bool:
        """Whether the reject score is computed from the logits of a row."""
        return self.reject_score is not None and SCORES[self.reject_score].needs == "logits"

    def reject_scores(
        self, log_pi: Floats, scores: ScoredBatch, *, logits: Floats | None = None, other: Floats | None = None
    ) -> Floats:
        """The score that is compared with `threshold`, (n,); parameters as in `decide`."""
        name = self.reject_score
        if name is None:
            raise ConfigError("the gate has no reject score")
        if other is not None and name == "msp":
            return msp(log_pi, other)
        if other is not None and other.any():
            raise ConfigError(f"the reject score {name} cannot rank rows with tokens that are no class; use msp")
        if self.learned is not None:
            return self.learned.log_odds(log_pi, **densities_of(scores))
        score = SCORES[name]
        given = {"probs": log_pi, "logits": logits, "map": scores}[score.needs]
        if given is None or score.function is None:
            raise ConfigError(f"the reject score {name} needs logits, and the rows have none")
        return score.function(given)

    def decide(
        self,
        log_pi: Floats,
        scores: ScoredBatch,
        *,
        logits: Floats | None = None,
        segments: Sequence[str] | None = None,
        other: Floats | None = None,
    ) -> ScoredBatch:
        """The same rows with confidence, decision and reason.

        Parameters
        ----------
        log_pi
            Log-probabilities, (n, K); see `simplex.log_probs`. A row that is not valid may hold anything.
        scores
            Scores of the same n rows.
        logits
            (n, K), read if the gate `needs_logits`.
        segments
            Value of the tag by which thresholds differ, for each row; None if no row has it.
        other
            Probability of what is no class, (n,); None if rows have none.
        """
        unscored, confidence = np.isnan(scores.p_value), np.full(len(scores), np.nan)
        applies = {Reason.INVALID: ~scores.valid, Reason.UNSCORED: unscored}
        if self.outlier is not None:
            applies[Reason.OUTLIER] = self.outlier_flags(scores)
        if self.reject_score is not None:
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                found = self.reject_scores(log_pi, scores, logits=logits, other=other)
            np.copyto(confidence, found, where=scores.valid)
            unscored |= np.isnan(confidence)
            applies[Reason.LOW_CONFIDENCE] = confidence < self.lowest(scores.predicted, segments)
        reason = np.full(len(scores), Reason.NONE, dtype=np.int8)
        for rule in reversed(RULES):
            if rule in applies:
                reason[applies[rule]] = rule
        decided = replace(
            scores,
            confidence=confidence,
            decision=self.decisions(reason),
            reason=reason,
            set_size=np.zeros(len(scores), dtype=np.int32),
        )
        self.reject_inside(decided)
        if self.sets is not None:
            chosen = has_set(decided)
            decided.set_size[chosen] = self.sets.sizes(log_pi[chosen])
        return decided

    def outlier_flags(self, scores: ScoredBatch) -> NDArray[np.bool_]:
        """Which rows the outlier rule rejects, (n,)."""
        if self.outlier is None:
            return np.zeros(len(scores), dtype=np.bool_)
        if self.class_limits is None:
            return self.outlier.flags(scores.p_value)
        flags: NDArray[np.bool_] = scores.outlier_score < self.class_limits[scores.predicted.clip(0)]
        return flags & (scores.predicted >= 0)

    def reject_by_class(self, batch: ScoredBatch) -> None:
        """Apply limits of classes to rows that were decided without an outlier rule, in place."""
        if self.class_limits is not None:
            rejected = np.flatnonzero(self.outlier_flags(batch) & (batch.reason != Reason.INVALID))
            batch.decision[rejected], batch.reason[rejected] = Decision.REJECT, Reason.OUTLIER

    def decide_by_segment(self, batch: ScoredBatch, segments: Sequence[str]) -> None:
        """Apply the thresholds of segments to rows that were decided by `threshold`, in place; before `reject_inside`.

        Parameters
        ----------
        batch
            The rows.
        segments
            Value of the tag for each row, empty without it.
        """
        ruled = np.flatnonzero((batch.reason == Reason.NONE) | (batch.reason == Reason.LOW_CONFIDENCE))
        is_low = (batch.confidence < self.lowest(batch.predicted, segments))[ruled]
        batch.reason[ruled] = np.where(is_low, Reason.LOW_CONFIDENCE, Reason.NONE)
        batch.decision[ruled] = self.decisions(batch.reason[ruled])

    def lowest(self, predicted: NDArray[np.integer[Any]], segments: Sequence[str] | None = None) -> Floats:
        """The lowest reject score with which each row is accepted, (n,); `segments` as in `decide`."""
        if self.segments is not None and segments is not None:
            return self.segments.lowest(segments, self.lowest_accepted)
        by_class = self.lowest_by_class
        lowest: Floats = by_class[np.clip(predicted, 0, len(by_class) - 1)]
        return lowest

    def reject_inside(self, batch: ScoredBatch) -> None:
        """Apply the rule REGION, the last one, to the accepted rows, in place."""
        if not self.regions:
            return
        accepted = np.flatnonzero(batch.accepted)
        if len(accepted):
            rejected = accepted[inside_any(self.regions, batch.points[accepted])]
            batch.decision[rejected], batch.reason[rejected] = Decision.REJECT, Reason.REGION

    def decisions(self, reason: NDArray[np.int8]) -> NDArray[np.int8]:
        """Decisions for rows with these reasons, (n,)."""
        return (_OPEN if self.fail_open else _CLOSED)[reason]

    def at(self, ms: int) -> Gate:
        """The gate without the regions that have expired at a time, in Unix milliseconds."""
        left = tuple(region for region in self.regions if not 0 < region.expires_ms <= ms)
        return self if len(left) == len(self.regions) else replace(self, regions=left)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Arrays of the learned scores by name; empty without one."""
        found = {} if self.learned is None else self.learned.tensors()
        for number, gate in self.levels.items():
            found |= {f"{name_of(number)}.{name}": array for name, array in gate.tensors().items()}
        return found

    def settings(self) -> dict[str, Any]:
        """Everything that is not an array, as JSON values; an infinite threshold is a string that float() reads."""
        outlier = self.outlier
        # Present only if there are some, so that a gate without them keeps the bytes of its file.
        regions = {"regions": [region.settings() for region in self.regions]} if self.regions else {}
        sets = {} if self.sets is None else {"sets": self.sets.settings()}
        return {
            "outlier": None
            if outlier is None
            else {
                "alpha": outlier.alpha,
                "delta": outlier.delta,
                "rank": outlier.rank,
                "n": outlier.n,
                "rows_needed": outlier.rows_needed,
                "p_value": outlier.p_value,
                **({} if self.class_limits is None else {"class_limits": self.class_limits.tolist()}),
            },
            "reject": None
            if self.reject_score is None
            else {
                "score": self.reject_score,
                "threshold": str(self.threshold) if math.isinf(self.threshold) else self.threshold,
                "rule": _rule_text(self.segments, self.class_thresholds),
                "learned": None if self.learned is None else self.learned.settings(),
                **({} if self.segments is None else {"segments": self.segments.settings()}),
                **({} if self.class_thresholds is None else {"class_thresholds": _listed(self.class_thresholds)}),
            },
            "fail_open": self.fail_open,
            **regions,
            **sets,
            **({} if self.resolution is None else {"resolution": name_of(self.resolution)}),
            **({} if not self.levels else {"levels": {name_of(n): gate.settings() for n, gate in self.levels.items()}}),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Gate:
        """Inverse of `tensors` and `settings`; ConfigError if a setting is missing or invalid."""
        try:
            outlier, reject, fail_open = settings["outlier"], settings["reject"], settings["fail_open"]
            cutoff = None
            if outlier is not None:
                numbers = {name: outlier[name] for name in ("rank", "n", "alpha", "delta", "rows_needed")}
                cutoff = Cutoff(**numbers)
                if outlier["p_value"] != cutoff.p_value or not 0.0 < cutoff.alpha < 1.0:
                    raise ConfigError("p_value and alpha of the gate's outlier rule do not match its rank and n")
            if not isinstance(fail_open, bool):
                raise ConfigError(f"fail_open of the gate is {fail_open!r}; it must be true or false")
            regions = tuple(Region.from_settings(each) for each in settings.get("regions", ()))
            if sum(len(region.polygon) for region in regions) > MAX_ENFORCED_CORNERS:
                raise ConfigError(f"the regions of the gate have more than {MAX_ENFORCED_CORNERS:,} corners")
            sets = None if "sets" not in settings else PredictionSets.from_settings(settings["sets"])
            listed = None if outlier is None else outlier.get("class_limits")
            limits = None if listed is None else np.array(listed, dtype=np.float64)
            own = number_of(settings["resolution"]) if "resolution" in settings else None
            levels = {
                number_of(name): cls.from_tensors(
                    {key.removeprefix(f"{name}."): each for key, each in tensors.items() if key.startswith(f"{name}.")},
                    given,
                )
                for name, given in settings.get("levels", {}).items()
            }
            gate = cls(cutoff, None, fail_open=fail_open, regions=regions, class_limits=limits, sets=sets)
            gate = replace(gate, resolution=own, levels=levels)
            if reject is None:
                return gate
            table, by_class = reject.get("segments"), reject.get("class_thresholds")
            if reject["rule"] != _rule_text(table, by_class):
                raise ConfigError(f"the gate was certified for the rule {reject['rule']!r}; calibrate the bundle again")
            learned = None if reject["learned"] is None else Learned.from_tensors(tensors, reject["learned"])
            segments = None if table is None else SegmentThresholds.from_settings(table)
            threshold = float(reject["threshold"])
            thresholds = None if by_class is None else np.array([float(each) for each in by_class])
            return replace(
                gate,
                reject_score=reject["score"],
                threshold=threshold,
                learned=learned,
                segments=segments,
                class_thresholds=thresholds,
            )
        except KeyError as missing:
            raise ConfigError(f"the gate has no setting {missing}") from None


def _rule_text(segments: object | None, class_thresholds: object | None) -> str:
    if class_thresholds is not None:
        return _CLASS_RULE
    return _RULE if segments is None else _SEGMENT_RULE


def _listed(thresholds: Floats) -> list[float | str]:
    return [str(each) if math.isinf(each) else each for each in thresholds.tolist()]
