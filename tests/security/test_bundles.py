"""Hostile bundles: valid hashes around numbers and shapes that would hold a process or its memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from darksight_service.control.bundle_files import LOAD_SECONDS, BundleLoader
from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry, Version
from darksight_service.control.state_file import StateFile
from darksight_service.errors import RefusedError, RequestError
from darksight_service.metrics.counts import Counts
from darksight_service.store.store import Store

from darksight_core.bundle import MAX_FILE, container, decode_bundle, encode_bundle
from darksight_core.bundle.manifest import check_manifest
from darksight_core.errors import BundleError, ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.map.anchors import Anchors
from darksight_core.map.student import Student
from tests.support.bundles import CERTIFICATE, forged, make_bundle
from tests.support.errors import raises_code

T = TypeVar("T")


@cache
def gated() -> bytes:
    """The file of a bundle with a gate and a certificate."""
    bundle = make_bundle()
    gate = Gate(outlier=cutoff(len(bundle.calibration), 0.05), reject_score="msp", threshold=1.0)
    return encode_bundle(bundle.with_gate(gate, CERTIFICATE))


def with_entry(name: str, value: object) -> bytes:
    """The same file with another value of an entry; without the entry if the value is `...`."""

    def change(_: object, manifest: dict[str, Any]) -> None:
        *path, last = name.split(".")
        section = reduce(lambda found, key: found[key], path, manifest)
        if value is ...:
            del section[last]
        else:
            section[last] = value

    return forged(gated(), change)


def within(seconds: float, function: Callable[[], T]) -> T:
    """What a function returns or raises; fails if it takes longer."""
    found: list[T | Exception] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"it took more than {seconds} s"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


NUMBERS = [
    ("embed.refine_steps", 10**12),
    ("embed.refine_steps", 101),
    ("embed.refine_steps", True),
    ("embed.refine_steps", 5.5),
    ("embed.n_inputs", 10**9),
    ("embed.n_inputs", "3"),
    ("embed.dof", 1e300),
    ("embed.bound", "60"),
    ("embed.temperature", 1e-300),
    ("embed.network_above", -1.0),
    ("embed.columns", list(range(100_000))),
    ("outlier_score.gen_slope", "1.0"),
    ("calibration.n", 2**60),
    ("splits.fit.n", 10**30),
    ("gate.outlier.alpha", 7),
    ("gate.outlier.rows_needed", 10**40),
    ("gate.reject.threshold", "nan"),
    ("gate.fail_open", 1),
    ("gate.regions", [{"name": "a", "polygon": [[0, 0], [1, 0], [1, 1]]}] * 65),
    ("gate.regions", [{"name": "a", "polygon": [[x, x * x] for x in range(3_000)]}] * 3),
    ("certificate", {}),
    ("certificate.outlier.promised", ...),
    ("certificate.outlier.promised", 1.5),
    ("certificate.outlier.feasible", "yes"),
    ("fidelity.served", {"kl_sym": 1.0}),
    ("fit_config.note", 10**400),
    ("fit_config.note", "x" * 100_001),
    ("class_names", ["a", "b", "c\0"]),
    ("warnings", ["w"] * 101),
]


@pytest.mark.parametrize(("name", "value"), NUMBERS, ids=[f"{name}={str(value)[:20]}" for name, value in NUMBERS])
def test_every_number_of_a_manifest_has_bounds(name: str, value: object) -> None:
    """A value out of bounds is refused by the schema, at once and by its name."""
    data = with_entry(name, value)

    with raises_code("bundle_manifest", match=name.split(".")[0]):
        within(LOAD_SECONDS, lambda: decode_bundle(data))


def test_the_calibration_of_a_large_fit_is_within_bounds() -> None:
    """Ten million calibration rows, which the file can hold, pass the schema; more than a file can hold do not."""

    def manifest(rows: int) -> dict[str, Any]:
        found = deepcopy(container.decode(gated()).manifest)
        found["calibration"]["n"] = found["gate"]["outlier"]["n"] = found["splits"]["calibrate"]["n"] = rows
        found["tensors"]["calibration.scores"][1] = [rows]
        return found

    check_manifest(manifest(10_000_000), "bundle")
    with raises_code("bundle_manifest", match=r"calibration\.n must be an integer"):
        check_manifest(manifest(MAX_FILE // 8), "bundle")


def test_calibration_scores_that_are_not_sorted_are_refused() -> None:
    """A bundle is written with sorted scores; sorting twenty million at a load would hold the service."""

    def change(tensors: dict[str, Any], _: object) -> None:
        tensors["calibration.scores"] = tensors["calibration.scores"][::-1].copy()

    with pytest.raises(BundleError, match="not sorted"):
        decode_bundle(forged(gated(), change))


def test_the_slowest_permitted_bundle_loads_in_time() -> None:
    """All numbers that cost time at their bounds together stay below the limit of a load."""
    corners = [[float(x), float(x % 7)] for x in range(4_096)]

    def change(_: object, manifest: dict[str, Any]) -> None:
        manifest["embed"]["refine_steps"] = 100
        manifest["gate"]["regions"] = [{"name": f"r{k}", "polygon": corners, "expires_ms": 0} for k in range(2)]

    data = forged(gated(), change)
    started = time.monotonic()

    # More steps move the probes, so it may be refused for that; what counts is the time.
    code = "bundle_probe"
    try:
        decode_bundle(data)
    except BundleError as error:
        code = error.code

    assert code == "bundle_probe"
    assert time.monotonic() - started < LOAD_SECONDS


def test_more_axes_than_the_compiled_code_has_are_refused() -> None:
    """They would pass all scores of the probes and fail when the version is activated."""

    def change(tensors: dict[str, Any], _: object) -> None:
        for name in ("log_ratio", "direction"):
            axes, precisions = tensors[f"outlier_score.{name}_axes"], tensors[f"outlier_score.{name}_precisions"]
            more = 9 - len(axes)
            tensors[f"outlier_score.{name}_axes"] = np.concatenate([axes, np.zeros((more, axes.shape[1]))])
            tensors[f"outlier_score.{name}_precisions"] = np.insert(precisions, len(axes), np.ones(more))

    data = forged(gated(), change)

    with pytest.raises(BundleError):
        Version(decode_bundle(data)).get_ready()


def test_anchors_of_one_class_do_not_fill_memory() -> None:
    """Every class is filled up to the most anchors of one class; a small file could ask for gigabytes."""
    angles = 2.0 * np.pi * np.arange(100) / 100
    means = 1e3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    student = Student(means, np.ones(100), np.zeros(100))
    anchors = means[0] + np.random.default_rng(0).normal(size=(10_000, 2))

    with pytest.raises(ConfigError, match="anchors of one class"):
        Anchors.of(student, anchors)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """Operations on a data directory with a bundle directory `bundles`."""
    (tmp_path / "bundles").mkdir()
    state_file, counts = StateFile(tmp_path / "data" / "registry.json"), Counts(tmp_path / "data" / "counts", 0)
    with Store.open(f"sqlite:///{tmp_path / 'data' / 'store.db'}", auto_upgrade=True) as store:
        yield Control(Registry(state_file, tmp_path / "bundles", counts), state_file, lambda: store)
    counts.close()


def test_a_hostile_bundle_does_not_hold_a_deployment(control: Control, tmp_path: Path) -> None:
    """The call fails within the limit, and the next good bundle is deployed."""
    (tmp_path / "bundles" / "slow.safetensors").write_bytes(with_entry("embed.refine_steps", 10**12))
    (tmp_path / "bundles" / "good.safetensors").write_bytes(gated())

    with pytest.raises(BundleError, match="refine_steps"):
        within(LOAD_SECONDS + 1.0, lambda: control.deploy("m", "slow.safetensors", activate=True, author="a"))

    assert len(control.deploy("m", "good.safetensors", activate=True, author="a")) == 64


@pytest.mark.parametrize("path", ["a\0b", "", "../secret", "/etc/passwd"])
def test_a_path_that_is_no_file_of_the_directory_is_refused(control: Control, path: str) -> None:
    """Such a path is an invalid request, not an internal error."""
    with pytest.raises(RequestError, match="bundle directory"):
        control.deploy("m", path, activate=False, author="a")


def test_a_load_ends_within_its_limit() -> None:
    """A load that takes too long is refused, so is the next while it runs, and after its end loads work again."""
    loader, release = BundleLoader(seconds=0.2), threading.Event()

    for message in ("not loaded within 0.2 s", "another bundle"):
        started = time.monotonic()
        with pytest.raises(RefusedError, match=message):
            loader.run(lambda: release.wait(30.0))
        assert time.monotonic() - started < 5.0
    release.set()

    assert within(5.0, lambda: loader.run(lambda: 7)) == 7


def test_a_load_that_took_too_long_is_there_for_a_retry() -> None:
    """It is not started again, unless what is loaded has changed."""
    loader, release, loads = BundleLoader(seconds=0.2), threading.Event(), []

    def load() -> int:
        loads.append(release.wait(30.0))
        return len(loads)

    for _ in range(2):
        with pytest.raises(RefusedError, match="not loaded within"):
            loader.run(load, "first")
    release.set()

    assert within(5.0, lambda: loader.run(load, "first")) == 1
    assert within(5.0, lambda: loader.run(load, "second")) == 2


def test_an_error_of_a_load_is_raised_in_the_call() -> None:
    """What the load raises reaches the caller, and the loader is free again."""
    loader = BundleLoader()

    with pytest.raises(ZeroDivisionError):
        loader.run(lambda: 1 // 0)

    assert loader.run(lambda: 1) == 1
