"""Which bundle answers for which model; hides loading, verifying and the swap.

What serves is one dictionary that is never changed, only replaced. A call takes its entry once, and so is answered by
one bundle under one policy from its first row to its last, whatever is activated meanwhile. A bundle that cannot be
trusted is refused before anything is replaced, and what served goes on serving.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from darksight_core.bundle import Bundle, Reference, read_bundle
from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.map.placement import Embedder
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from darksight_service.control.state import Deployment, ModelState, PolicyOverride, State
from darksight_service.control.state_file import StateFile
from darksight_service.errors import NotFoundError, RequestError
from darksight_service.metrics.counts import Counts, ModelCounts

__all__ = [
    "DEFAULT_ALPHA",
    "ActiveModel",
    "Facts",
    "Registry",
    "Version",
    "bundle_path",
    "deployed_path",
    "effective_gate",
    "find_version",
    "gate_of",
    "keep_at_hand",
    "named_bundle",
    "take_in",
]

DEFAULT_ALPHA = 0.01
"""Level of the outlier rule for a bundle without a gate."""

# Versions in memory besides those that may serve next.
_KEPT = 8
_SHORTEST = 12

_log = logging.getLogger("darksight.registry")


class Facts(NamedTuple):
    """What is listed of a version."""

    class_names: tuple[str, ...]
    calibration_rows: int


@dataclass(frozen=True, eq=False)
class Version:
    """A bundle in memory; most that are looked at never score a row, so its scorer is made when it is asked for."""

    content: Bundle
    version: str
    gate: Gate
    has_certificate: bool
    class_names: tuple[str, ...]
    numbers: Mapping[str, int]
    reference: Reference

    @classmethod
    def of(cls, bundle: Bundle) -> Version:
        """What serving needs of a bundle."""
        return cls(
            content=bundle,
            version=bundle.version,
            gate=gate_of(bundle),
            has_certificate=bundle.manifest.get("certificate") is not None,
            class_names=bundle.class_names,
            numbers={name: number for number, name in enumerate(bundle.class_names)},
            reference=bundle.reference,
        )

    @cached_property
    def scorer(self) -> Scorer:
        """Scores rows."""
        return Scorer.of(self.content)

    def get_ready(self) -> None:
        """Make the scorer: a bundle of which none can be made is refused before it serves."""
        _ = self.scorer

    @property
    def embedder(self) -> Embedder:
        """Its map."""
        return self.content.embedder

    @property
    def calibration_rows(self) -> int:
        """Rows that p-values are made from."""
        return len(self.content.calibration)


@dataclass(frozen=True, slots=True, eq=False)
class ActiveModel:
    """A version of a model under a policy, ready to judge."""

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
    """Models and their versions, as the state file of the data folder says.

    Parameters
    ----------
    state_file
        Which says what serves.
    bundles
        Folder of the bundles.
    counts
        Of the process; each version of a model has its own among them.
    clock
        Unix time in seconds; regions end by it.
    """

    def __init__(
        self,
        state_file: StateFile,
        bundles: Path,
        counts: Counts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = state_file
        self._bundles = bundles
        self._counts = counts
        self._clock = clock
        self._next_end_ms = math.inf
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._loaded: dict[str, Version] = {}
        self._facts: dict[str, Facts] = {}
        self._state = State()
        self._serving: Mapping[str, ActiveModel] = {}

    @property
    def state(self) -> State:
        """What was last read from the state file."""
        return self._state

    def get(self, model: str, version: str = "") -> ActiveModel:
        """Who answers for a model; with a version, who would if it were active."""
        serving = self._serving.get(model)
        if serving is None:
            names = ", ".join(sorted(self._serving)) or "none"
            raise NotFoundError(f"there is no model {model[:100]!r}; there are: {names}", field="model")
        if not version or version == serving.version:
            return serving
        return self._other(model, serving, version)

    def models(self) -> Mapping[str, ActiveModel]:
        """Who answers for each model."""
        return self._serving

    def load(self, path: str) -> Version:
        """Read and verify a bundle of the bundle folder, without serving it."""
        return Version.of(read_bundle(bundle_path(self._bundles, path), verify=True))

    def version(self, model: str, version: str) -> Version:
        """A deployed version in memory, which is read if it is not."""
        found = self._loaded.get(version)
        if found is None:
            found = self._loaded[version] = self._read(model, version)
            self._forget()
        return found

    def facts(self, model: str, version: str) -> Facts:
        """What is listed of a deployed version, which is read once and not kept in memory for it."""
        found = self._facts.get(version)
        if found is None:
            bundle = self._loaded.get(version) or self._read(model, version)
            found = self._facts[version] = Facts(bundle.class_names, bundle.calibration_rows)
        return found

    def refresh(self) -> bool:
        """Serve what the state file says; whether that was anything new.

        A model whose new bundle cannot be read goes on as it was, which is logged; the others are not held up.
        """
        now_ms = self._now_ms()
        stamp = self._file.stamp()
        if stamp == self._stamp and now_ms < self._next_end_ms:
            return False
        with self._lock:
            stamp = self._file.stamp()
            state = self._file.read()
            if state == self._state and self._stamp is not None and now_ms < self._next_end_ms:
                self._stamp = stamp
                return False
            self._state = state
            self._next_end_ms = math.inf
            serving = {}
            for name, model in state.models.items():
                try:
                    serving[name] = self._make(name, model)
                except DarkSightError as error:
                    _log.error("model_kept_as_it_was", extra={"model": name, "error": error.message})
                    if name in self._serving:
                        serving[name] = self._serving[name]
            self._serving = serving
            self._stamp = stamp
            self._forget()
        return True

    def _read(self, model: str, version: str) -> Version:
        path = self._state.models[model].versions[version].path
        found = Version.of(read_bundle(deployed_path(self._bundles, path, version), verify=True))
        if found.version != version:
            raise ConfigError(f"the file of version {version[:_SHORTEST]} now holds {found.version[:_SHORTEST]}")
        return found

    def _make(self, name: str, model: ModelState) -> ActiveModel:
        shadow = self._under_policy(name, model, model.shadow) if model.shadow else None
        return replace(self._under_policy(name, model, model.active), shadow=shadow)

    def _under_policy(self, name: str, model: ModelState, version: str) -> ActiveModel:
        bundle, deployment = self.version(name, version), model.versions[version]
        current = self._serving.get(name)
        now_ms = self._now_ms()
        gate, is_certified = effective_gate(bundle, deployment.policy)
        gate = _with_regions(gate, deployment)
        ends = [region.expires_ms for region in gate.regions if region.expires_ms > now_ms]
        self._next_end_ms = min([self._next_end_ms, *ends])
        gate = gate.at(now_ms)
        # What is accepted outside of regions is not what was certified.
        is_certified &= not gate.regions
        if current is not None and current.bundle is bundle and current.gate.settings() == gate.settings():
            return replace(current, shadow=None)
        rule = (0.0, 0) if gate.outlier is None else (gate.outlier.alpha, gate.outlier.rank)
        counts = self._counts.model(
            name,
            bundle.version,
            classes=len(bundle.class_names),
            calibration_rows=bundle.calibration_rows,
            class_names=bundle.class_names,
        )
        policy = ScoringPolicy(bundle.scorer, gate)
        return ActiveModel(name, bundle, gate, policy, counts.set_rule(*rule), is_certified)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000.0)

    def _other(self, model: str, serving: ActiveModel, version: str) -> ActiveModel:
        """A version that was asked for by name."""
        state = self._state.models[model]
        found = find_version(model, state, version)
        if found == serving.version:
            return serving
        if serving.shadow is not None and serving.shadow.version == found:
            return serving.shadow
        with self._lock:
            return self._under_policy(model, state, found)

    def _forget(self) -> None:
        """Keep the versions that may be asked for next, and a few more."""
        wanted = {version for model in self._state.models.values() for version in (model.active, model.shadow)}
        wanted |= {model.previous[-1] for model in self._state.models.values() if model.previous}
        # Several threads may be here at once.
        for version in [each for each in list(self._loaded) if each not in wanted][:-_KEPT]:
            self._loaded.pop(version, None)


def find_version(name: str, model: ModelState, version: str) -> str:
    """The deployed version of a model that begins with the digits given."""
    if len(version) < _SHORTEST:
        raise RequestError(f"version: give at least {_SHORTEST} digits of it", field="version")
    found = [each for each in model.versions if each.startswith(version)]
    if len(found) != 1:
        raise NotFoundError(f"model {name!r} has no version {version[:64]!r}; deploy it first", field="version")
    return found[0]


def gate_of(bundle: Bundle) -> Gate:
    """The gate of a bundle; one without has an outlier rule at `DEFAULT_ALPHA`."""
    return _with_alpha(Gate(), len(bundle.calibration), DEFAULT_ALPHA) if bundle.gate is None else bundle.gate


def effective_gate(bundle: Version, override: PolicyOverride) -> tuple[Gate, bool]:
    """The gate in force, and whether the certificate of the bundle covers it.

    Raises
    ------
    ConfigError
        If the override cannot be meant for this bundle.
    """
    gate = bundle.gate
    if override.fail_open is not None:
        gate = replace(gate, fail_open=override.fail_open)
    if override.alpha is not None:
        gate = _with_alpha(gate, bundle.calibration_rows, override.alpha)
    if override.threshold is not None:
        gate = replace(gate, threshold=override.threshold)
    is_as_certified = override.alpha is None and override.threshold is None
    return gate, bundle.has_certificate and is_as_certified


def _with_regions(gate: Gate, deployment: Deployment) -> Gate:
    """A gate with the regions that are enforced for its version, besides those that its bundle brought."""
    enforced = [saved.region for saved in deployment.regions.values() if saved.is_enforced]
    return replace(gate, regions=(*gate.regions, *enforced)) if enforced else gate


def _with_alpha(gate: Gate, rows: int, alpha: float) -> Gate:
    if alpha == 0.0:
        return replace(gate, outlier=None)
    outlier = cutoff(rows, alpha)
    if outlier.rank < 1:
        # With so few calibration rows no p-value is as small: the rule could never reject.
        return replace(gate, outlier=None)
    return replace(gate, outlier=outlier)


def bundle_path(folder: Path, path: str) -> Path:
    """A file of the bundle folder; RequestError for a path that leads out of it."""
    full = (folder / path).resolve()
    if not path or not full.is_relative_to(folder.resolve()):
        raise RequestError("path: must name a file in the server's bundle folder", field="path")
    return full


def named_bundle(folder: Path, path: Path) -> Path:
    """A bundle that the command line names, from here or from the bundle folder; ConfigError if it is in neither."""
    found = path if path.exists() or path.is_absolute() else bundle_path(folder, str(path))
    if not found.is_file():
        raise ConfigError(f"{path}: there is no such file, neither here nor in the bundle folder {folder}")
    return found


def deployed_path(folder: Path, path: str, version: str) -> Path:
    """The file of a version: the one called after it if there is one, else the one that it was deployed from."""
    own = folder / _own_name(version)
    return own if own.is_file() else bundle_path(folder, path)


def take_in(folder: Path, bundle: Path, version: str) -> str:
    """Path of a bundle relative to the bundle folder; a file from elsewhere is copied there under its version."""
    folder.mkdir(parents=True, exist_ok=True)
    if bundle.resolve().is_relative_to(folder.resolve()):
        return str(bundle.resolve().relative_to(folder.resolve()))
    return _copy_in(folder, bundle, version)


def keep_at_hand(folder: Path, path: str, bundle: Path, version: str) -> None:
    """Let a version that another replica deployed from its own folder be found in this one.

    Parameters
    ----------
    folder, path
        The bundle folder here, and the path in it that the other replica named.
    bundle, version
        A file with that version.
    """
    if bundle.resolve() != deployed_path(folder, path, version).resolve():
        folder.mkdir(parents=True, exist_ok=True)
        _copy_in(folder, bundle, version)


def _own_name(version: str) -> str:
    return f"{version}.safetensors"


def _copy_in(folder: Path, bundle: Path, version: str) -> str:
    name = _own_name(version)
    if not (folder / name).exists():
        draft = folder / f"{name}.new"
        shutil.copyfile(bundle, draft)
        draft.replace(folder / name)
    return name
