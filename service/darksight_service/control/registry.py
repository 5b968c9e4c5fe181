"""The active models of a process, as the state file names them.

A reader takes one entry of an immutable mapping, so a call is scored by one bundle under one policy from its first row
to its last, whatever is activated meanwhile. A version that cannot be loaded is retried; the version that was active
before stays meanwhile, if there was one.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from darksight_core.bundle import Bundle
from darksight_core.errors import DarkSightError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from darksight_service.control.bundle_files import BundleLoader, bundle_path, read_signed, read_version
from darksight_service.control.clock import SteadyClock, known_time
from darksight_service.control.signatures import SignatureKey, signature_path
from darksight_service.control.state import Deployment, ModelState, PolicyOverride, State
from darksight_service.control.state_file import StateFile, stamp
from darksight_service.errors import NotFoundError, NotLoadedError, RequestError
from darksight_service.metrics.counts import Counts, ModelCounts

__all__ = ["DEFAULT_ALPHA", "ActiveModel", "Facts", "Registry", "Version", "effective_gate", "find_version", "gate_of"]

DEFAULT_ALPHA = 0.01
"""Level of the outlier rule for a bundle without a gate."""

# Versions in memory besides the active, shadow and previous ones.
_KEPT = 8
_SHORTEST = 12
# Time after which a version that could not be loaded is loaded again.
_RETRY_MS = 2_000

_log = logging.getLogger("darksight.registry")


class Facts(NamedTuple):
    """What ListModels returns of a version."""

    class_names: tuple[str, ...]
    calibration_rows: int


class Version:
    """A bundle in memory; many of them never score a row, so the scorer is made on first use.

    Parameters
    ----------
    bundle
        The bundle.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.content = bundle
        self.version = bundle.version
        self.gate = gate_of(bundle)
        self.certificate: Mapping[str, Any] | None = bundle.manifest.get("certificate")
        self.class_names = bundle.class_names
        self.numbers = {name: number for number, name in enumerate(bundle.class_names)}
        self.reference = bundle.reference
        self.embedder = bundle.embedder
        self.calibration_rows = len(bundle.calibration)

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer, made once."""
        return Scorer.of(self.content)

    def get_ready(self) -> None:
        """Make the scorer, so that a bundle without a valid one is refused before it is active."""
        _ = self.scorer


@dataclass(frozen=True, slots=True, eq=False)
class ActiveModel:
    """A version of a model under a policy, with its counters and its shadow version."""

    model: str
    bundle: Version
    gate: Gate
    policy: ScoringPolicy
    counts: ModelCounts
    is_certified: bool
    shadow: ActiveModel | None = None

    @property
    def version(self) -> str:
        """sha256 of the bundle."""
        return self.bundle.version


class Registry:
    """Models and their versions.

    Parameters
    ----------
    state_file
        The state of all models.
    bundles
        The bundle directory.
    counts
        Counters of the process.
    clock
        Unix time in seconds; regions expire by it. Default: a `SteadyClock` that continues from the last run.
    key
        Public key that must have signed the bundles; None if no signature is required.

    Attributes
    ----------
    loader
        Loads bundles for operators.
    """

    def __init__(
        self,
        state_file: StateFile,
        bundles: Path,
        counts: Counts,
        clock: Callable[[], float] | None = None,
        key: SignatureKey | None = None,
    ) -> None:
        self._file = state_file
        self._bundles = bundles
        self._counts = counts
        self.clock = clock or SteadyClock(known_time(state_file.path.parent))
        self._key = key
        self._signed: set[tuple[str, str]] = set()
        self.loader = BundleLoader()
        # When the state was applied, and when it is applied again though its file did not change: a region expires, or
        # a load is retried. It is also applied again if the clock was set back, when a region may not have expired yet.
        self._applied_ms = 0
        self._due_ms = math.inf
        self._failures: Mapping[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._loaded: dict[str, Version] = {}
        self._facts: dict[str, Facts] = {}
        self._state = State()
        self._active: Mapping[str, ActiveModel] = {}
        self._missing: tuple[str, ...] = ()
        # Models that this process or an earlier one of this data directory has loaded.
        self._served = counts.known_models()
        # Versions that were asked for by name, with the time until which their regions hold; replaced with the state.
        self._pinned: dict[tuple[str, str], tuple[ActiveModel, float]] = {}
        self._pin_lock = threading.Lock()

    @property
    def state(self) -> State:
        """The state that was last read."""
        return self._state

    @property
    def failures(self) -> Mapping[tuple[str, str], str]:
        """Why active and shadow versions are not loaded, by model and version."""
        return self._failures

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the models of which no version is loaded: their calls fail."""
        return self._missing

    @property
    def is_ready(self) -> bool:
        """Whether no model is missing that was served before, and one is loaded if there is any.

        A new model whose bundle is not here does not take the others out of rotation.
        """
        missing = self._missing
        return not missing or (bool(self._active) and self._served.isdisjoint(missing))

    def get(self, model: str, version: str = "") -> ActiveModel:
        """The active version of a model; with a version, that version under its own policy."""
        try:
            return self._find(model, version)
        except NotFoundError:
            # Another process may have changed the state file since it was last read.
            self.refresh()
            return self._find(model, version)

    def _find(self, model: str, version: str) -> ActiveModel:
        active = self._active.get(model)
        if active is None:
            if model in self._state.models:
                raise NotLoadedError(f"model {model!r} is not loaded; the log of the server has the reason")
            # The message names no other model: the caller may not be permitted to list them.
            raise NotFoundError(f"model {model[:100]!r} does not exist", field="model")
        if not version or version == active.version:
            return active
        return self._pin(model, active, version)

    def models(self) -> Mapping[str, ActiveModel]:
        """The active models by name."""
        return self._active

    def load(self, path: str, model: str) -> Version:
        """Read and verify a file of the bundle directory, for a model."""
        return Version(read_signed(bundle_path(self._bundles, path), path, self._key, model))

    def stamp(self, path: str, model: str) -> tuple[int, ...]:
        """A value that changes with a file of the bundle directory or its signature for a model."""
        file = bundle_path(self._bundles, path)
        return *stamp(file), 0, *stamp(signature_path(file, model))

    def version(self, model: str, version: str) -> Version:
        """A deployed version, which is loaded if it is not in memory."""
        found = self._loaded.get(version)
        # Another model may serve the same version, and have a signature of its own.
        if found is None or (self._key is not None and (model, version) not in self._signed):
            found = self._loaded[version] = self._read(model, version)
            self._signed.add((model, version))
            self._evict()
        return found

    def facts(self, model: str, version: str) -> Facts:
        """Facts of a deployed version, which is read once and not kept in memory."""
        found = self._facts.get(version)
        if found is None:
            bundle = self._loaded.get(version) or self._read(model, version)
            found = self._facts[version] = Facts(bundle.class_names, bundle.calibration_rows)
        return found

    def refresh(self) -> bool:
        """Apply the state file; whether it or a region changed, or a load was retried.

        If the active version of a model cannot be loaded, the version that was active before stays, and the load is
        retried; other models are not affected.
        """
        now_ms = self._now_ms()
        stamp = self._file.stamp()
        if stamp == self._stamp and self._applied_ms <= now_ms < self._due_ms:
            return False
        with self._lock:
            stamp = self._file.stamp()
            state = self._file.read()
            if state == self._state:
                # The same object: its users see that nothing changed.
                state = self._state
                if self._stamp is not None and self._applied_ms <= now_ms < self._due_ms:
                    self._stamp = stamp
                    return False
            self._state, self._applied_ms = state, now_ms
            self._counts.reserve(
                {(name, version) for name, model in state.models.items() for version in (model.active, model.shadow)}
            )
            active: dict[str, ActiveModel] = {}
            failures: dict[tuple[str, str], str] = {}
            due_ms = math.inf
            for name, model in state.models.items():
                made, ends_ms = self._make(name, model, failures)
                due_ms = min(due_ms, ends_ms)
                if made is not None:
                    active[name] = made
            self._log_failures(failures)
            self._active, self._pinned, self._failures = active, {}, failures
            self._missing = tuple(name for name in state.models if name not in active)
            self._served |= active.keys()
            self._due_ms, self._stamp = min(due_ms, now_ms + _RETRY_MS) if failures else due_ms, stamp
            self._evict()
        return True

    def _log_failures(self, failures: Mapping[tuple[str, str], str]) -> None:
        """Log what changed since the last attempt."""
        for (model, version), error in failures.items():
            if self._failures.get((model, version)) != error:
                _log.error("model_reload_failed", extra={"model": model, "version": version, "error": error})
        for model, version in self._failures.keys() - failures.keys():
            _log.info("model_reloaded", extra={"model": model, "version": version})

    def _read(self, model: str, version: str) -> Version:
        path = self._state.models[model].versions[version].path
        copies = self._file.bundle_copies
        return Version(read_version(self._bundles, copies, path, version, verify=True, key=self._key, model=model))

    def _make(
        self, name: str, model: ModelState, failures: dict[tuple[str, str], str]
    ) -> tuple[ActiveModel | None, float]:
        """The active version of a model with its shadow, and when the first of their regions expires.

        If the active version cannot be loaded: the version that is active now, or None. Adds to `failures`.
        """
        made: list[ActiveModel | None] = []
        ends_ms = math.inf
        for version in (model.active, model.shadow):
            found = None
            if version:
                try:
                    found, own_ends_ms = self._under_policy(name, self.version(name, version), model.versions[version])
                    ends_ms = min(ends_ms, own_ends_ms)
                except DarkSightError as error:
                    failures[name, version] = error.message
            made.append(found)
        active, shadow = made
        if active is None and name in self._active:
            bundle = self._active[name].bundle
            # A version that the state does not contain any more has no policy of its own.
            deployment = model.versions.get(bundle.version, Deployment(""))
            active, own_ends_ms = self._under_policy(name, bundle, deployment)
            ends_ms = min(ends_ms, own_ends_ms)
        return None if active is None else replace(active, shadow=shadow), ends_ms

    def _under_policy(self, name: str, bundle: Version, deployment: Deployment) -> tuple[ActiveModel, float]:
        current = self._active.get(name)
        now_ms = self._now_ms()
        gate, is_certified = effective_gate(bundle, deployment.policy)
        gate = _with_regions(gate, deployment)
        ends_ms = min((region.expires_ms for region in gate.regions if region.expires_ms > now_ms), default=math.inf)
        gate = gate.at(now_ms)
        # The certificate does not cover what is accepted outside of regions.
        is_certified &= not gate.regions
        if current is not None and current.bundle is bundle and current.gate.settings() == gate.settings():
            return replace(current, shadow=None, is_certified=is_certified), ends_ms
        rule = (0.0, 0) if gate.outlier is None else (gate.outlier.alpha, gate.outlier.rank)
        counts = self._counts.model(
            name,
            bundle.version,
            classes=len(bundle.class_names),
            calibration_rows=bundle.calibration_rows,
            class_names=bundle.class_names,
        )
        policy = ScoringPolicy(bundle.scorer, gate)
        return ActiveModel(name, bundle, gate, policy, counts.set_rule(*rule), is_certified), ends_ms

    def _now_ms(self) -> int:
        return int(self.clock() * 1000.0)

    def _pin(self, model: str, active: ActiveModel, version: str) -> ActiveModel:
        """A version that was asked for by name, made once."""
        # In this order: an entry of an older state must not enter the cache of a newer one.
        pinned = self._pinned
        state = self._state.models[model]
        found = find_version(model, state, version)
        if found == active.version:
            return active
        if active.shadow is not None and active.shadow.version == found:
            return active.shadow
        made = pinned.get((model, found))
        if made is None or made[1] <= self._now_ms():
            with self._pin_lock:
                made = pinned.get((model, found))
                if made is None or made[1] <= self._now_ms():
                    bundle = self.version(model, found)
                    made = pinned[model, found] = self._under_policy(model, bundle, state.versions[found])
                    for old in list(pinned)[:-_KEPT]:
                        pinned.pop(old)
        return made[0]

    def _evict(self) -> None:
        """Keep the versions that may be needed next, and a few more."""
        wanted = {version for model in self._state.models.values() for version in (model.active, model.shadow)}
        wanted |= {model.previous[-1] for model in self._state.models.values() if model.previous}
        # Several threads may be here at once.
        for version in [each for each in list(self._loaded) if each not in wanted][:-_KEPT]:
            self._loaded.pop(version, None)


def find_version(name: str, model: ModelState, version: str) -> str:
    """The deployed version of a model that starts with these digits."""
    if len(version) < _SHORTEST:
        raise RequestError(f"version: give at least {_SHORTEST} digits of it", field="version")
    found = [each for each in model.versions if each.startswith(version)]
    if len(found) != 1:
        raise NotFoundError(f"model {name!r} has no version {version[:64]!r}; deploy it first", field="version")
    return found[0]


def gate_of(bundle: Bundle) -> Gate:
    """The gate of a bundle; without one, an outlier rule at `DEFAULT_ALPHA`."""
    return _with_alpha(Gate(), len(bundle.calibration), DEFAULT_ALPHA) if bundle.gate is None else bundle.gate


def effective_gate(bundle: Version, override: PolicyOverride) -> tuple[Gate, bool]:
    """The gate under an override, and whether the certificate of the bundle covers it.

    Raises
    ------
    ConfigError
        If the override is not valid for this bundle.
    """
    gate = bundle.gate
    if override.fail_open is not None:
        gate = replace(gate, fail_open=override.fail_open)
    if override.alpha is not None:
        gate = _with_alpha(gate, bundle.calibration_rows, override.alpha)
    if override.threshold is not None:
        # One threshold for all rows: those of segments and classes were certified beside another one.
        threshold = override.threshold if override.log_odds is None else override.log_odds
        gate = replace(gate, threshold=threshold, segments=None, class_thresholds=None, resolution=None, levels={})
    is_as_certified = override.alpha is None and override.threshold is None
    if not is_as_certified:
        # They are valid for the rows that the gate of the bundle rejects.
        gate = replace(gate, sets=None)
    return gate, bundle.certificate is not None and is_as_certified


def _with_regions(gate: Gate, deployment: Deployment) -> Gate:
    """A gate with the enforced regions of its version, besides those of its bundle."""
    enforced = [saved.region for saved in deployment.regions.values() if saved.is_enforced]
    return replace(gate, regions=(*gate.regions, *enforced)) if enforced else gate


def _with_alpha(gate: Gate, rows: int, alpha: float) -> Gate:
    # One level for all rows: limits of classes were calibrated for another one.
    gate = replace(gate, outlier=None, class_limits=None)
    if alpha == 0.0:
        return gate
    outlier = cutoff(rows, alpha)
    # With so few calibration rows no p-value may be that small.
    return gate if outlier.rank < 1 else replace(gate, outlier=outlier)
