"""Drift and accuracy of the active versions, which the storage worker publishes.

Bundles are read here because the drift detectors of stored rows and all figures need them. A bundle that cannot be read
is tried again every few seconds. What is known about a version is dropped when the version is not active and no rows of
it were stored since the last time that accuracy was published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from darksight_core.bundle import Bundle
from darksight_core.drift.detectors import make_detectors
from darksight_core.drift.explanation import describe
from darksight_core.drift.isotonic import Isotonic
from darksight_core.drift.segments import SegmentChanges, SegmentTest
from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.evaluation.drift import baseline_of
from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.control.bundle_files import read_version
from darksight_service.control.state import Deployment
from darksight_service.control.state_file import StateFile
from darksight_service.errors import StoreUnavailableError
from darksight_service.metrics.processes import StorageCounts
from darksight_service.scoring.live_drift import LiveDrift, certified_accuracy, live_audit, live_drift
from darksight_service.scoring.live_segments import live_segments
from darksight_service.settings import Settings
from darksight_service.store.store import Store
from darksight_service.store.write.detector_state import Detectors

__all__ = ["LiveFigures"]

# Between two attempts to load a bundle.
_LOAD_SECONDS = 5.0
# The live accuracy covers the last day.
_ACCURACY_MS = 86_400_000

_log = logging.getLogger("darksight.storage")


class LiveFigures:
    """Publishes drift and accuracy.

    Parameters
    ----------
    settings
        Settings of the service.
    state_file
        The state of all models.
    store
        The database.
    counts
        Metrics of the storage worker.
    """

    def __init__(self, settings: Settings, state_file: StateFile, store: Store, counts: StorageCounts) -> None:
        self._settings = settings
        self._state_file = state_file
        self._store = store
        self._counts = counts
        self._accuracy_file = AccuracyFile(settings.data_dir / "accuracy.json")
        self._bundles: dict[str, Bundle] = {}
        self._detectors: dict[str, Detectors] = {}
        self._curves: dict[str, Isotonic | None] = {}
        self._used: set[str] = set()
        self._retries: dict[tuple[str, str], float] = {}
        self._states: dict[tuple[str, str], dict[str, Any]] = {}
        self._drifts: dict[tuple[str, str], tuple[int, LiveDrift | None]] = {}

    def detectors(self, model: str, version: str) -> Detectors:
        """The drift detectors of a version; none if its bundle has none, or cannot be read now."""
        self._used.add(version)
        found = self._detectors.get(version)
        if found is None:
            bundle = self._bundle(model, version)
            if bundle is None:
                return ()
            try:
                found = make_detectors(baseline_of(bundle))
            except ConfigError as error:
                _log.warning("drift_not_tested", extra={"model": model, "version": version, "error": error.message})
                found = ()
            self._detectors[version] = found
        return found

    def curve(self, model: str, version: str) -> Isotonic | None:
        """Probability of being right by largest probability; None if the bundle has none, or cannot be read now."""
        if version not in self._curves:
            bundle = self._bundle(model, version)
            if bundle is None:
                return None
            self._curves[version] = None if bundle.accuracy_model is None else bundle.accuracy_model.curve
        return self._curves.get(version)

    def publish_evidence(self) -> None:
        """Publish the drift evidence of active versions."""
        models = self._state_file.read().models
        self._states = self._store.own_states({(name, model.active) for name, model in models.items()})
        for (name, version), states in self._states.items():
            found = [each.evidence(states[each.name]) for each in self.detectors(name, version) if each.name in states]
            self._counts.set_drift(name, version, {kind: each for part in found for kind, each in part.items()})
        self._counts.drop_drift(self._states)

    def publish_accuracy(self) -> None:
        """Publish verdict, estimated accuracy, live accuracy and segments of active versions."""
        models = self._state_file.read().models
        active = {(name, model.active): model.versions[model.active] for name, model in models.items()}
        self._counts.drop_accuracy(active)
        self._drop_all_but(active)
        found, failed = {}, set()
        segments: dict[tuple[str, str, str], tuple[float, bool, bool]] = {}
        for (name, version), deployed in active.items():
            try:
                bundle = self._bundle(name, version)
                self._publish_labels(name, version, bundle)
                if bundle is not None:
                    found[name] = self._publish_figures(name, version, bundle, deployed)
                    segments |= self._segments(name, version, deployed.policy.metric_tags)
            except StoreUnavailableError:
                raise
            except Exception:
                # The figures of the other models do not depend on this one, and its old figures are no longer true.
                _log.exception("figures_failed", extra={"model": name, "version": version})
                failed.add((name, version))
        self._counts.drop_accuracy(active.keys() - failed)
        self._accuracy_file.write(found)
        self._counts.set_segments(segments)

    def _publish_labels(self, model: str, version: str, bundle: Bundle | None) -> None:
        until = int(time.time() * 1000) + 1
        counted = self._store.label_counts(model, version, since_ms=until - _ACCURACY_MS, until_ms=until)
        self._counts.set_accuracy(
            model,
            version,
            accepted_labelled=counted.accepted_labelled,
            accepted_correct=counted.accepted_correct,
            rejected_labelled=counted.rejected_labelled,
            rejected_correct=counted.rejected_correct,
            target_accuracy=(None if bundle is None else certified_accuracy(bundle)) or 0.0,
        )

    def _publish_figures(self, model: str, version: str, bundle: Bundle, deployed: Deployment) -> dict[str, Any]:
        drift = self._drift(model, version, bundle)
        audit = live_audit(self._store, bundle, deployed, model, version)
        window = None if drift is None else drift.window.as_dict()
        self._counts.set_figures(model, version, window, audit.as_dict())
        figures = {} if window is None else {name: window[name] for name in ("verdict", "reason", "accuracy")}
        return {"version": version, "audit": audit.as_dict(), **figures}

    def _segments(
        self, model: str, version: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[float, bool, bool]]:
        """Segments of a version, of the tags that its policy names."""
        test = next((each for each in self.detectors(model, version) if isinstance(each, SegmentTest)), None)
        live = None if test is None or not keys else live_segments(self._store, test, model, version)
        return {} if live is None else _named_segments(model, version, live.changes, keys)

    def _drift(self, model: str, version: str, bundle: Bundle) -> LiveDrift | None:
        """Drift of a version, computed again after new rows."""
        states = self._states.get((model, version), {})
        found = [(each, [states[each.name]]) for each in self.detectors(model, version) if each.name in states]
        if not found:
            return None
        now = max(part.rows for each, (state,) in found for part in each.evidence(state).values())
        rows, drift = self._drifts.get((model, version), (-1, None))
        if rows != now:
            drift = live_drift(self._store, bundle, found, model, version)
            self._drifts[model, version] = now, drift
        return drift

    def _drop_all_but(self, active: Collection[tuple[str, str]]) -> None:
        """Drop what is known about versions that are neither active nor in use."""
        shown = {version for _, version in active}
        # Another thread may add a version meanwhile.
        used, self._used = self._used | shown, set()
        self._bundles = {version: each for version, each in dict(self._bundles).items() if version in shown}
        self._detectors = {version: each for version, each in dict(self._detectors).items() if version in used}
        self._curves = {version: each for version, each in dict(self._curves).items() if version in used}
        self._retries = {key: each for key, each in dict(self._retries).items() if key[1] in used}
        self._drifts = {key: each for key, each in self._drifts.items() if key in active}

    def _bundle(self, model: str, version: str) -> Bundle | None:
        if version not in self._bundles and time.monotonic() >= self._retries.get((model, version), 0.0):
            try:
                path = self._state_file.read().models[model].versions[version].path
                copies = self._state_file.bundle_copies
                self._bundles[version] = read_version(self._settings.bundles, copies, path, version, verify=False)
            except (DarkSightError, OSError, KeyError):
                # The workers report a state or a bundle that cannot be loaded.
                self._retries[model, version] = time.monotonic() + _LOAD_SECONDS
        return self._bundles.get(version)


def _named_segments(
    model: str, version: str, changes: SegmentChanges, keys: Sequence[str]
) -> dict[tuple[str, str, str], tuple[float, bool, bool]]:
    """Log evidence, whether found, and whether it explains a drift, of the segments of some keys; found ones first."""
    found, explains = set(changes.found), set(changes.explanation)
    numbers = {
        (model, version, describe((segment,))): (evidence, segment in found, (segment,) in explains)
        for segment, evidence in changes.evidence.items()
        if segment[0] in keys
    }
    for description in changes.explanation:
        if len(description) > 1 and all(key in keys for key, _ in description):
            least = min(changes.evidence[segment] for segment in description)
            numbers[model, version, describe(description)] = (least, True, True)
    return numbers
