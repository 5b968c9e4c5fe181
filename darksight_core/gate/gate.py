"""The gate: accept a row, or reject it with a reason.

    INVALID          the row is not on the simplex
    OUTLIER          p-value <= k / (n + 1): unusual, at a false-alarm rate that was promised
    UNSCORED         a score is missing
    LOW_CONFIDENCE   reject score <= threshold: likely wrong, by a threshold that was certified
    REGION           inside a part of the map where an analyst refuses

A row gets the first reason of this list that applies. Rules only ever take acceptance away: a gate with one rule more,
or a stricter one, accepts a part of the rows and never another row. The one exception is asked for by name:
`fail_open` accepts what could not be scored and is rejected for no other reason, and still says UNSCORED; of these, a
row that has a point inside a region is refused for it.

What a rule promises, and on which rows that was established, is made in `darksight_core.gate.certify`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import Cutoff
from darksight_core.map.regions import Region, inside_any
from darksight_core.scored import Scores
from darksight_core.scores.confidence import SCORES
from darksight_core.scores.learned import Learned
from darksight_core.simplex import Floats

__all__ = ["LOGIT_SCORES", "REJECT_SCORES", "Decision", "Decisions", "Gate", "Reason"]

_ROWS = ("msp", "entropy", "margin", "doctor", "gen")
_COLUMNS = ("log_density", "log_kde", "combined")

LOGIT_SCORES = ("max_logit", "energy")
"""Reject scores for which every request must bring its logits."""

REJECT_SCORES = (*_ROWS, *_COLUMNS, "learned", *LOGIT_SCORES)
"""Scores that a gate can cut; for all of them higher is surer."""


class Decision(IntEnum):
    """What to do with a row; zero is left for "not set" on the wire."""

    ACCEPT = 1
    REJECT = 2


class Reason(IntEnum):
    """Why; see the module."""

    NONE = 1
    OUTLIER = 2
    LOW_CONFIDENCE = 3
    REGION = 4
    INVALID = 5
    UNSCORED = 6


# As numbers of numpy: a member of an enum takes a microsecond to convert, which counts for a single row.
_NONE, _OUTLIER, _LOW_CONFIDENCE, _REGION, _INVALID, _UNSCORED = (np.int8(reason) for reason in Reason)
_ACCEPT, _REJECT = (np.int8(decision) for decision in Decision)


def _decisions(accepted: set[Reason]) -> NDArray[np.int8]:
    """Decision by number of the reason, (7,)."""
    table = np.full(len(Reason) + 1, Decision.REJECT, dtype=np.int8)
    table[list(accepted)] = Decision.ACCEPT
    return table


_CLOSED = _decisions({Reason.NONE})
_OPEN = _decisions({Reason.NONE, Reason.UNSCORED})


# Not frozen: that takes a microsecond more to make, in the request path.
@dataclass(slots=True, eq=False)
class Decisions:
    """Outcome for n rows, as columns.

    Parameters
    ----------
    decision
        `Decision` of each row, (n,) int8.
    reason
        `Reason` of each row, (n,) int8.
    """

    decision: NDArray[np.int8]
    reason: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.decision)

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Which rows may be acted on, (n,)."""
        return np.equal(self.decision, Decision.ACCEPT)


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A policy; the one without arguments accepts every row that can be scored.

    Parameters
    ----------
    outlier
        Level of the p-value at which a row is an outlier, on average or with confidence; None for no such rule.
    reject_score
        One of `REJECT_SCORES`; None for no rule on confidence.
    threshold
        Accept iff reject score > threshold; -inf accepts all.
    learned
        The model behind the reject score "learned".
    fail_open
        Whether rows that could not be scored are accepted.
    regions
        Where rows are refused that all other rules accept.
    """

    outlier: Cutoff | None = None
    reject_score: str | None = None
    threshold: float = -math.inf
    learned: Learned | None = None
    fail_open: bool = False
    regions: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        if self.reject_score not in (None, *REJECT_SCORES):
            raise ConfigError(f"reject score {self.reject_score!r} is none of {', '.join(REJECT_SCORES)}")
        if math.isnan(self.threshold) or self.threshold == math.inf:
            raise ConfigError(f"a threshold of {self.threshold} accepts no row at all")
        if self.reject_score is None and self.threshold != -math.inf:
            raise ConfigError("a threshold needs a reject score")
        if (self.reject_score == "learned") != (self.learned is not None):
            raise ConfigError('the reject score "learned" and its model must come together')
        if self.outlier is not None and not 0 < self.outlier.rank <= self.outlier.n:
            raise ConfigError("an outlier rule that can never or only ever reject is no rule")

    def reject_scores(self, log_pi: Floats, scores: Scores, *, logits: Floats | None = None) -> Floats:
        """The score that `threshold` cuts, (n,); parameters as in `decide`."""
        name = self.reject_score
        if name is None:
            raise ConfigError("the gate has no rule on confidence, so there is no reject score")
        if name in _COLUMNS:
            column: Floats = getattr(scores, name)
            return column
        if self.learned is not None:
            return self.learned.log_odds(log_pi, log_density=scores.log_density, log_kde=scores.log_kde)
        if name in LOGIT_SCORES:
            if logits is None:
                raise ConfigError(f"the gate cuts {name}, so rows must come with their logits")
            log_pi = logits
        return SCORES[name].of(log_pi)

    def decide(self, log_pi: Floats, scores: Scores, *, logits: Floats | None = None) -> Decisions:
        """Decide on rows.

        Parameters
        ----------
        log_pi
            Log-probabilities, (n, K); see `simplex.log_probs`. A row that is not valid may hold anything.
        scores
            What the scorer says about them, of n rows.
        logits
            (n, K), needed if the reject score is one of `LOGIT_SCORES`.
        """
        unscored = np.isnan(scores.p_value)
        reason: NDArray[np.int8] = np.where(unscored, _UNSCORED, _NONE)
        if self.reject_score is not None:
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                confidence = self.reject_scores(log_pi, scores, logits=logits)
            unscored |= np.isnan(confidence)
            reason = np.where(unscored, _UNSCORED, np.where(confidence > self.threshold, _NONE, _LOW_CONFIDENCE))
        if self.outlier is not None:
            reason[self.outlier.flags(scores.p_value)] = _OUTLIER
        reason[~scores.valid] = _INVALID
        decisions = self.by_reason(reason)
        self.refuse_inside(decisions, scores.points)
        return decisions

    def refuse_inside(self, decisions: Decisions, points: Floats) -> None:
        """Turn the accepted rows whose points (n, 2) are inside a region into rejected ones, in place."""
        if not self.regions:
            return
        accepted = np.flatnonzero(decisions.decision == _ACCEPT)
        if len(accepted):
            refused = accepted[inside_any(self.regions, points[accepted])]
            decisions.decision[refused], decisions.reason[refused] = _REJECT, _REGION

    def at(self, ms: int) -> Gate:
        """The gate without regions that have ended at a time, in Unix milliseconds."""
        left = tuple(region for region in self.regions if not 0 < region.expires_ms <= ms)
        return self if len(left) == len(self.regions) else replace(self, regions=left)

    def unscored(self, n: int) -> Decisions:
        """The decisions on n rows that the scorer could not be asked about."""
        return self.by_reason(np.full(n, _UNSCORED))

    def by_reason(self, reason: NDArray[np.int8]) -> Decisions:
        """The decisions on rows for which these reasons apply, (n,)."""
        return Decisions((_OPEN if self.fail_open else _CLOSED)[reason], reason)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of the learned score by name, if there is one."""
        return {} if self.learned is None else self.learned.tensors()

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON knows it; an infinite threshold is a text that float() reads."""
        outlier = self.outlier
        # Named only where there are some, so that the file of a gate without them is the same as ever.
        regions = {"regions": [region.settings() for region in self.regions]} if self.regions else {}
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
            },
            "reject": None
            if self.reject_score is None
            else {
                "score": self.reject_score,
                "threshold": str(self.threshold) if math.isinf(self.threshold) else self.threshold,
                "rule": "accept iff score > threshold",
                "learned": None if self.learned is None else self.learned.settings(),
            },
            "fail_open": self.fail_open,
            **regions,
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Gate:
        """Inverse of `tensors` and `settings`; ConfigError if they do not make a gate."""
        try:
            outlier, reject, fail_open = settings["outlier"], settings["reject"], settings["fail_open"]
            cutoff = None
            if outlier is not None:
                numbers = {name: outlier[name] for name in ("rank", "n", "alpha", "delta", "rows_needed")}
                cutoff = Cutoff(**numbers)
                if outlier["p_value"] != cutoff.p_value or not 0.0 < cutoff.alpha < 1.0:
                    raise ConfigError("the outlier rule of the gate contradicts itself")
            if not isinstance(fail_open, bool):
                raise ConfigError("fail_open of the gate must be true or false")
            regions = tuple(Region.from_settings(each) for each in settings.get("regions", ()))
            if reject is None:
                return cls(outlier=cutoff, fail_open=fail_open, regions=regions)
            learned = None if reject["learned"] is None else Learned.from_tensors(tensors, reject["learned"])
            return cls(cutoff, reject["score"], float(reject["threshold"]), learned, fail_open, regions)
        except KeyError as missing:
            raise ConfigError(f"the gate lacks {missing}") from None
