"""Models, their versions and gate policies, as the service returns them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from darksight_client.results.messages import read
from darksight_client.stubs.darksight.v1 import admin_pb2

__all__ = [
    "DecisionCounts",
    "DryRun",
    "EffectivePolicy",
    "Model",
    "Policy",
    "PolicyChange",
    "PolicyState",
    "Version",
    "policy_message",
]


@dataclass(frozen=True, slots=True)
class Version:
    """A bundle deployed for a model.

    Parameters
    ----------
    version
        sha256 of the bundle.
    path
        Path of the file, relative to the bundle directory.
    class_names
        Names of the K classes.
    calibration_rows
        Number of calibration rows.
    deployed_at
        When it was deployed.
    """

    version: str
    path: str
    class_names: tuple[str, ...]
    calibration_rows: int
    deployed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Model:
    """A watched classifier. A version that does not exist is an empty string.

    Parameters
    ----------
    name
        Name of the classifier.
    active_version
        The version that scores.
    previous_version
        The version that `roll_back` would activate.
    shadow_version
        The version that also scores, without effect on decisions.
    versions
        All deployed versions.
    """

    name: str
    active_version: str
    previous_version: str
    shadow_version: str
    versions: tuple[Version, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of the active version; none without one."""
        return next((each.class_names for each in self.versions if each.version == self.active_version), ())


@dataclass(frozen=True, slots=True)
class Policy:
    """Parameters of the gate; None keeps the value from the bundle.

    Parameters
    ----------
    alpha
        False-alarm rate of the outlier rule; 0 disables the rule.
    threshold
        Rows are accepted if their reject score is at least this. For msp and learned, which are log-odds, it is the
        probability: at least 0, which accepts all rows, and less than 1. For other scores -inf accepts all rows.
    fail_open
        Whether rows that cannot be scored are accepted.
    metric_tags
        Keys of tags whose segments are metrics.
    log_odds
        The threshold as log-odds, where it is a probability: exact, also next to 1. Set it or `threshold`.
    """

    alpha: float | None = None
    threshold: float | None = None
    fail_open: bool | None = None
    metric_tags: tuple[str, ...] = ()
    log_odds: float | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy in force for the active version.

    Parameters
    ----------
    policy
        The policy.
    is_certified
        Whether the certificate of the bundle covers it.
    loosened
        How it makes the gate accept more rows than before; empty if it does not.
    """

    policy: Policy
    is_certified: bool
    loosened: tuple[str, ...] = ()

    @staticmethod
    def read_message(message: Any) -> dict[str, Any]:
        """Fields that have other names in a SetPolicyResponse."""
        return {"policy": read(Policy, message.effective)}


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """An entry of the audit trail."""

    changed_at: datetime | None
    author: str
    policy: Policy
    comment: str
    loosened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The policy of a model.

    Parameters
    ----------
    policy
        The values that override the bundle.
    effective
        The policy in force for the active version.
    reject_score
        Name of the score that the threshold applies to; empty if the gate has none.
    is_certified
        Whether the certificate of the bundle covers the policy in force.
    history
        Changes of the policy, newest first.
    """

    policy: Policy
    effective: Policy
    reject_score: str
    is_certified: bool
    history: tuple[PolicyChange, ...]


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """Number of points by decision. A point is labelled if its true class is known.

    `stored` points are stored; each counts as the rows that it stands for, more than one if the setting keep_accepted
    leaves rows out.
    """

    points: int
    accepted: int
    outliers: int
    low_confidence: int
    regions: int
    invalid: int
    unscored: int
    accepted_labelled: int
    accepted_correct: int
    rejected_labelled: int
    rejected_correct: int
    stored: int = 0


@dataclass(frozen=True, slots=True)
class DryRun:
    """The decisions that were made, and those of another policy on the same points."""

    before: DecisionCounts
    after: DecisionCounts


def policy_message(policy: Policy) -> Any:
    """The message for a Policy."""
    return admin_pb2.Policy(**dataclasses.asdict(policy))
