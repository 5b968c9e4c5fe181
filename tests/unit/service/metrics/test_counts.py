"""Counters: what is counted, that it survives, that it is bounded."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from darksight_service.errors import MetricFileError
from darksight_service.metrics import Counts, StorageCounts, clear_gauges
from darksight_service.metrics import counts as counts_module
from darksight_service.metrics.counts import BATCH_BUCKETS, DENSITY_BUCKETS, MAX_CLASSES, OTHER, SECONDS_BUCKETS
from darksight_service.metrics.exposition import make_registry
from darksight_service.metrics.files import MetricFile, Snapshot, list_files, read
from hypothesis import given, settings
from hypothesis import strategies as st

from darksight_core.rows.schema import Decision, Reason
from tests.support.psi import p_value_counts

VERSION = "ab" * 32


def batch(n: int, *, seed: int = 0, classes: int = 10) -> dict[str, Any]:
    """Columns of a call with every kind of row among them."""
    rng = np.random.default_rng(seed)
    reason = rng.integers(1, 7, n).astype(np.uint8)
    decision = np.where(reason == Reason.NONE, Decision.ACCEPT, Decision.REJECT).astype(np.uint8)
    p_value = rng.integers(1, 101, n) / 100.0
    log_density = rng.normal(-8.0, 6.0, n)
    predicted = rng.integers(0, classes, n).astype(np.int32)
    invalid = np.isin(reason, [Reason.INVALID, Reason.UNSCORED])
    p_value[invalid], log_density[invalid] = np.nan, np.nan
    predicted[reason == Reason.INVALID] = -1
    columns = {"decision": decision, "reason": reason, "p_value": p_value}
    return {**columns, "predicted": predicted, "log_density": log_density, "seconds": 3e-3}


def only(folder: Path, prefix: str) -> Snapshot:
    """The one file whose name begins like that."""
    (path,) = (path for path in list_files(folder) if path.name.startswith(prefix))
    return read(path)


@pytest.mark.parametrize("n", [1, 3, 8, 9, 500])
def test_each_row_is_counted_once_where_it_belongs(tmp_path: Path, n: int) -> None:
    """Sections equal histograms made by numpy from the same columns."""
    rows = batch(n)
    counts = Counts(tmp_path, 0)

    counts.model("m", VERSION, classes=10, calibration_rows=99).observe(**rows)

    seen = only(tmp_path, "model").sections
    known = ~np.isnan(rows["p_value"])
    labels, outlier = rows["predicted"], rows["reason"] == Reason.OUTLIER
    table = np.zeros((3, 7))
    np.add.at(table, (rows["decision"], rows["reason"]), 1)
    assert seen["decisions"].reshape(3, 7).tolist() == table.tolist()
    assert seen["p_values"].tolist() == p_value_counts(rows["p_value"][known], bins=20).tolist()
    assert seen["predicted"].tolist() == [*np.bincount(labels[labels >= 0], minlength=10), 0]
    assert seen["outliers"].tolist() == [*np.bincount(labels[outlier], minlength=10), 0]
    edges = [-np.inf, *DENSITY_BUCKETS, np.inf]
    expected = [np.sum((a < rows["log_density"]) & (rows["log_density"] <= b)) for a, b in pairwise(edges)]
    assert seen["density"].tolist() == expected
    assert seen["seconds"][SECONDS_BUCKETS.index(5e-3)] == seen["seconds"].sum() == 1
    assert seen["batch"][np.searchsorted(BATCH_BUCKETS, n)] == seen["batch"].sum() == 1
    assert (seen["seconds_sum"][0], seen["batch_sum"][0]) == (3e-3, n)


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 2**31))
def test_a_batch_counts_as_its_rows_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    """Only the number of calls tells them apart."""
    folders = [tmp_path_factory.mktemp(name) for name in ("whole", "rows")]
    whole, single = (Counts(folder, 0).model("m", VERSION, classes=3, calibration_rows=99) for folder in folders)

    for size in sizes:
        rows = batch(size, seed=seed, classes=5)
        whole.observe(**rows)
        for i in range(size):
            single.observe(**{key: value[i : i + 1] if key != "seconds" else value for key, value in rows.items()})

    a, b = (only(folder, "model").sections for folder in folders)
    same = [name for name in a if not name.startswith(("batch", "seconds"))]
    assert {name: a[name].tolist() for name in same} == {name: b[name].tolist() for name in same}


def test_shadow_decisions_touch_nothing_else(tmp_path: Path) -> None:
    """Drift and latency of what serves are not mixed with what is tried out."""
    counts = Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99)

    for n in (2, 50):
        counts.observe(**batch(n), is_shadow=True)

    seen = only(tmp_path, "model").sections
    assert {name for name, part in seen.items() if part.any()} == {"shadow", "calibration_rows"}
    assert seen["shadow"].sum() == 52


def test_extremes_are_counted_in_the_last_cells(tmp_path: Path) -> None:
    """Infinite densities, a class beyond all limits, a call of ten seconds."""
    counts = Counts(tmp_path, 0).model("m", VERSION, classes=10_000, calibration_rows=99)
    one = np.ones(2, dtype=np.uint8)

    for repeat in (1, 10):
        counts.observe(
            one.repeat(repeat),
            one.repeat(repeat),
            np.array([1.0, 1e-12]).repeat(repeat),
            np.array([9_999, MAX_CLASSES]).repeat(repeat),
            np.array([-np.inf, np.inf]).repeat(repeat),
            10.0,
        )

    seen = only(tmp_path, "model").sections
    assert (seen["p_values"][0], seen["p_values"][-1]) == (11, 11)
    assert (seen["density"][0], seen["density"][-1]) == (11, 11)
    assert (len(seen["predicted"]), seen["predicted"][-1]) == (MAX_CLASSES + 1, 22)
    assert seen["seconds"][-1] == 2


def test_restarted_worker_goes_on(tmp_path: Path) -> None:
    """Counters of the worker before are kept, what was happening then is not."""
    first = Counts(tmp_path, 1)
    first.model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(20))
    first.process.start_call()

    second = Counts(tmp_path, 1)
    second.model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(20))

    process = only(tmp_path, "process")
    assert only(tmp_path, "model").number("batch_sum") == 40
    assert (process.number("calls"), process.number("calls_in_flight"), process.number("worker_starts")) == (1, 0, 2)
    assert process.number("metric_files_replaced") == 0


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "number", "grown"])
def test_damaged_file_is_replaced_and_counted(tmp_path: Path, damage: str) -> None:
    """Whatever is wrong with a file, the worker starts, counts from 0 and says so."""
    Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(20))
    (path,) = tmp_path.glob("model-*")
    content = bytearray(path.read_bytes())
    nan = np.float64(np.nan).tobytes()
    damaged = {"cut": content[:-8], "empty": b"", "header": b"x" + content[1:], "grown": content + nan}
    path.write_bytes(damaged.get(damage, content[:-8] + nan))

    counts = Counts(tmp_path, 0)
    counts.model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(5))

    assert only(tmp_path, "model").number("batch_sum") == 5
    assert only(tmp_path, "process").number("metric_files_replaced") == 1


def test_counters_survive_an_upgrade(tmp_path: Path) -> None:
    """Files of a release with other sections are read at once, and go on with the sections that both have."""
    first = Counts(tmp_path, 0)
    first.model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(20))
    first.process.start_call()
    first.process.end_call()
    for path in list_files(tmp_path):
        old = read(path)
        sections = {"gone": np.ones(3), **{name: old.sections[name] for name in reversed(old.sections)}}
        del sections["batch_sum" if path.name.startswith("model") else "outcomes"]
        path.unlink()
        file = MetricFile(
            path, {**old.labels, "of": "another release"}, [(name, len(each)) for name, each in sections.items()]
        )
        file.array[:] = np.concatenate([*sections.values()])
        file.close()

    page = make_registry(tmp_path)
    before = [page.get_sample_value(f"darksight_{name}") for name in ("calls_total", "outcomes_total")]
    second = Counts(tmp_path, 0)
    second.model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(5))

    model, process = only(tmp_path, "model"), only(tmp_path, "process")
    assert before == [1.0, 0.0]
    assert (model.sections["decisions"].sum(), model.number("batch_sum")) == (25, 5)
    assert (process.number("calls"), process.number("worker_starts"), process.number("outcomes")) == (1, 2, 0)
    assert process.number("metric_files_replaced") == 0


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_reader_refuses_or_reads_any_file(tmp_path: Path, at: int) -> None:
    """A flipped byte in the header or the labels gives `MetricFileError`, in the numbers another number."""
    Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99)
    (path,) = tmp_path.glob("model-*")
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)

    try:
        labels = read(path).labels
    except MetricFileError:
        return

    assert labels["model"] == "m"


def test_versions_beyond_the_limit_share_one_file(tmp_path: Path) -> None:
    """The number of files is bounded, no row goes uncounted, and the same version gets the same counters."""
    counts = Counts(tmp_path, 0, max_models=3)
    counts.reserve({("m", f"{i:064x}") for i in range(10)})

    for i in range(10):
        counts.model("m", f"{i:064x}", classes=10, calibration_rows=99).observe(**batch(7))

    files = [read(path) for path in tmp_path.glob("model-*")]
    assert sorted(each.labels["version"] for each in files)[-1] == OTHER
    assert len(files) == 4
    assert sum(each.number("batch_sum") for each in files) == 70
    assert counts.model("m", f"{1:064x}", classes=10, calibration_rows=99) is counts.model(
        "m", f"{1:064x}", classes=10, calibration_rows=99
    )
    assert only(tmp_path, "process").number("models_refused") == 7


def test_files_of_versions_served_no_more_make_room(tmp_path: Path) -> None:
    """A worker that deploys every day does not reach the limit, and does not fill the folder."""
    for i in range(10):
        counts = Counts(tmp_path, 0, max_models=3)
        counts.model("m", f"{i:064x}", classes=10, calibration_rows=99)
        counts.close()

    assert len(list(tmp_path.glob("model-*"))) == 3
    assert only(tmp_path, "process").number("models_refused") == 0


def test_threads_lose_nothing(tmp_path: Path) -> None:
    """Calls from several threads at once, of one row and of many, all count."""
    counts = Counts(tmp_path, 0)
    model = counts.model("m", VERSION, classes=10, calibration_rows=99)
    single, many = batch(1), batch(30)

    def work() -> None:
        for _ in range(300):
            counts.process.start_call()
            model.observe(**single)
            model.observe(**many)
            counts.process.end_call()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    process = only(tmp_path, "process")
    assert only(tmp_path, "model").number("batch_sum") == 6 * 300 * 31
    assert (process.number("calls"), process.number("calls_in_flight")) == (1800, 0)


@pytest.mark.parametrize("n", [1, 3])
def test_a_reader_in_between_sees_no_outlier_without_its_row(tmp_path: Path, n: int) -> None:
    """However the reader's copies fall among the writer's additions: outliers without rows would look like drift."""
    model = Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99)
    rows = batch(n) | {"reason": np.full(n, Reason.OUTLIER), "decision": np.full(n, Decision.REJECT)}
    rows["p_value"] = np.full(n, 0.01)
    table, bins = model.file.offsets["decisions"], model.file.offsets["p_values"]
    cell = table + int(Decision.REJECT) * (len(Reason) + 1) + int(Reason.OUTLIER)
    states = set()

    def look(*_: Any) -> Any:
        states.add((model.file.array[bins], model.file.array[cell]))
        return look

    def trace(frame: Any, *_: Any) -> Any:
        frame.f_trace_opcodes = True
        return look

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        model.observe(**rows)
    finally:
        sys.settrace(previous)

    assert states == {(0.0, 0.0), (n, 0.0), (n, n)}


def test_counts_without_a_disk(tmp_path: Path) -> None:
    """A folder that cannot be written to costs the metrics, not the scoring."""
    (tmp_path / "file").write_text("")

    counts = Counts(tmp_path / "file" / "counts", 0)
    counts.model("m", VERSION, classes=10, calibration_rows=99).observe(**batch(20))

    assert not counts.process.file.is_durable


def test_spool_counters_follow_a_spool_that_starts_again(tmp_path: Path) -> None:
    """The spool counts since its start, the file for ever."""

    def stats(appended: int) -> SimpleNamespace:
        return SimpleNamespace(bytes=10, oldest_seconds=1.5, appended=appended, dropped=2, errors=0)

    for appended in (5, 7), (3,):
        process = Counts(tmp_path, 0).process
        for number in appended:
            process.set_spool(stats(number), limit_bytes=100)

    seen = only(tmp_path, "process")
    assert (seen.number("spool_appended"), seen.number("spool_dropped"), seen.number("spool_bytes")) == (10, 4, 10)


def test_gauges_of_workers_that_are_gone_are_cleared(tmp_path: Path) -> None:
    """Before the parent starts workers nothing is in flight; counters stay."""
    Counts(tmp_path, 5).process.start_call()

    clear_gauges(tmp_path)

    seen = only(tmp_path, "process")
    assert (seen.number("calls"), seen.number("calls_in_flight"), seen.number("workers")) == (1, 0, 0)


def test_storage_counts(tmp_path: Path) -> None:
    """Counters go on over restarts, live accuracy is what was set last."""
    for _ in range(2):
        storage = StorageCounts(tmp_path)
        storage.add("drain_rows", 100, value="inserted")
        storage.set_drain(lag_seconds=2.0, is_store_up=True)
    accuracy = {"accepted_labelled": 10, "accepted_correct": 9, "rejected_labelled": 4, "rejected_correct": 1}
    storage.set_accuracy("m", VERSION, **accuracy, target_accuracy=0.95)

    seen, live = only(tmp_path, "storage"), only(tmp_path, "live")
    assert (seen.number("drain_rows"), seen.number("storage_starts"), seen.number("drain_lag_seconds")) == (200, 2, 2)
    assert (live.number("live_correct_rows"), live.number("certified_accuracy")) == (9, 0.95)


@pytest.mark.parametrize("n", [1, 100])
def test_a_call_says_whether_one_of_its_outliers_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """Once a second, whoever counts; never for a shadow, without an outlier or under a rule that is over."""
    now = 1_000.0
    monkeypatch.setattr(counts_module, "time", SimpleNamespace(time=lambda: now, monotonic=lambda: now))
    counts = Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99)
    loose = counts.set_rule(0.05, 5)
    common = {**batch(n), "reason": np.full(n, int(Reason.NONE), dtype=np.uint8)}
    strange = {**common, "reason": np.full(n, int(Reason.OUTLIER), dtype=np.uint8)}

    assert not loose.observe(**common)
    assert not loose.observe(**strange, is_shadow=True)
    assert loose.observe(**strange)
    loose.remember_outlier("first", 0.01)
    assert not loose.observe(**strange)
    assert not counts.set_rule(0.05, 5).observe(**strange)
    now += 1.0
    assert loose.observe(**strange)
    loose.remember_outlier("second", 0.01)
    tight = counts.set_rule(0.01, 1)
    assert not loose.observe(**strange)
    assert tight.observe(**strange)


def test_latest_outlier_is_remembered_once_a_second(tmp_path: Path) -> None:
    """The first of a burst is kept, cut to the length there is."""
    counts = Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99)

    counts.remember_outlier("ü" * 100, 0.01)
    counts.set_rule(0.0, 0).remember_outlier("second", 0.02)

    seen = only(tmp_path, "model")
    assert "".join(chr(int(code)) for code in seen.sections["exemplar_id"]) == "ü" * 64
    assert seen.number("exemplar_p") == 0.01


def test_an_outlier_is_remembered_for_as_long_as_its_rule(tmp_path: Path) -> None:
    """Under the next one it may be none."""
    counts = Counts(tmp_path, 0).model("m", VERSION, classes=10, calibration_rows=99)
    loose = counts.set_rule(0.05, 5)
    loose.remember_outlier("first", 0.05)
    before = only(tmp_path, "model").number("exemplar_time")

    counts.set_rule(0.01, 1)
    loose.remember_outlier("late", 0.05)

    assert before > 0.0
    assert only(tmp_path, "model").number("exemplar_time") == 0.0


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    """What was counted is there after a process that had no time to close anything."""
    program = f"""
import os, signal
from pathlib import Path
from darksight_service.metrics import Counts
counts = Counts(Path({str(tmp_path)!r}), 0)
for _ in range(1000):
    counts.process.start_call()
os.kill(os.getpid(), signal.SIGKILL)
"""

    done = subprocess.run([sys.executable, "-c", program])

    assert done.returncode == -signal.SIGKILL
    assert only(tmp_path, "process").number("calls") == 1000


def test_counting_needs_no_prometheus_client() -> None:
    """Workers do not carry what only the parent uses."""
    program = "import sys, darksight_service.metrics; sys.exit('prometheus_client' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
