"""Changes to what serves: checked, written to the audit trail in the store, then folded into the state file.

The trail in SQL is the truth that all replicas share. A change is first checked against this replica's state, then
appended, and then everything appended since is folded, here at once and on other replicas by their storage worker
(`sync`). While the database is away nothing can be changed, and everything serves on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darksight_core.bundle import Bundle, read_bundle
from darksight_service.control.regions import Regions
from darksight_service.control.registry import (
    ActiveModel,
    Facts,
    Registry,
    Version,
    deployed_path,
    effective_gate,
    find_version,
    keep_at_hand,
    named_bundle,
    take_in,
)
from darksight_service.control.state import Change, ModelState, PolicyOverride, State, apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.errors import NotFoundError, RefusedError, RequestError

if TYPE_CHECKING:
    from darksight_service.store import DecisionCounts, Store

__all__ = ["Control", "check_name", "check_policy", "deploy_at_start", "record_deployments", "sync"]

_MAX_NAME = 100

_log = logging.getLogger("darksight.control")


class Control:
    """What an operator can do.

    Parameters
    ----------
    registry
        Of this worker; it serves every change when a method returns.
    state_file
        That all processes of the replica share.
    store
        Gives the store, with the audit trail.

    Attributes
    ----------
    regions
        What an analyst can do.
    """

    def __init__(self, registry: Registry, state_file: StateFile, store: Callable[[], Store]) -> None:
        self._registry = registry
        self._file = state_file
        self._store = store
        self.regions = Regions(registry, store, self._record, self._catch_up)

    def model(self, name: str) -> ModelState:
        """The state of a model."""
        found = self._registry.state.models.get(name)
        if found is None:
            raise NotFoundError(f"there is no model {name[:_MAX_NAME]!r}", field="model")
        return found

    def models(self) -> dict[str, ModelState]:
        """The state of all models."""
        return dict(self._registry.state.models)

    def facts(self, model: str, version: str) -> Facts:
        """What is listed of a deployed version."""
        return self._registry.facts(model, version)

    def deploy(self, model: str, path: str, *, activate: bool, author: str) -> str:
        """Add a bundle of the bundle folder; its version."""
        check_name(model)
        # Read and verified before anybody hears of it.
        bundle = self._registry.load(path)
        if activate:
            bundle.get_ready()
        known = self._registry.state.models.get(model)
        if known is not None:
            classes = self._registry.get(model).bundle.class_names
            if classes != bundle.class_names:
                raise RefusedError(
                    f"the bundle is for other classes than model {model!r} has; deploy it under another name"
                )
        self._record("deploy", model, {"version": bundle.version, "path": path, "activate": activate}, author)
        _register(self._store(), model, bundle, bundle.calibration_rows)
        return bundle.version

    def activate(self, model: str, version: str, *, author: str) -> None:
        """Make a version the active one."""
        version = find_version(model, self.model(model), version)
        self._registry.version(model, version).get_ready()
        self._record("activate", model, {"version": version}, author)

    def roll_back(self, model: str, *, author: str) -> None:
        """Make the version before the active one active again."""
        state = self.model(model)
        if not state.previous:
            raise RefusedError(f"model {model!r} has had no other active version to go back to")
        self._registry.version(model, state.previous[-1]).get_ready()
        self._record("rollback", model, {"version": state.previous[-1]}, author)

    def shadow(self, model: str, version: str, *, author: str) -> None:
        """Score with a second version too, or with none if it is empty."""
        state = self.model(model)
        if version:
            version = find_version(model, self.model(model), version)
            if version == state.active:
                raise RefusedError("the active version cannot be its own shadow")
            self._registry.version(model, version).get_ready()
        self._record("shadow", model, {"version": version}, author)

    def set_policy(self, model: str, policy: PolicyOverride, *, author: str, comment: str) -> ActiveModel:
        """Override the gate of the active version; who answers now."""
        active = self._registry.get(model).bundle
        check_policy(active, policy)
        payload = {"version": active.version, **policy.as_dict()}
        self._record("policy", model, payload, author, comment)
        return self._registry.get(model)

    def history(self, model: str) -> Sequence[Change]:
        """Changes of policy, the latest first."""
        return self._store().history(model, kinds=("policy",))

    def dry_run(
        self, model: str, policy: PolicyOverride, since_ms: int, until_ms: int
    ) -> tuple[DecisionCounts, DecisionCounts]:
        """What a policy would have decided on stored points of the active version: counts before and after."""
        serving = self._registry.get(model)
        check_policy(serving.bundle, policy)
        gate, _ = effective_gate(serving.bundle, policy)
        from darksight_service.store import Cutoffs

        cutoffs = Cutoffs(
            outlier=None if gate.outlier is None else gate.outlier.p_value,
            threshold=None if gate.reject_score is None else gate.threshold,
            fail_open=gate.fail_open,
            regions=serving.gate.regions,
        )
        return self._store().dry_run(model, serving.version, cutoffs, since_ms=since_ms, until_ms=until_ms)

    def _catch_up(self) -> None:
        """Fold what other workers and replicas changed, which they may have told the caller already."""
        sync(self._file, self._store())
        self._registry.refresh()

    def _record(self, kind: str, model: str, payload: dict[str, Any], author: str, comment: str = "") -> None:
        self._store().append_change(kind, model, payload, author=author, comment=comment)
        self._catch_up()
        facts = {name: value for name, value in payload.items() if name != "polygon"}
        _log.info(f"{kind}_changed", extra={"model": model, "author": author, **facts})


def check_name(model: str) -> None:
    """Refuse a name that could not stand in a path, a label or a URL."""
    if (
        not 0 < len(model) <= _MAX_NAME
        or not all(char.isalnum() or char in "-_." for char in model)
        or model[0] in "._"
    ):
        raise RequestError(
            f"model: {model[:_MAX_NAME]!r} cannot be a name; use up to {_MAX_NAME} letters, digits, dashes and dots",
            field="model",
        )


def check_policy(bundle: Version, policy: PolicyOverride) -> None:
    """Refuse a policy that cannot be meant for a bundle."""
    if policy.alpha is not None:
        if not 0.0 <= policy.alpha < 1.0:
            raise RequestError(f"policy.alpha: must be between 0 and 1, not {policy.alpha}", field="policy.alpha")
        if 0.0 < policy.alpha < 1.0 / (bundle.calibration_rows + 1):
            raise RequestError(
                f"policy.alpha: with {bundle.calibration_rows:,} calibration rows no p-value is as small as "
                f"{policy.alpha}; use {1.0 / (bundle.calibration_rows + 1):.2g} or more",
                field="policy.alpha",
            )
    if policy.threshold is not None and bundle.gate.reject_score is None:
        raise RequestError(
            "policy.threshold: the bundle has no reject score to cut; darksight calibrate gives it one",
            field="policy.threshold",
        )
    if policy.threshold is not None and (math.isnan(policy.threshold) or policy.threshold == math.inf):
        raise RequestError(f"policy.threshold: {policy.threshold} accepts no row at all", field="policy.threshold")
    effective_gate(bundle, policy)


def sync(state_file: StateFile, store: Store) -> State:
    """Fold what was appended to the audit trail since the last time into the state file."""
    return state_file.update(lambda state: _folded(state, store))


def _folded(state: State, store: Store) -> State:
    while found := store.changes_since(state.last_change):
        for change in found:
            state = apply_change(state, change)
    return state


def record_deployments(state_file: StateFile, store: Store, bundles: Path) -> None:
    """Tell the audit trail of versions that were deployed while the store was away, as they would have been then.

    Other replicas, and those that come later, know of them from here: a policy for a version that the trail has never
    heard of would be passed over.
    """
    trail = _folded(State(), store)
    for name, model in state_file.read().models.items():
        known = trail.models.get(name, ModelState()).versions
        for version, deployment in model.versions.items():
            if version not in known:
                payload = {"version": version, "path": deployment.path, "activate": True}
                store.append_change("deploy", name, payload, author="serve", comment="deployed without the store")
                bundle = read_bundle(deployed_path(bundles, deployment.path, version), verify=False)
                _register(store, name, bundle, len(bundle.calibration))


def deploy_at_start(
    state_file: StateFile, store: Store | None, bundles: Path, models: Sequence[tuple[str, Path]]
) -> State:
    """Serve what the command line names, as far as it is not known yet.

    A version that is known stays as operators left it: a restart must not undo their roll-back. Without a store the
    deployment is in the state file alone until the storage worker finds the store (`record_deployments`).

    Parameters
    ----------
    state_file
        Of the data folder.
    store
        With the audit trail; None while the database is away.
    bundles
        The bundle folder, into which a bundle from elsewhere is copied.
    models
        Names and bundles.
    """
    state = state_file.read() if store is None else sync(state_file, store)
    for name, path in models:
        check_name(name)
        bundle = read_bundle(named_bundle(bundles, path), verify=True)
        assert bundle.path is not None
        known = state.models.get(name)
        if known is not None and bundle.version in known.versions:
            keep_at_hand(bundles, known.versions[bundle.version].path, bundle.path, bundle.version)
            if known.active != bundle.version:
                _log.warning(
                    "active_version_kept", extra={"model": name, "active": known.active, "asked": bundle.version}
                )
            continue
        payload = {
            "version": bundle.version,
            "path": take_in(bundles, bundle.path, bundle.version),
            "activate": True,
        }
        if store is not None:
            store.append_change("deploy", name, payload, author="serve", comment="named on the command line")
            _register(store, name, bundle, len(bundle.calibration))
            state = sync(state_file, store)
        else:
            change = Change("deploy", name, payload, changed_ms=int(time.time() * 1000))
            state = state_file.update(lambda before, change=change: apply_change(before, change))  # type: ignore[misc]  # bound now
    return state


def _register(store: Store, model: str, bundle: Version | Bundle, rows: int) -> None:
    """Tell the store about a bundle before its first point is there."""
    store.register_bundle(model, bundle.version, class_names=bundle.class_names, calibration_rows=rows)
