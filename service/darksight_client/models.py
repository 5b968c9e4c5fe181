"""Models, their versions and the policy of the gate, as an operator sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from darksight_client.results import read_time
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
    "read_counts",
    "read_model",
    "read_policy",
    "read_policy_state",
]


@dataclass(frozen=True, slots=True)
class Version:
    """A bundle that the server has for a model.

    Parameters
    ----------
    version
        Its sha256.
    path
        Of the file, in the server's bundle directory.
    class_names
        K names.
    calibration_rows
        Rows behind its p-values.
    deployed_at
        Since when the server has it.
    """

    version: str
    path: str
    class_names: tuple[str, ...]
    calibration_rows: int
    deployed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Model:
    """A watched classifier; versions that do not exist are empty texts.

    Parameters
    ----------
    name
        As calls name it.
    active_version
        What scores.
    previous_version
        What `roll_back` would make active.
    shadow_version
        What scores too, without acting.
    versions
        All of them.
    """

    name: str
    active_version: str
    previous_version: str
    shadow_version: str
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """How the gate decides; None leaves what the bundle says.

    Parameters
    ----------
    alpha
        False-alarm rate at which a row is an outlier; 0 for no such rule.
    threshold
        Accept iff the reject score is above; -inf accepts all.
    fail_open
        Whether a row that could not be scored is accepted.
    """

    alpha: float | None = None
    threshold: float | None = None
    fail_open: bool | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What is in force for the active version, and whether the certificate of its bundle still covers it."""

    policy: Policy
    is_certified: bool


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A policy that was set."""

    changed_at: datetime | None
    author: str
    policy: Policy
    comment: str


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The policy of a model.

    Parameters
    ----------
    policy
        What overrides the bundle.
    effective
        What is in force for the active version.
    reject_score
        The score that the threshold cuts.
    is_certified
        Whether the certificate of the bundle still covers what is in force.
    history
        All changes.
    """

    policy: Policy
    effective: Policy
    reject_score: str
    is_certified: bool
    history: tuple[PolicyChange, ...]


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """Stored points by what a policy decides on them; labelled are those whose right class is known."""

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


@dataclass(frozen=True, slots=True)
class DryRun:
    """What was decided, and what another policy would have decided."""

    before: DecisionCounts
    after: DecisionCounts


def read_model(message: Any) -> Model:
    """A Model from its message."""
    versions = tuple(
        Version(
            version=version.version,
            path=version.path,
            class_names=tuple(version.class_names),
            calibration_rows=version.calibration_rows,
            deployed_at=read_time(version, "deployed_at"),
        )
        for version in message.versions
    )
    return Model(message.name, message.active_version, message.previous_version, message.shadow_version, versions)


def read_policy(message: Any) -> Policy:
    """A Policy from its message."""
    names = ("alpha", "threshold", "fail_open")
    return Policy(**{name: getattr(message, name) for name in names if message.HasField(name)})


def policy_message(policy: Policy) -> Any:
    """The message for a Policy."""
    return admin_pb2.Policy(alpha=policy.alpha, threshold=policy.threshold, fail_open=policy.fail_open)


def read_policy_state(message: Any) -> PolicyState:
    """A PolicyState from a GetPolicyResponse."""
    history = tuple(
        PolicyChange(read_time(change, "changed_at"), change.author, read_policy(change.policy), change.comment)
        for change in message.history
    )
    effective = read_policy(message.effective)
    return PolicyState(read_policy(message.policy), effective, message.reject_score, message.is_certified, history)


def read_counts(message: Any) -> DecisionCounts:
    """DecisionCounts from their message."""
    return DecisionCounts(*(getattr(message, name) for name in DecisionCounts.__slots__))
