"""Fuzz: hostile calls, manifests and files; no INTERNAL, no deadlock, no process above twice its resting memory.

Calls are good ones with changed bytes, sent to a real service with tokens, metrics and SQLite. HTTP requests are good
ones with changed fields, bytes and queries on every path, and noise. Manifests have valid
hashes around one to four changed entries. Files have any shape, dtype and text, and half of them damaged bytes. All
seeds are fixed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from darksight_core.bundle import encode_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from tests.bench import results
from tests.bench.load import Generator, resident_bytes
from tests.bench.serve import Bench, Served, connect, demand_ok, generators, tell, together, verdict
from tests.support.bundles import CERTIFICATE, make_bundle
from tests.support.fuzz.bodies import Bodies, send_noise
from tests.support.fuzz.calls import INFER, SCORE, admin_seeds, infer_seeds, score_seeds
from tests.support.fuzz.files import hostile_bundles, hostile_predictions, use_bundle, use_predictions

T = TypeVar("T")

_MODEL, _CLASSES = "k10", 10
_SCORES, _INFERS, _ADMINS, _MANIFESTS, _FILES = 100_000, 20_000, 20_000, 10_000, 2_000
_BODIES, _CONNECTIONS = 100_000, 4
_LOAD_SECONDS = 5.0
_MOST_MEMORY = 2.0
_WRONG = ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE")


class _Peaks:
    """The largest memory of some processes while a block runs."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.rest = {name: resident_bytes(pid) for name, pid in pids.items()}
        self.peak = dict(self.rest)

    def look(self) -> None:
        """Read the memory now."""
        for name, pid in self._pids.items():
            self.peak[name] = max(self.peak[name], resident_bytes(pid))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read the memory ten times a second."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.1):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def calls(bench: Bench, share: float) -> list[tuple[object, ...]]:
    """Rows of the table for calls, with this share of the full counts."""
    bundle = _in_bundle_dir(bench)
    rows: list[tuple[object, ...]] = []
    with bench.serving([_CLASSES], "--bundle-dir", str(bundle.parent)) as ours, generators() as some:
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        healthy = bench.requests(1, _CLASSES)
        demand_ok(together(some, "closed", "ours", SCORE, healthy, in_flight=16, seconds=3.0), "resting")
        names = {**{f"worker {k}": pid for k, pid in enumerate(ours.workers)}, "storage worker": ours.storage}
        peaks = _Peaks({**names, "supervisor": ours.server.process.pid})
        with peaks.watching():
            probs = bench.tensors(3, _CLASSES, 1)[0]
            rows.append(_fuzz(some, "Score", {SCORE: score_seeds(_MODEL, probs)}, share * _SCORES))
            rows.append(_fuzz(some, "ModelInfer", {INFER: infer_seeds(_MODEL, probs)}, share * _INFERS))
            admins = admin_seeds(_MODEL, _active_version(ours), bundle.name, hostile=100)
            rows.append(_fuzz(some, "admin", admins, share * _ADMINS))
        after = together(some, "closed", "ours", SCORE, healthy, in_flight=16, seconds=2.0)
        rows.append(_row("failed calls afterwards", after.calls - after.ok, 0))
        rows.append(_row("processes that died or hung", len(ours.server.events("child_died")), 0))
    for name, rest in peaks.rest.items():
        rows.append(_memory(name, rest, peaks.peak[name]))
    return rows


def http(bench: Bench, share: float) -> results.Parts:
    """The table of HTTP requests, with this share of the full count."""
    bundle, count = _in_bundle_dir(bench), int(share * _BODIES) // _CONNECTIONS
    with bench.serving([_CLASSES], "--api-port", "0", "--bundle-dir", str(bundle.parent)) as ours:
        version, probs = _active_version(ours), bench.tensors(2, _CLASSES, 1)[0]

        def send(seed: int, count: int = count) -> Counter[int]:
            bodies = Bodies(probs, seed=seed, model=_MODEL, version=version, bundle=bundle.name)
            return send_noise(ours.server.api_url, ours.token, bodies, count)

        # The first requests open the store and load modules, which processes keep.
        send(_CONNECTIONS, 500)
        names = {**{f"worker {k}": pid for k, pid in enumerate(ours.workers)}, "storage worker": ours.storage}
        peaks = _Peaks({**names, "supervisor": ours.server.process.pid})
        started = time.perf_counter()
        with peaks.watching(), ThreadPoolExecutor(_CONNECTIONS) as threads:
            statuses = sum(threads.map(send, range(_CONNECTIONS)), Counter())
        seconds = time.perf_counter() - started
        died, failed = len(ours.server.events("child_died")), len(ours.server.events("call_failed"))
    found = ", ".join(f"{status} {n:,}" for status, n in statuses.most_common())
    rows = [
        _row(f"status 500 of {statuses.total():,} requests", statuses[500], 0, found),
        _row("errors in the log", failed, 0, f"{statuses.total() / seconds:,.0f} requests/s"),
        _row("processes that died or hung", died, 0),
        *(_memory(name, rest, peaks.peak[name]) for name, rest in peaks.rest.items()),
    ]
    about = f"{_CONNECTIONS} connections. 429 and 503 are refusals by a limit, with a time to retry."
    return about, results.Table(("figure", "found", "target", "", "note"), tuple(rows))


def _in_bundle_dir(bench: Bench) -> Path:
    """A copy of the bundle in a bundle directory."""
    bundles, bundle = bench.folder / "bundles", bench.bundle(_CLASSES)
    bundles.mkdir(exist_ok=True)
    return Path(shutil.copy(bundle, bundles))


def _active_version(ours: Served) -> str:
    from darksight_client import Client

    with Client(ours.address, token=ours.token) as client:
        return client.model(_MODEL).active_version


def _fuzz(some: Sequence[Generator], name: str, seeds: Mapping[str, list[bytes]], count: float) -> tuple[object, ...]:
    """The same number of calls of each method; a call that does not end raises."""
    statuses: Counter[str] = Counter()
    each = max(int(count) // len(seeds) // len(some), 1)
    for method, requests in seeds.items():
        taken = together(some, "fuzz", "ours", method, requests, count=each, in_flight=8)
        tell(f"{method}: {dict(taken.statuses)}")
        statuses += taken.statuses
    wrong = sum(statuses[status] for status in _WRONG)
    found = ", ".join(f"{status} {n:,}" for status, n in statuses.most_common())
    return _row(f"{', '.join(_WRONG)} of {statuses.total():,} {name} calls", wrong, 0, found)


def _row(figure: str, found: float, target: float, note: str = "") -> tuple[object, ...]:
    return figure, found, f"at most {target:g}", verdict(found, target, most=True), note


def _memory(name: str, rest: int, peak: int) -> tuple[object, ...]:
    note = f"{rest / 1e6:.0f} MB at rest, {peak / 1e6:.0f} MB at most"
    return _row(f"memory of {name}, times its rest", round(peak / rest, 2), _MOST_MEMORY, note)


def _use_all(items: Iterable[T], use: Callable[[T], bool]) -> tuple[int, float, list[str], int, int]:
    """How many could be used, the longest time of one, defects, and memory of this process at rest and at most."""
    peaks, used, longest, defects = _Peaks({"": os.getpid()}), 0, 0.0, []
    for item in items:
        started = time.perf_counter()
        try:
            used += use(item)
        except Exception as error:
            what = item.suffix if isinstance(item, Path) else ""
            defects.append(f"{what} {type(error).__name__}: {error}".strip()[:200])
        longest = max(longest, time.perf_counter() - started)
        peaks.look()
    return used, longest, defects, peaks.rest[""], peaks.peak[""]


def manifests(data: bytes, count: int) -> tuple[int, float, list[str], int, int]:
    """Bundles with hostile manifests; runs in a process of its own."""
    use_bundle(data)
    return _use_all(hostile_bundles(data, count, seed=19), use_bundle)


def files(count: int) -> tuple[int, float, list[str], int, int]:
    """Hostile predictions files; runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Every format is read once, so that its libraries are loaded.
        for path in hostile_predictions(folder, 40, seed=18):
            use_predictions(path)
        return _use_all(hostile_predictions(folder, count, seed=19), use_predictions)


def _gated_bundle() -> bytes:
    """A bundle with every entry that a manifest may have."""
    made = make_bundle(400, _CLASSES)
    gate = Gate(outlier=cutoff(len(made.calibration), 0.05), reject_score="msp", threshold=1.0)
    return encode_bundle(made.with_gate(gate, CERTIFICATE))


def fuzz(bench: Bench, share: float) -> results.Parts:
    """The table of all parts."""
    rows = calls(bench, share)
    data, n_manifests, n_files = _gated_bundle(), int(share * _MANIFESTS), int(share * _FILES)
    for what, verb, work in (
        (f"{n_manifests:,} manifests with valid hashes", "loaded", (manifests, data, n_manifests)),
        (f"{n_files:,} predictions files", "were read", (files, n_files)),
    ):
        # A process of its own for each, whose memory is read.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            good, longest, defects, rest, peak = pool.submit(*work).result()
        tell(f"{what}: {good} {verb}, defects {Counter(defects).most_common(5)}")
        note = f"{good:,} {verb}, all others were refused by name"
        rows.append(_row(f"errors that are no refusals, of {what}", len(defects), 0, note))
        rows.append(_row(f"longest of {what}, s", round(longest, 2), _LOAD_SECONDS))
        rows.append(_memory(f"the process that reads {what}", rest, peak))
    about = "A call that does not end within 60 s ends the benchmark. Calls refused by a limit count as answered."
    return about, results.Table(("figure", "found", "target", "", "note"), tuple(rows))


def main(argv: list[str]) -> int:
    """Run the parts that are named; 1 if a target was missed."""
    parts = {"calls": ("fuzz: hostile calls and files", fuzz), "http": ("fuzz: hostile requests over HTTP", http)}
    parser = argparse.ArgumentParser(prog="./dev bench fuzz", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[], help="default: all")
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts (default 1)")
    args = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="darksight-bench-") as folder:
        bench, is_missed = Bench(Path(folder), results.is_quick), False
        for name in args.parts or parts:
            title, run = parts[name]
            found = run(bench, args.share)
            results.save(title, found)
            is_missed |= "**missed**" in str(found[-1])
    return int(is_missed)
