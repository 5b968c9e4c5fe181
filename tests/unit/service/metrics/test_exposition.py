"""The page that Prometheus scrapes: merged, complete, valid."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from darksight_service.metrics import Counts, StorageCounts
from darksight_service.metrics.catalogue import METRICS, sample_names
from darksight_service.metrics.exposition import make_registry, render
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain
from scipy.stats import beta

from darksight_core.drift.detector import Evidence, RowBatch
from darksight_core.drift.stream import DriftTest
from darksight_core.guarantees.calibration import Calibration
from tests.support.tools import needs
from tests.unit.service.metrics.test_instance import EXPIRES_2027

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
VERSION = "ab" * 32
KEY = {"model": "m", "version": "abababababab"}


def quiet(folder: Path, worker: int = 0, *, classes: int = 3) -> Counts:
    """A worker with one model and no traffic."""
    counts = Counts(folder, worker)
    counts.model("m", VERSION, classes=classes, calibration_rows=999).set_rule(0.01, 10)
    return counts


def score(counts: Counts, rows: int, *, outliers: int = 0) -> None:
    """One call with so many outliers among its rows."""
    reason = np.ones(rows, dtype=np.uint8)
    reason[:outliers] = 2
    p_value = np.where(reason == 2, 0.005, 0.5)
    model = counts.model("m", VERSION, classes=3, calibration_rows=999)
    model.observe(np.minimum(reason, 2), reason, p_value, np.zeros(rows, dtype=np.int32), np.full(rows, -5.0), 1e-3)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """A sample of the model."""
    return registry.get_sample_value(name, {**KEY, **labels})


@pytest.mark.parametrize("workers", [1, 5])
def test_workers_add_up(tmp_path: Path, workers: int) -> None:
    """The same traffic over 1 or 5 workers gives the same page."""
    for worker in range(workers):
        score(quiet(tmp_path, worker), 500 // workers, outliers=20 // workers)
    registry = make_registry(tmp_path)

    assert value(registry, "darksight_decisions_total", decision="reject", reason="outlier") == 20
    assert value(registry, "darksight_decisions_total", decision="accept", reason="none") == 480
    assert value(registry, "darksight_pvalue_bin_total", bin="0.05") == 20
    assert value(registry, "darksight_calibration_size") == 999
    assert value(registry, "darksight_score_seconds_count") == workers
    assert value(registry, "darksight_outlier_rate_bound") == pytest.approx(beta.ppf(0.9975, 10, 990))


def test_every_series_is_there_before_the_first_row(tmp_path: Path) -> None:
    """A quiet model has all its series at 0, and traffic adds none."""
    counts = quiet(tmp_path)
    StorageCounts(tmp_path)

    before = {line.rpartition(" ")[0] for line in render(tmp_path)[0].decode().splitlines()}
    score(counts, 100, outliers=10)
    after = {line.rpartition(" ")[0] for line in render(tmp_path)[0].decode().splitlines()}

    series = {line for line in before if line.startswith("darksight_decisions_total")}
    assert len(series) == 12
    assert sum(line.startswith("darksight_pvalue_bin_total") for line in before) == 20
    assert sum(line.startswith("darksight_predicted_total") for line in before) == 3
    assert before == after


def test_catalogue_has_every_family_and_no_other(tmp_path: Path) -> None:
    """Names, types and labels on the page are those of the catalogue."""
    quiet(tmp_path)
    rows = {"accepted_labelled": 1, "accepted_correct": 1, "rejected_labelled": 0, "rejected_correct": 0}
    storage = StorageCounts(tmp_path)
    storage.set_accuracy("m", VERSION, **rows, target_accuracy=0.9)
    storage.set_drift("m", VERSION, drifted())
    storage.set_figures("m", VERSION, WINDOW, AUDIT)
    storage.set_segments({("m", VERSION, "camera=7"): (2.0, True, False)})

    certificate = tmp_path / "tls.crt"
    certificate.write_text(EXPIRES_2027)

    families = list(make_registry(tmp_path, certificate=certificate).collect())

    assert {sample.name for family in families for sample in family.samples} == sample_names()
    labels = {metric.name: set(metric.labels) for metric in METRICS}
    for family in families:
        for sample in family.samples:
            name = re.sub(r"_(bucket|count|sum)$", "", sample.name)
            assert set(sample.labels) - {"le"} == labels[name], sample.name


@needs("promtool")
def test_promtool_accepts_the_page(tmp_path: Path) -> None:
    """Names, types and help texts follow the conventions of Prometheus."""
    score(quiet(tmp_path), 100, outliers=10)
    rows = {"accepted_labelled": 1, "accepted_correct": 1, "rejected_labelled": 0, "rejected_correct": 0}
    StorageCounts(tmp_path).set_accuracy("m", VERSION, **rows, target_accuracy=0.9)

    done = subprocess.run(["promtool", "check", "metrics"], input=render(tmp_path)[0], capture_output=True)

    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_page_parses_in_both_formats(tmp_path: Path) -> None:
    """The parsers of prometheus_client accept it, and find the latest outlier by name."""
    counts = quiet(tmp_path)
    score(counts, 100, outliers=10)
    counts.model("m", VERSION, classes=3, calibration_rows=999).remember_outlier("order-17", 0.004)

    plain = list(read_plain(render(tmp_path)[0].decode()))
    strict = list(read_openmetrics(render(tmp_path, OPENMETRICS)[0].decode()))

    (decisions,) = (family for family in strict if family.name == "darksight_decisions")
    found = [sample for sample in decisions.samples if sample.exemplar]
    assert len(plain) == len(strict) == len(METRICS)
    assert [(sample.labels["reason"], sample.exemplar.labels) for sample in found] == [
        ("outlier", {"prediction_id": "order-17"})
    ]


def test_the_rule_is_the_newest_of_the_workers(tmp_path: Path) -> None:
    """While workers hear of a new rule one after the other, the new one is shown; rows of all are counted."""
    score(quiet(tmp_path, 0), 500, outliers=100)
    second = quiet(tmp_path, 1)
    second.model("m", VERSION, classes=3, calibration_rows=999).set_rule(0.05, 50)
    score(second, 100, outliers=5)
    registry = make_registry(tmp_path)

    assert value(registry, "darksight_outlier_alpha") == 0.05
    assert value(registry, "darksight_decisions_total", decision="reject", reason="outlier") == 105


def test_outlier_of_a_worker_with_an_old_rule_is_not_shown(tmp_path: Path) -> None:
    """The newest one may be none under the new rule; the newest of those that are is shown."""
    behind, ahead = (quiet(tmp_path, n).model("m", VERSION, classes=3, calibration_rows=999) for n in range(2))
    ahead = ahead.set_rule(0.05, 50)
    ahead.remember_outlier("new rule", 0.04)
    behind.remember_outlier("old rule", 0.004)

    page = render(tmp_path, OPENMETRICS)[0].decode()

    assert 'prediction_id="new rule"' in page
    assert "old rule" not in page


def test_without_an_outlier_rule_the_bound_of_its_rate_is_0(tmp_path: Path) -> None:
    """A gate without such a rule is no error."""
    Counts(tmp_path, 0).model("m", VERSION, classes=3, calibration_rows=999)
    registry = make_registry(tmp_path)

    assert value(registry, "darksight_outlier_rate_bound") == 0


def test_empty_or_missing_folder_gives_a_page(tmp_path: Path) -> None:
    """The parent answers before any worker has started."""
    registry = make_registry(tmp_path / "not yet")

    assert registry.get_sample_value("darksight_calls_total") == 0
    assert registry.get_sample_value("darksight_workers") == 0


def test_unreadable_file_is_left_out_and_counted(tmp_path: Path) -> None:
    """One damaged file does not hide the others."""
    score(quiet(tmp_path, 0), 10)
    (tmp_path / "model-9-0.counts").write_bytes(b"\0" * 100)
    registry = make_registry(tmp_path)

    assert registry.get_sample_value("darksight_metric_files_unreadable") == 1
    assert value(registry, "darksight_decisions_total", decision="accept", reason="none") == 10


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["cat", "dog", "cow"], {"cat", "dog", "cow"}), (["cat", "cat", "cow"], {"0", "1", "2"}), ([], {"0", "1", "2"})],
    ids=["names", "not different", "none"],
)
def test_classes_have_names_if_they_are_different(tmp_path: Path, names: list[str], expected: set[str]) -> None:
    """Two classes of one name would be one series twice."""
    Counts(tmp_path, 0).model("m", VERSION, classes=3, calibration_rows=9, class_names=names)

    families = {family.name: family for family in make_registry(tmp_path).collect()}

    assert {sample.labels["class"] for sample in families["darksight_predicted"].samples} == expected


def test_series_of_a_model_are_bounded(tmp_path: Path) -> None:
    """A model with a million classes has no more series than one with 100 and one more."""
    quiet(tmp_path, classes=1_000_000)

    families = {family.name: family for family in make_registry(tmp_path).collect()}

    assert len(families["darksight_predicted"].samples) == 101
    assert families["darksight_predicted"].samples[-1].labels["class"] == "_other"


def test_fail_open_is_counted(tmp_path: Path) -> None:
    """Rows accepted unscored have a counter of their own."""
    model = Counts(tmp_path, 0).model("m", VERSION, classes=3, calibration_rows=999)
    none = np.full(2, np.nan)

    model.observe(np.full(2, 1, np.uint8), np.full(2, 6, np.uint8), none, np.zeros(2, np.int32), none, 1e-3)

    assert value(make_registry(tmp_path), "darksight_fail_open_total") == 2


def drifted() -> dict[str, Evidence]:
    """Evidence of a few rows with very low scores."""
    test = DriftTest(Calibration(np.arange(99.0), top=np.full(99, 0.5)), np.array([50, 50]))
    rows = RowBatch(np.full(20, -1.0), np.full(20, 0.5), np.arange(20) % 2, np.full((20, 3), 0.5))
    return test.evidence(test.update(test.start(), rows))


def test_drift_evidence_of_active_versions_is_shown(tmp_path: Path) -> None:
    """Each kind has a series; the series of a version that is no longer active end."""
    storage, found = StorageCounts(tmp_path), drifted()
    storage.set_drift("m", VERSION, found)
    storage.set_drift("old", VERSION, found)
    storage.drop_drift([("m", VERSION)])
    registry = make_registry(tmp_path)

    for name, metric in (("log_evidence", "log_evidence"), ("log_restarting", "restarting_log_evidence")):
        for kind, evidence in found.items():
            assert value(registry, f"darksight_drift_{metric}", kind=kind) == getattr(evidence, name)
    assert found["scores"].log_evidence > 5.0
    assert value(registry, "darksight_drift_tested_rows") == 20
    assert value(registry, "darksight_drift_tested_rows", model="old") is None


WINDOW = {"verdict": "surer", "accuracy": {"estimate": 0.9, "low": 0.85, "high": 0.95}}
AUDIT = {"accuracy": 0.96, "low": 0.9, "high": 0.99, "labels": 80, "labels_needed": 300, "log_evidence": 1.5}


def test_verdict_and_accuracy_are_shown(tmp_path: Path) -> None:
    """One verdict is 1; the estimate and the accuracy of the audit come with their ranges."""
    StorageCounts(tmp_path).set_figures("m", VERSION, WINDOW, AUDIT)
    registry = make_registry(tmp_path)

    assert value(registry, "darksight_drift_verdict", verdict="surer") == 1.0
    assert value(registry, "darksight_drift_verdict", verdict="none") == 0.0
    for bound, estimate, audited in (("value", 0.9, 0.96), ("low", 0.85, 0.9), ("high", 0.95, 0.99)):
        assert value(registry, "darksight_accuracy_estimate", bound=bound) == estimate
        assert value(registry, "darksight_audit_accuracy", bound=bound) == audited
    assert value(registry, "darksight_accuracy_withheld") == 0.0
    assert value(registry, "darksight_audit_labels") == 80
    assert value(registry, "darksight_audit_labels_needed") == 300
    assert value(registry, "darksight_certificate_log_evidence") == 1.5


def test_an_accuracy_that_is_not_known_has_no_series(tmp_path: Path) -> None:
    """A withheld estimate says so, and a version without rows has no verdict."""
    nothing = {"estimate": None, "low": None, "high": None}
    unknown = AUDIT | {"accuracy": None, "low": None, "high": None}
    storage = StorageCounts(tmp_path)
    storage.set_figures("m", VERSION, WINDOW | {"accuracy": nothing}, unknown)
    storage.set_figures("idle", VERSION, None, unknown)
    registry = make_registry(tmp_path)

    assert value(registry, "darksight_accuracy_withheld") == 1.0
    assert value(registry, "darksight_accuracy_withheld", model="idle") is None
    assert value(registry, "darksight_drift_verdict", model="idle", verdict="none") is None
    for name in ("accuracy_estimate", "audit_accuracy"):
        assert value(registry, f"darksight_{name}", bound="value") is None


def test_live_accuracy_and_certificate(tmp_path: Path) -> None:
    """What the storage worker sets is shown; without a certificate there is no series to compare with."""
    storage = StorageCounts(tmp_path)
    rows = {"accepted_labelled": 10, "accepted_correct": 9, "rejected_labelled": 4, "rejected_correct": 1}
    storage.set_accuracy("m", VERSION, **rows, target_accuracy=0.95)
    storage.set_accuracy("bare", VERSION, **rows)
    registry = make_registry(tmp_path)

    assert value(registry, "darksight_live_correct_rows", decision="accept") == 9
    assert value(registry, "darksight_certified_accuracy") == 0.95
    assert value(registry, "darksight_certified_accuracy", model="bare") is None


def test_segments_are_bounded_and_disappear(tmp_path: Path) -> None:
    """Of each version 200 are published, and those that are not published again are gone; hostile names are escaped."""
    quiet(tmp_path)
    storage = StorageCounts(tmp_path)
    many = {("m", VERSION, f"camera={each}"): (0.0, False, False) for each in range(300)}
    storage.set_segments(many)
    first = render(tmp_path)[0].decode().count("darksight_segment_found{")

    storage.set_segments({("m", VERSION, 'camera=a"b\\'): (9.0, True, True)})
    page = render(tmp_path)[0].decode()

    assert first == 200
    assert page.count("darksight_segment_found{") == 1
    assert 'segment="camera=a\\"b\\\\"' in page
    # As the other metrics have it: the text of the drift alert asks for the segments of its version.
    assert value(make_registry(tmp_path), "darksight_segment_found", segment='camera=a"b\\') == 1.0


def test_the_exemplar_has_the_trace_of_the_outlier(tmp_path: Path) -> None:
    """With the id it stays below the 128 characters that OpenMetrics allows."""
    counts = Counts(tmp_path, 0)
    model = counts.model("m", VERSION, classes=3, calibration_rows=999).set_rule(0.05, 50)
    model.remember_outlier("x" * 64, 0.004, bytes(range(16)))

    page = render(tmp_path, "application/openmetrics-text; version=1.0.0")[0].decode()

    assert f'prediction_id="{"x" * 64}",trace_id="{bytes(range(16)).hex()}"' in page
    counts.close()
