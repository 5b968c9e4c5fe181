"""Changes of models and policies: checked, appended to the audit trail in SQL, then applied to the state file.

All replicas share the audit trail. A change is checked against the state of this replica and appended; then all entries
since the last sync are applied, here at once and on other replicas by their storage worker (`sync`). While the database
is unavailable nothing can be changed, and scoring continues. After the database was restored from a backup, the state
is rebuilt from the restored trail.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import DarkSightError
from darksight_core.gate.gate import Gate
from darksight_core.rows.tags import is_key
from darksight_core.scores.registry import SCORES, threshold_text
from darksight_service.control.bundle_files import (
    bundle_path,
    copy_bundle,
    copy_path,
    find_bundle,
    read_signed,
    read_version,
    relative_path,
)
from darksight_service.control.regions import Regions
from darksight_service.control.registry import (
    ActiveModel,
    Facts,
    Registry,
    Version,
    effective_gate,
    find_version,
    gate_of,
)
from darksight_service.control.signatures import SignatureKey, signature_path
from darksight_service.control.state import Deployment, ModelState, PolicyOverride, State, apply_change, apply_changes
from darksight_service.control.state_file import StateFile
from darksight_service.errors import AuditError, NotFoundError, RefusedError, RequestError
from darksight_service.settings.validation import check_text
from darksight_service.store.audit import Change

if TYPE_CHECKING:
    # Loaded when a call needs it: SQLAlchemy takes 27 MB of a worker.
    from darksight_service.store.read.policy_evaluation import DecisionCounts
    from darksight_service.store.store import Store

__all__ = [
    "Control",
    "check_gates",
    "check_name",
    "copy_deployed",
    "deploy_at_start",
    "loosened",
    "record_deployments",
    "resolve_policy",
    "restore_state",
    "sync",
    "with_threshold",
]

_MAX_NAME = 100
_MAX_AUTHOR = 100
_MAX_COMMENT = 1_000
_MAX_METRIC_TAGS = 4

_log = logging.getLogger("darksight.control")


class Control:
    """Operations of operators.

    Parameters
    ----------
    registry
        Of this worker; a change is applied to it when a method returns.
    state_file
        Shared by all processes of the replica.
    store
        Returns the store with the audit trail.
    caller
        Name of the caller's token or certificate; empty if the service has no tokens.

    Attributes
    ----------
    regions
        Operations on regions.
    """

    def __init__(self, registry: Registry, state_file: StateFile, store: Callable[[], Store], caller: str = "") -> None:
        self._registry = registry
        self._file = state_file
        self._store = store
        self._caller = caller
        self.regions = Regions(registry, store, self._record, self._sync)

    def on_behalf_of(self, caller: str) -> Control:
        """The same operations; the audit trail names this caller as the author, and the claimed author beside it."""
        return Control(self._registry, self._file, self._store, caller)

    def model(self, name: str) -> ModelState:
        """The state of a model, with the changes that other workers have made."""
        self._registry.refresh()
        found = self._registry.state.models.get(name)
        if found is None:
            raise NotFoundError(f"model {name[:_MAX_NAME]!r} does not exist", field="model")
        return found

    def models(self) -> dict[str, ModelState]:
        """The state of all models, with the changes that other workers have made."""
        self._registry.refresh()
        return dict(self._registry.state.models)

    def facts(self, model: str, version: str) -> Facts:
        """Facts of a deployed version."""
        return self._registry.facts(model, version)

    def deploy(self, model: str, path: str, *, activate: bool, author: str) -> str:
        """Add a file of the bundle directory to a model; returns its version."""
        check_name(model)
        self._sync()
        # Read and verified before it is recorded.
        bundle = self._registry.loader.run(
            partial(self._load, path, model, activate), (path, model, activate, self._registry.stamp(path, model))
        )
        known = self._registry.models().get(model)
        if known is not None and known.bundle.class_names != bundle.class_names:
            raise RefusedError(
                f"the classes of the bundle are not those of model {model!r}; deploy it under another name"
            )
        assert bundle.content.path is not None
        copy_bundle(self._file.bundle_copies, bundle.content.path, bundle.version, model)
        self._record("deploy", model, {"version": bundle.version, "path": path, "activate": activate}, author)
        _register(self._store(), model, bundle, bundle.calibration_rows)
        return bundle.version

    def activate(self, model: str, version: str, *, author: str) -> None:
        """Make a version the active one."""
        self._sync()
        version = find_version(model, self.model(model), version)
        self._prepare(model, version)
        self._record("activate", model, {"version": version}, author)

    def roll_back(self, model: str, *, author: str) -> None:
        """Activate the previous version again."""
        self._sync()
        state = self.model(model)
        if not state.previous:
            raise RefusedError(f"model {model!r} has no previous version to roll back to")
        self._prepare(model, state.previous[-1])
        self._record("rollback", model, {"version": state.previous[-1]}, author)

    def shadow(self, model: str, version: str, *, author: str) -> None:
        """Set the shadow version; an empty one for none."""
        self._sync()
        state = self.model(model)
        if version:
            version = find_version(model, state, version)
            if version == state.active:
                raise RefusedError("the active version cannot be its own shadow")
            self._prepare(model, version)
        self._record("shadow", model, {"version": version}, author)

    def set_policy(
        self, model: str, policy: PolicyOverride, *, author: str, comment: str
    ) -> tuple[ActiveModel, list[str]]:
        """Override the gate of the active version; returns the active model under it, and how it accepts more rows."""
        self._sync()
        active = self._registry.get(model)
        policy = resolve_policy(active.bundle, policy)
        gate = replace(effective_gate(active.bundle, policy)[0], regions=active.gate.regions)
        payload = {"version": active.version, **policy.as_dict()}
        if looser := loosened(active.gate, gate):
            payload["loosened"] = looser
        self._record("policy", model, payload, author, comment)
        return self._registry.get(model), looser

    def reset_evidence(self, model: str, *, author: str, comment: str) -> str:
        """Restart the drift evidence of the active version; returns the version."""
        self._sync()
        version = self._registry.get(model).version
        self._record("evidence", model, {"version": version}, author, comment)
        return version

    def history(self, model: str) -> Sequence[Change]:
        """Changes of the policy, newest first."""
        return self._store().history(model, kinds=("policy",))

    def dry_run(
        self, model: str, policy: PolicyOverride, since_ms: int, until_ms: int
    ) -> tuple[DecisionCounts, DecisionCounts]:
        """Decisions on stored points of the active version, as they were and as a policy would have made them."""
        self._registry.refresh()
        active = self._registry.get(model)
        policy = resolve_policy(active.bundle, policy)
        gate, _ = effective_gate(active.bundle, policy)
        gate = replace(gate, regions=active.gate.regions)
        return self._store().evaluate_policy(model, active.version, gate, since_ms=since_ms, until_ms=until_ms)

    def _load(self, path: str, model: str, activate: bool) -> Version:
        bundle = self._registry.load(path, model)
        if activate:
            bundle.get_ready()
        return bundle

    def _prepare(self, model: str, version: str) -> None:
        """Load a deployed version, so that one that cannot be loaded is refused."""
        self._registry.loader.run(lambda: self._registry.version(model, version).get_ready())

    def _sync(self) -> None:
        """Apply changes of other workers and replicas, which the caller may know of."""
        sync(self._file, self._store())
        self._registry.refresh()

    def _record(self, kind: str, model: str, payload: dict[str, Any], author: str, comment: str = "") -> None:
        check_text("author", author, _MAX_AUTHOR)
        check_text("comment", comment, _MAX_COMMENT)
        if self._caller:
            payload, author = {**payload, "claimed_author": author}, self._caller
        self._store().append_change(kind, model, payload, author=author, comment=comment)
        self._sync()
        facts = {name: value for name, value in payload.items() if name != "polygon"}
        _log.info(f"{kind}_changed", extra={"model": model, "author": author, **facts})


def check_name(model: str) -> None:
    """RequestError for a name that is not valid in a path, a label or a URL."""
    if (
        not 0 < len(model) <= _MAX_NAME
        or not all(char.isalnum() or char in "-_." for char in model)
        or model[0] in "._"
    ):
        raise RequestError(
            f"model: {model[:_MAX_NAME]!r} is not a valid name; use up to {_MAX_NAME} letters, digits, dashes and dots",
            field="model",
        )


def resolve_policy(bundle: Version, policy: PolicyOverride) -> PolicyOverride:
    """A policy whose threshold is given on both scales, if there are two; RequestError if it is not valid."""
    score = bundle.gate.reject_score
    if policy.log_odds is not None:
        given, policy = policy, with_threshold(policy, bundle.gate, policy.log_odds)
        if score is None or not SCORES[score].is_log_odds:
            raise RequestError("policy.log_odds: the reject score is not a log-odds", field="policy.log_odds")
        if given.threshold is not None and not math.isclose(given.threshold, policy.threshold or 0.0, abs_tol=1e-9):
            raise RequestError("policy.log_odds: is not that of the threshold; give one", field="policy.log_odds")
    elif policy.threshold is not None and score is not None and SCORES[score].is_log_odds:
        if not 0.0 <= policy.threshold < 1.0:
            raise RequestError(
                f"policy.threshold: {policy.threshold} is not a probability of at least 0 and less than 1, which the "
                f"threshold of {score} is; 0 accepts all rows",
                field="policy.threshold",
            )
        p = policy.threshold
        policy = replace(policy, log_odds=math.log(p) - math.log1p(-p) if p else -math.inf)
    if policy.alpha is not None:
        if not 0.0 <= policy.alpha < 1.0:
            raise RequestError(f"policy.alpha: must be between 0 and 1, not {policy.alpha}", field="policy.alpha")
        if 0.0 < policy.alpha < 1.0 / (bundle.calibration_rows + 1):
            raise RequestError(
                f"policy.alpha: {bundle.calibration_rows:,} calibration rows give no p-value as small as "
                f"{policy.alpha}; use {1.0 / (bundle.calibration_rows + 1):.2g} or more",
                field="policy.alpha",
            )
    if policy.threshold is not None and bundle.gate.reject_score is None:
        raise RequestError(
            "policy.threshold: the bundle has no reject score; add one with darksight calibrate",
            field="policy.threshold",
        )
    threshold = policy.threshold if policy.log_odds is None else policy.log_odds
    if threshold is not None and (math.isnan(threshold) or threshold == math.inf):
        raise RequestError(f"policy.threshold: {threshold} would accept no row", field="policy.threshold")
    if len(policy.metric_tags) > _MAX_METRIC_TAGS or not all(map(is_key, policy.metric_tags)):
        raise RequestError(
            f"policy.metric_tags: must be up to {_MAX_METRIC_TAGS} keys of tags", field="policy.metric_tags"
        )
    effective_gate(bundle, policy)
    return policy


def with_threshold(policy: PolicyOverride, gate: Gate, threshold: float) -> PolicyOverride:
    """A policy with a threshold that is given on the scale of the reject score of a gate."""
    if gate.reject_score is None or not SCORES[gate.reject_score].is_log_odds:
        return replace(policy, threshold=threshold)
    return replace(policy, threshold=0.5 * (1.0 + math.tanh(0.5 * threshold)), log_odds=threshold)


def loosened(before: Gate, after: Gate) -> list[str]:
    """What makes a gate accept rows that another one of the same bundle rejects, in words; empty if nothing does."""
    found = []
    alphas = [0.0 if gate.outlier is None else gate.outlier.alpha for gate in (before, after)]
    if alphas[1] < alphas[0]:
        found.append(f"alpha {alphas[0]:g} -> {alphas[1]:g}")
    highest = max(before.threshold, *_own_thresholds(before), -math.inf)
    if before.reject_score is not None and after.threshold < highest and not _own_thresholds(after):
        texts = [threshold_text(before.reject_score, each) for each in (highest, after.threshold)]
        found.append(f"threshold {texts[0]} -> {texts[1]}")
    if after.fail_open and not before.fail_open:
        found.append("fail_open false -> true")
    return found


def _own_thresholds(gate: Gate) -> list[float]:
    """Thresholds of segments and classes."""
    of_segments = [] if gate.segments is None else [*gate.segments.thresholds.values()]
    return of_segments if gate.class_thresholds is None else [*of_segments, *gate.class_thresholds.tolist()]


def sync(state_file: StateFile, store: Store) -> State:
    """Apply the entries that were appended to the audit trail since the last sync to the state file.

    The state file is not locked while the database is queried, so that a database that does not respond delays no
    change that another process makes to the file.
    """
    while True:
        before = state_file.read()
        after = _follow(before, store, state_file.bundle_copies)
        if after == before:
            return before
        if state_file.update(partial(_replace, before=before, after=after)) == after:
            if after.rebuilds != before.rebuilds:
                _log_rebuild(before, after)
            return after


def _follow(state: State, store: Store, copies: Path) -> State:
    """The state after the entries of the trail that are not in it."""
    # From the last entry that was applied, to see whether it is still there.
    changes = _changes_since(store, max(state.last_change - 1, 0))
    if state.last_change == 0 or (changes and changes[0].hash == state.last_hash):
        return apply_changes(state, changes)
    rebuilt = apply_changes(State(rebuilds=state.rebuilds + 1), _changes_since(store, 0))
    # A model that the trail does not contain stays, and `record_deployments` appends it again.
    kept = {
        name: replace(model, versions={key: replace(each, is_pending=True) for key, each in model.versions.items()})
        for name, model in state.models.items()
    }
    found = {name: _strictest(copies, model, state.models.get(name)) for name, model in rebuilt.models.items()}
    return replace(rebuilt, models={**kept, **found})


def restore_state(state_file: StateFile, store: Store) -> None:
    """Replace models of the state file that are not as the audit trail leaves them.

    Somebody edited the file, or it is damaged. It counts as a rebuild, which raises an alert. Versions that are not in
    the trail are removed, except those that `record_deployments` has still to append. A gate that is stricter than the
    trail says stays: the trail may have lost its last entries.
    """
    while True:
        before = state_file.read()
        trail = apply_changes(State(), _changes_since(store, 0))
        if (trail.last_change, trail.last_hash) != (before.last_change, before.last_hash):
            # A change is about to be applied; `sync` handles a trail that was replaced.
            return
        models = {}
        for name in (*before.models, *(trail.models.keys() - before.models.keys())):
            now = before.models.get(name, ModelState())
            expected = _with_pending(trail.models.get(name, ModelState()), now)
            expected = _strictest(state_file.bundle_copies, expected, now)
            if expected.versions:
                models[name] = now if _decisive(now) == _decisive(expected) else expected
        if models == before.models:
            return
        after = replace(before, models=models, rebuilds=before.rebuilds + 1)
        if state_file.update(partial(_replace, before=before, after=after)) == after:
            _log_rebuild(before, after)
            return


def check_gates(state_file: StateFile, store: Store) -> None:
    """AuditError if the state file has a gate that is stricter than the audit trail says."""
    state, trail = state_file.read(), apply_changes(State(), _changes_since(store, 0))
    if (trail.last_change, trail.last_hash) != (state.last_change, state.last_hash):
        return
    for name, model in trail.models.items():
        if _strictest(state_file.bundle_copies, model, state.models.get(name)) != model:
            raise AuditError(
                f"the gate of model {name} is stricter than the audit trail says, which may have lost entries; set its "
                "policy and regions again"
            )


def _strictest(copies: Path, trail: ModelState, now: ModelState | None) -> ModelState:
    """A model as the trail leaves it, with the stricter gate of each version of it that this replica knows."""
    known = {} if now is None else now.versions
    versions = {
        name: _stricter(copies, name, each, known[name]) if name in known else each
        for name, each in trail.versions.items()
    }
    return replace(trail, versions=versions)


def _stricter(copies: Path, version: str, trail: Deployment, now: Deployment) -> Deployment:
    """The trail's deployment with what is stricter in this replica's: parts of the policy, and enforced regions."""
    enforced = {name for name, each in trail.regions.items() if each.is_enforced}
    kept = {name: each for name, each in now.regions.items() if each.is_enforced and name not in enforced}
    regions = {**trail.regions, **kept}
    ours, theirs = now.policy, trail.policy
    if (ours.alpha, ours.threshold, ours.fail_open) == (theirs.alpha, theirs.threshold, theirs.fail_open):
        return replace(trail, regions=regions)
    try:
        gate = gate_of(read_bundle(copy_path(copies, version), verify=False))
    except DarkSightError:
        return replace(trail, regions=regions)
    # What the bundle has where there is no override. Limits of classes or segments have no single number.
    alpha = math.inf if gate.class_limits is not None else 0.0 if gate.outlier is None else gate.outlier.alpha
    has_one = gate.segments is None and gate.class_thresholds is None
    threshold = gate.threshold if has_one else math.inf
    policy = replace(
        theirs,
        alpha=max(theirs.alpha, ours.alpha, key=lambda each: alpha if each is None else each),
        threshold=max(theirs.threshold, ours.threshold, key=lambda each: threshold if each is None else each),
        fail_open=min(theirs.fail_open, ours.fail_open, key=lambda each: gate.fail_open if each is None else each),
    )
    return replace(trail, policy=policy, regions=regions)


def _with_pending(trail: ModelState, now: ModelState) -> ModelState:
    """A model as the trail leaves it, with its versions that are yet to be appended."""
    known = trail.versions
    pending = {name: each for name, each in now.versions.items() if each.is_pending and name not in known}
    model = replace(trail, versions={**known, **pending})
    return model.activated(now.active) if now.active in pending else model


def _decisive(model: ModelState) -> tuple[Any, ...]:
    """What decides about rows: without times and paths, which differ for a version deployed without the store."""
    versions = {name: (each.policy, each.regions, each.evidence_ms) for name, each in model.versions.items()}
    return model.active, model.shadow, versions


def _replace(now: State, before: State, after: State) -> State:
    return after if now == before else now


def _log_rebuild(before: State, after: State) -> None:
    """Log what the rebuilt state changed, for operators to repeat."""
    replaced = {
        name: {"active_before": model.active, "active": after.models.get(name, ModelState()).active}
        for name, model in before.models.items()
        if model != after.models.get(name)
    }
    numbers = {"change_before": before.last_change, "change": after.last_change}
    _log.error("state_rebuilt", extra={**numbers, "models": replaced})


def _changes_since(store: Store, number: int) -> list[Change]:
    """All entries of the audit trail after a number."""
    changes: list[Change] = []
    while found := store.changes_since(changes[-1].id if changes else number):
        changes += found
    return changes


def record_deployments(state_file: StateFile, store: Store, bundles: Path) -> None:
    """Append the pending versions to the audit trail: deployed without the store, or lost by a restore.

    Other replicas learn of them from there: a policy for a version that the trail does not contain would be ignored.
    """
    trail = apply_changes(State(), changes=_changes_since(store, 0))
    for name, model in state_file.read().models.items():
        known = trail.models.get(name, ModelState()).versions
        for version, deployment in model.versions.items():
            if version in known or not deployment.is_pending:
                continue
            try:
                bundle = read_version(bundles, state_file.bundle_copies, deployment.path, version, verify=False)
            except DarkSightError as error:
                _log.error("deployment_not_recorded", extra={"model": name, "version": version, "error": error.message})
                continue
            payload = {"version": version, "path": deployment.path, "activate": version == model.active}
            store.append_change("deploy", name, payload, author="serve", comment="was not in the audit trail")
            _register(store, name, bundle, len(bundle.calibration))


def copy_deployed(state_file: StateFile, bundles: Path, state: State) -> dict[str, str]:
    """Copy the bundles that other replicas deployed before their files are replaced.

    Returns the reasons why versions were not copied, by version: their files may not be here yet.
    """
    copies, failures = state_file.bundle_copies, {}
    for name, model in state.models.items():
        for version, deployment in model.versions.items():
            try:
                copy, original = copy_path(copies, version), bundle_path(bundles, deployment.path)
                if not copy.exists():
                    found = read_version(bundles, copies, deployment.path, version, verify=False)
                    assert found.path is not None
                    copy_bundle(copies, found.path, version, name)
                elif (
                    signature_path(original, name).is_file()
                    and not signature_path(copy, name).exists()
                    # Not if the file was replaced by another version.
                    and read_bundle(original, verify=False).version == version
                ):
                    copy_bundle(copies, original, version, name)
            except DarkSightError as error:
                failures[version] = error.message
    return failures


def deploy_at_start(
    state_file: StateFile,
    store: Store | None,
    bundles: Path,
    models: Sequence[tuple[str, Path]],
    key: SignatureKey | None = None,
) -> State:
    """Deploy and activate the bundles of the command line that are new.

    A known version stays as operators left it: a restart must not undo a roll-back. Without a store the deployment is
    in the state file alone until the store is available (`record_deployments`). With a store, a state file that was
    edited while the service was stopped is restored first.

    Parameters
    ----------
    state_file
        Of the data directory.
    store
        With the audit trail; None while the database is unavailable.
    bundles
        The bundle directory.
    models
        Names and bundles.
    key
        Public key that must have signed the bundles; None if no signature is required.
    """
    if store is not None:
        sync(state_file, store)
        restore_state(state_file, store)
    state = state_file.read()
    for name, path in models:
        check_name(name)
        bundle = read_signed(find_bundle(bundles, path), str(path), key, name)
        assert bundle.path is not None
        known = state.models.get(name)
        copy_bundle(state_file.bundle_copies, bundle.path, bundle.version, name)
        if known is not None and bundle.version in known.versions:
            if known.active != bundle.version:
                _log.warning(
                    "active_version_kept", extra={"model": name, "active": known.active, "asked": bundle.version}
                )
            continue
        payload = {
            "version": bundle.version,
            "path": relative_path(bundles, bundle.path, bundle.version),
            "activate": True,
        }
        if store is not None:
            store.append_change("deploy", name, payload, author="serve", comment="named on the command line")
            _register(store, name, bundle, len(bundle.calibration))
            state = sync(state_file, store)
        else:
            change = Change("deploy", name, payload, changed_ms=int(time.time() * 1000))
            state = state_file.update(partial(apply_change, change=change))
    return state


def _register(store: Store, model: str, bundle: Version | Bundle, rows: int) -> None:
    """Store the facts of a bundle before its first point."""
    store.register_bundle(model, bundle.version, class_names=bundle.class_names, calibration_rows=rows)
