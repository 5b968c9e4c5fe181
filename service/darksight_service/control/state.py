"""The state of all models: versions, policies and regions, as the audit trail of changes leaves them.

Every replica applies the same changes in the same order and so has the same state. Applying never fails: a change that
is not valid any more, such as the activation of an unknown version, leaves the state as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from darksight_core.errors import ConfigError
from darksight_core.map.regions import MAX_REGIONS, Region
from darksight_service.store.audit import Change

__all__ = ["Deployment", "ModelState", "PolicyOverride", "SavedRegion", "State", "apply_change", "apply_changes"]


# JSON has no infinity, so it is a text that float() reads.
_Threshold = Annotated[float | None, PlainSerializer(str, when_used="unless-none")]


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """Settings of an operator over the gate of a bundle; None keeps that of the bundle.

    Parameters
    ----------
    alpha
        Level of the outlier rule; 0 for no such rule.
    threshold
        Of the reject score; a probability if the score is the log-odds of one.
    fail_open
        Whether rows that could not be scored are accepted.
    metric_tags
        Keys of tags whose segments are metrics.
    log_odds
        The threshold as log-odds, where it is a probability: exact, also next to 1.
    """

    alpha: float | None = None
    threshold: _Threshold = None
    fail_open: bool | None = None
    metric_tags: tuple[str, ...] = ()
    log_odds: _Threshold = None

    def as_dict(self) -> dict[str, Any]:
        """JSON values for the audit trail."""
        found: dict[str, Any] = _POLICY.dump_python(self, mode="json")
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyOverride:
        """Inverse of `as_dict`; other keys are ignored."""
        return _POLICY.validate_python(data)


_POLICY = TypeAdapter(PolicyOverride)


@dataclass(frozen=True, slots=True)
class SavedRegion:
    """A region on the map of a version.

    Parameters
    ----------
    region
        Name, polygon and expiry.
    is_enforced
        Whether the gate rejects inside; else the region is a shadow, which changes no decision.
    author, comment
        Of the operator who saved it.
    id, saved_ms
        Number and time, in Unix milliseconds, of the change that saved it.
    """

    region: Annotated[Region, PlainValidator(Region.from_settings), PlainSerializer(Region.settings)]
    is_enforced: bool = False
    author: str = ""
    comment: str = ""
    id: int = 0
    saved_ms: int = 0

    def has_expired(self, ms: int) -> bool:
        """Whether it has expired at a time, in Unix milliseconds."""
        return 0 < self.region.expires_ms <= ms


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployed version.

    Parameters
    ----------
    path
        Of its file, relative to the bundle directory.
    deployed_ms
        When it was deployed, in Unix milliseconds.
    policy
        Override of this version. A new version starts with its own gate, and a roll-back restores the previous
        decisions exactly.
    regions
        Regions of this version's map, by name; another version has another map.
    evidence_ms
        When its drift evidence was last reset, in Unix milliseconds; 0 for never.
    is_pending
        Whether it has still to be appended to the audit trail: deployed without the store, or lost by a restore.
    gate_ms
        When an override of its thresholds or its enforced regions last changed, in Unix milliseconds; 0 for never.
    """

    path: str
    deployed_ms: int = 0
    policy: PolicyOverride = PolicyOverride()
    regions: Mapping[str, SavedRegion] = field(default_factory=dict)
    evidence_ms: int = 0
    is_pending: bool = False
    gate_ms: int = 0


@dataclass(frozen=True, slots=True)
class ModelState:
    """Versions of one model; `previous` are the versions that were active before, the latest last."""

    active: str = ""
    previous: tuple[str, ...] = ()
    shadow: str = ""
    versions: Mapping[str, Deployment] = field(default_factory=dict)

    def activated(self, version: str) -> ModelState:
        """The state with another version active."""
        if version == self.active or version not in self.versions:
            return self
        previous = (*(each for each in self.previous if each != version), self.active) if self.active else ()
        return replace(
            self, active=version, previous=previous[-16:], shadow="" if self.shadow == version else self.shadow
        )


@dataclass(frozen=True, slots=True)
class State:
    """All models, as the audit trail leaves them.

    Parameters
    ----------
    models
        By name.
    last_change, last_hash
        Number and hash of the last entry of the audit trail that was applied. The hash covers all entries before it, so
        it shows whether the trail is still the one that the state was made from.
    rebuilds
        How often the state was rebuilt because the trail was another one, such as that of a restored database.
    """

    models: Mapping[str, ModelState] = field(default_factory=dict)
    last_change: int = 0
    last_hash: str = ""
    rebuilds: int = 0


def apply_change(state: State, change: Change) -> State:
    """The state after a change."""
    model = _changed(state.models.get(change.model, ModelState()), change)
    models = state.models if not model.versions else {**state.models, change.model: model}
    if change.id <= state.last_change:
        return replace(state, models=models)
    return replace(state, models=models, last_change=change.id, last_hash=change.hash)


def apply_changes(state: State, changes: Iterable[Change]) -> State:
    """The state after the changes that are not in it yet, if they follow its last one without a gap."""
    for change in changes:
        if change.id == state.last_change + 1:
            state = apply_change(state, change)
    return state


def _changed(model: ModelState, change: Change) -> ModelState:
    payload = change.payload
    if change.kind == "deploy":
        version = payload["version"]
        deployment = model.versions.get(version, Deployment(payload["path"], change.changed_ms))
        # Only an entry of the audit trail has a number.
        deployment = replace(deployment, is_pending=change.id == 0)
        model = replace(model, versions={**model.versions, version: deployment})
        return model.activated(version) if payload.get("activate") or not model.active else model
    if change.kind == "activate":
        return model.activated(payload["version"])
    if change.kind == "rollback" and model.previous:
        return replace(model, active=model.previous[-1], previous=model.previous[:-1])
    if change.kind == "shadow" and payload["version"] in ("", *model.versions) and payload["version"] != model.active:
        return replace(model, shadow=payload["version"])
    if change.kind in ("policy", "region", "evidence") and payload["version"] in model.versions:
        before = model.versions[payload["version"]]
        if change.kind == "policy":
            after = replace(before, policy=PolicyOverride.from_dict(payload))
        elif change.kind == "evidence":
            after = replace(before, evidence_ms=change.changed_ms)
        else:
            after = replace(before, regions=_changed_regions(before.regions, change))
        if _accepting(after) != _accepting(before):
            after = replace(after, gate_ms=change.changed_ms)
        return replace(model, versions={**model.versions, payload["version"]: after})
    return model


def _accepting(deployed: Deployment) -> tuple[Any, ...]:
    """What operators changed about which scored rows are accepted."""
    policy, regions = deployed.policy, deployed.regions.values()
    return policy.alpha, policy.threshold, {saved.id for saved in regions if saved.is_enforced}


def _changed_regions(regions: Mapping[str, SavedRegion], change: Change) -> Mapping[str, SavedRegion]:
    """The regions after a change; a name in use stays with its region until that expires."""
    left = dict(regions)
    payload = change.payload
    name, action = payload["region"], payload["action"]
    if action == "save":
        # By the time of the change, not by the clock: every replica must have the same regions. Only where there would
        # be no room: the clock that dated the change may have been ahead.
        expired = [each for each, saved in left.items() if saved.has_expired(change.changed_ms)]
        for each in expired if len(left) >= MAX_REGIONS else set(expired) & {name}:
            left.pop(each)
    if action == "save" and name not in left and len(left) < MAX_REGIONS:
        try:
            region = Region(name, payload["polygon"], payload["expires_ms"])
        except ConfigError:
            return left
        left[name] = SavedRegion(
            region, author=change.author, comment=change.comment, id=change.id, saved_ms=change.changed_ms
        )
    elif action in ("enforce", "shadow") and name in left:
        left[name] = replace(left[name], is_enforced=action == "enforce")
    elif action == "remove":
        left.pop(name, None)
    return left
