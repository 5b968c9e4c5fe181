"""Which models there are, what serves and under which policy: the fold of an append-only list of changes.

Every replica folds the same changes in the same order and so arrives at the same state. Folding never fails: a change
that makes no sense any more, such as an activation of a version that another change removed, leaves the state as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["Change", "Deployment", "ModelState", "PolicyOverride", "State", "apply_change"]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the audit trail.

    Parameters
    ----------
    kind
        `deploy`, `activate`, `rollback`, `shadow` or `policy`.
    model
        Which it concerns.
    payload
        What of it: `version`, and `path` and `activate`, or the fields of a `PolicyOverride`.
    author, comment
        Who and why, as they said.
    id, changed_ms
        Given by the store.
    """

    kind: str
    model: str
    payload: Mapping[str, Any]
    author: str = ""
    comment: str = ""
    id: int = 0
    changed_ms: int = 0


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """What an operator sets over the gate of a bundle; None leaves what the bundle says.

    Parameters
    ----------
    alpha
        Level of the outlier rule; 0 for no such rule.
    threshold
        Of the reject score.
    fail_open
        Whether rows that could not be scored are accepted.
    """

    alpha: float | None = None
    threshold: float | None = None
    fail_open: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it, which has no infinity."""
        return {**asdict(self), "threshold": None if self.threshold is None else str(self.threshold)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyOverride:
        """Inverse of `as_dict`; other keys are ignored."""
        threshold = data["threshold"]
        return cls(data["alpha"], None if threshold is None else float(threshold), data["fail_open"])


@dataclass(frozen=True, slots=True)
class Deployment:
    """A version that may serve.

    Parameters
    ----------
    path
        Of its file, relative to the bundle folder.
    deployed_ms
        Since when, in Unix milliseconds.
    policy
        What was set for this version. A new version starts from its own gate, and a roll-back restores the decisions
        of before to the last bit.
    """

    path: str
    deployed_ms: int = 0
    policy: PolicyOverride = PolicyOverride()


@dataclass(frozen=True, slots=True)
class ModelState:
    """What one model serves; `previous` are the versions that were active before, the latest last."""

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
    """All models, and the last change that is in here."""

    models: Mapping[str, ModelState] = field(default_factory=dict)
    last_change: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        data = asdict(self)
        for name, model in self.models.items():
            for version, deployment in model.versions.items():
                data["models"][name]["versions"][version]["policy"] = deployment.policy.as_dict()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """Inverse of `as_dict`."""
        return cls({name: _model(model) for name, model in data["models"].items()}, int(data["last_change"]))


def _model(data: Mapping[str, Any]) -> ModelState:
    return ModelState(
        active=data["active"],
        previous=tuple(data["previous"]),
        shadow=data["shadow"],
        versions={version: _deployment(deployment) for version, deployment in data["versions"].items()},
    )


def _deployment(data: Mapping[str, Any]) -> Deployment:
    return Deployment(data["path"], data["deployed_ms"], PolicyOverride.from_dict(data["policy"]))


def apply_change(state: State, change: Change) -> State:
    """The state after a change."""
    model = _changed(state.models.get(change.model, ModelState()), change)
    models = state.models if not model.versions else {**state.models, change.model: model}
    return State(models, max(state.last_change, change.id))


def _changed(model: ModelState, change: Change) -> ModelState:
    payload = change.payload
    if change.kind == "deploy":
        version = payload["version"]
        deployment = model.versions.get(version, Deployment(payload["path"], change.changed_ms))
        model = replace(model, versions={**model.versions, version: deployment})
        return model.activated(version) if payload.get("activate") or not model.active else model
    if change.kind == "activate":
        return model.activated(payload["version"])
    if change.kind == "rollback" and model.previous:
        return replace(model, active=model.previous[-1], previous=model.previous[:-1])
    if change.kind == "shadow" and payload["version"] in ("", *model.versions) and payload["version"] != model.active:
        return replace(model, shadow=payload["version"])
    if change.kind == "policy" and payload["version"] in model.versions:
        changed = replace(model.versions[payload["version"]], policy=PolicyOverride.from_dict(payload))
        return replace(model, versions={**model.versions, payload["version"]: changed})
    return model
