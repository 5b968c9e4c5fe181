"""Drift and accuracy of the active versions, which the storage worker publishes.

Bundles are read here because the drift test of stored rows and all figures need them. A bundle that cannot be read is
tried again every few seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from darksight_core.bundle import Bundle
from darksight_core.drift.segments import SegmentTest, describe
from darksight_core.drift.stream import DriftTest
from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.evaluation.drift import drift_test
from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.control.bundle_files import read_version
from darksight_service.control.state import Deployment
from darksight_service.control.state_file import StateFile
from darksight_service.errors import StoreUnavailableError
from darksight_service.metrics.processes import StorageCounts
from darksight_service.scoring.live_drift import LiveDrift, certified_accuracy, live_audit, live_drift
from darksight_service.scoring.live_segments import LiveSegments, live_segments
from darksight_service.settings import Settings
from darksight_service.store.store import Store

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
        self._tests: dict[str, DriftTest | None] = {}
        self._segment_tests: dict[str, SegmentTest] = {}
        self._retries: dict[tuple[str, str], float] = {}
        self._evidence_ms: dict[tuple[str, str], int] = {}
        self._drifts: dict[tuple[str, str], tuple[int, LiveDrift | None]] = {}

    def drift_test(self, model: str, version: str) -> DriftTest | None:
        """The drift test of a version; None if its bundle has none, or cannot be read now."""
        if version not in self._tests:
            bundle = self._bundle(model, version)
            if bundle is None:
                return None
            try:
                self._tests[version] = drift_test(bundle)
            except ConfigError as error:
                _log.warning("drift_not_tested", extra={"model": model, "version": version, "error": error.message})
                self._tests[version] = None
        return self._tests[version]

    def publish_evidence(self) -> None:
        """Publish the drift evidence of active versions."""
        published = []
        for name, model in self._state_file.read().models.items():
            evidence_ms = model.versions[model.active].evidence_ms
            if self._evidence_ms.get((name, model.active), evidence_ms) != evidence_ms:
                self._store.forget_drift(name, model.active)
            self._evidence_ms[name, model.active] = evidence_ms
            state = self._store.drift_state(name, model.active)
            if state is not None:
                self._counts.set_drift(name, model.active, state)
                published.append((name, model.active))
        self._counts.drop_drift(published)

    def publish_accuracy(self) -> None:
        """Publish verdict, estimated accuracy, live accuracy and segments of active versions."""
        models = self._state_file.read().models
        active = {(name, model.active): model.versions[model.active] for name, model in models.items()}
        self._counts.drop_accuracy(active)
        used = {version for _, version in active}
        self._bundles = {version: bundle for version, bundle in dict(self._bundles).items() if version in used}
        found, failed = {}, set()
        segments: dict[tuple[str, str, str], tuple[float, bool, bool]] = {}
        for (name, version), deployed in active.items():
            try:
                bundle = self._bundle(name, version)
                self._publish_labels(name, version, bundle)
                if bundle is not None:
                    found[name] = self._publish_figures(name, version, bundle, deployed)
                    segments |= self._segments(name, version, bundle, deployed.policy.metric_tags)
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
        self, model: str, version: str, bundle: Bundle, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[float, bool, bool]]:
        """Segments of a version, of the tags that its policy names."""
        if not keys or not len(bundle.calibration):
            return {}
        if version not in self._segment_tests:
            self._segment_tests[version] = SegmentTest(bundle.calibration)
        live = live_segments(self._store, bundle, self._segment_tests[version], model, version)
        return {} if live is None else _named_segments(model, version, live, keys)

    def _drift(self, model: str, version: str, bundle: Bundle) -> LiveDrift | None:
        """Drift of a version, computed again after new rows."""
        test, state = self.drift_test(model, version), self._store.drift_state(model, version)
        if test is None or state is None:
            return None
        rows, drift = self._drifts.get((model, version), (-1, None))
        if rows != state.rows:
            drift = live_drift(self._store, bundle, test, [state], model, version)
            self._drifts[model, version] = state.rows, drift
        return drift

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
    model: str, version: str, live: LiveSegments, keys: Sequence[str]
) -> dict[tuple[str, str, str], tuple[float, bool, bool]]:
    """Log evidence, whether found, and whether it explains a drift, of the segments of some keys; found ones first."""
    found, explains = set(live.found), set(live.explanation)
    ranked = sorted(live.evidence, key=lambda segment: (segment not in found, -live.evidence[segment]))
    numbers = {
        (model, version, describe((segment,))): (live.evidence[segment], segment in found, (segment,) in explains)
        for segment in ranked
        if segment[0] in keys
    }
    for description in live.explanation:
        if len(description) > 1 and all(key in keys for key, _ in description):
            least = min(live.evidence[segment] for segment in description)
            numbers[model, version, describe(description)] = (least, True, True)
    return numbers
