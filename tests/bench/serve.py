"""Service: pace beside a no-op echo, latency, overload, hot swaps, restarts, fuzz, and MLServer as a peer.

Two workers with everything on (validation, metrics, spool drained to SQLite, tokens) against two echo processes of the
same kind that answer with as many bytes, in turns, with the same generators on the same cores. While the echo has its
turn the storage worker is stopped, so that nothing of ours runs beside it. What counts are the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import results
from tests.bench.echo import METHOD as ECHO
from tests.bench.echo import running_echo
from tests.bench.http_load import request_bytes
from tests.bench.load import Generator, Taken, cpu_seconds, merged, resident_bytes

_ROOT = Path(__file__).parents[2]
_SCORE, _INFER = "/darksight.v1.MonitorService/Score", "/inference.GRPCInferenceService/ModelInfer"
_WORKERS = 2
_GENERATORS = 2
_DISTINCT = 64
# Long, because after a change to the compiled loops the first start compiles them.
_START_SECONDS = 400.0
# With a later uvloop its parallel workers end at once: "There is no current event loop".
_MLSERVER = ("mlserver==1.7.1", "uvloop<0.22", "numba", "safetensors")
_ATHERIS = ("atheris==3.0.0", "numba", "prometheus-client")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

Row = tuple[object, ...]


def tell(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def verdict(value: float, target: float, *, most: bool) -> str:
    """Whether a target is met; a figure that is not there is a miss."""
    return "met" if (value <= target if most else value >= target) else "**missed**"


def median(values: Sequence[float]) -> float:
    """Of a few runs."""
    return float(statistics.median(values))


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median, and the least and largest."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


@dataclass(slots=True)
class Served:
    """A running service, as the generators need it."""

    server: Any
    address: str
    workers: list[int]
    storage: int
    token: str

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """What every call carries."""
        return [("authorization", f"Bearer {self.token}")]

    @contextmanager
    def storage_stopped(self) -> Iterator[None]:
        """For a turn of the echo, which has no storage worker."""
        os.kill(self.storage, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.storage, signal.SIGCONT)


class Bench:
    """What the parts share.

    Parameters
    ----------
    folder
        For bundles and data.
    quick
        Whether a short look will do.
    """

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self._servers = 0

    def either(self, full: Any, quick: Any) -> Any:
        """One of two sizes."""
        return quick if self.quick else full

    def bundle(self, classes: int, seed: int = 0) -> Path:
        """A bundle, made when it is first asked for."""
        from darksight_core.bundle import write_bundle
        from tests.bench.maps import fitted_bundle

        path = self.folder / f"k{classes}-{seed}.safetensors"
        if not path.exists():
            tell(f"a map of {classes} classes is made")
            write_bundle(path, fitted_bundle(classes, seed=seed))
        return path

    @cached_property
    def token_file(self) -> tuple[Path, str]:
        """A token file and its token, made as an operator makes one."""
        path = self.folder / "tokens"
        command = [sys.executable, "-m", "darksight_service.cli", "token", str(path), "bench"]
        done = subprocess.run(
            [*command, "--scopes", "score,report,read,admin"], capture_output=True, text=True, check=True
        )
        return path, done.stdout.strip()

    def requests(self, rows: int, classes: int, count: int = _DISTINCT) -> list[bytes]:
        """Serialised ScoreRequests."""
        from darksight_client.stubs.darksight.v1 import monitor_pb2

        tensors = self.tensors(rows, classes, count)
        return [
            monitor_pb2.ScoreRequest(
                model=f"k{classes}", tensor=monitor_pb2.Tensor(shape=[rows, classes], data=tensor.tobytes())
            ).SerializeToString()
            for tensor in tensors
        ]

    def tensors(self, rows: int, classes: int, count: int) -> list[Any]:
        """Their predictions."""
        from tests.bench.maps import new_rows

        return np.split(new_rows(rows * count, classes), count)

    @contextmanager
    def serving(self, classes: Sequence[int], *options: str, workers: int = _WORKERS) -> Iterator[Served]:
        """A service with a model k<classes> for each number of classes."""
        from tests.support.servers import start_server, wait_until

        tokens, token = self.token_file
        self._servers += 1
        server = start_server(
            self.folder / f"data-{self._servers}",
            {f"k{k}": self.bundle(k) for k in classes},
            *("--workers", str(workers), *options),
            environment={"DARKSIGHT_TOKENS_FILE": str(tokens)},
            seconds=_START_SECONDS,
        )
        try:
            wait_until(lambda: len(server.children()) == workers + 1, what="all children")
            children = server.children()
            pids = [children[f"worker-{number}"] for number in range(workers)]
            yield Served(server, server.grpc_target, pids, children["storage"], token)
        finally:
            if server.process.poll() is None:
                server.stop()


@contextmanager
def generators(count: int = _GENERATORS, *, nice: int = 0) -> Iterator[list[Generator]]:
    """Load generators for the time of a block."""
    with ExitStack() as stack:
        yield [stack.enter_context(Generator(number, nice=nice)) for number in range(count)]


def together(some: Sequence[Generator], work: str, *arguments: Any, **options: Any) -> Taken:
    """The same work on all generators at the same time."""
    for generator in some:
        generator.start(work, *arguments, **options)
    return merged([generator.result() for generator in some])


def connect(
    some: Sequence[Generator], name: str, address: str, pids: Sequence[int], metadata: Any, each: int = 1
) -> None:
    """Connect all generators, one after the other: they count the connections of each process."""
    for generator in some:
        generator.ask("connect", name, address, pids, metadata, each)


def demand_ok(taken: Taken, what: str) -> Taken:
    """A run in which nothing may fail."""
    if set(taken.statuses) - {"OK"} or not taken.ok:
        raise RuntimeError(f"{what}: {dict(taken.statuses)}, {dict(taken.texts)}")
    return taken


def answer_size(generator: Generator, name: str, request: bytes) -> int:
    """Bytes of the answer to a request."""
    taken = generator.ask("closed", name, _SCORE, [request], in_flight=1, seconds=0.2, keep_every=1)
    return len(demand_ok(taken, "a first call").kept[0][1])


def with_cpu(run: Callable[[], Taken], *groups: Sequence[int]) -> tuple[Taken, list[float]]:
    """A run, and CPU seconds per call of groups of processes."""
    before = [sum(map(cpu_seconds, pids)) for pids in groups]
    taken = run()
    after = [sum(map(cpu_seconds, pids)) for pids in groups]
    return taken, [(late - early) / max(taken.calls, 1) for early, late in zip(before, after, strict=True)]


# -- pace --------------------------------------------------------------------------------------------------------------

_SHAPES = ((1, 10, 16), (1, 1000, 16), (256, 10, 8), (4096, 100, 4))
"""Rows, classes and calls in flight of each generator."""


def pace(bench: Bench) -> results.Parts:
    """Calls per second, CPU per call and latency of one caller, beside the echo."""
    seconds, single_seconds = bench.either(3.0, 1.0), bench.either(2.0, 0.7)
    rows: list[Row] = []
    keeping: list[str] = []
    with (
        bench.serving([10, 100, 1000]) as ours,
        running_echo(_WORKERS) as (address, echo_pids),
        generators() as some,
    ):
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        connect(some, "echo", address, echo_pids, ours.metadata)
        for size, classes, in_flight in _SHAPES:
            requests = bench.requests(size, classes, _DISTINCT if size == 1 else 4)
            echo = ECHO.format(answer_size(some[0], "ours", requests[0]))
            found: dict[str, list[float]] = {}

            def note(name: str, value: float, found: dict[str, list[float]] = found) -> None:
                found.setdefault(name, []).append(value)

            for turn in range(4):
                # The first turn warms up.
                length = seconds if turn else 0.5
                run = {"in_flight": in_flight, "seconds": length}
                taken, (cpu, storage_cpu) = with_cpu(
                    lambda run=run, requests=requests: together(some, "closed", "ours", _SCORE, requests, **run),
                    ours.workers,
                    [ours.storage],
                )
                demand_ok(taken, f"ours, B={size}, K={classes}")
                with ours.storage_stopped():
                    bare, (bare_cpu,) = with_cpu(
                        lambda run=run, requests=requests, echo=echo: together(
                            some, "closed", "echo", echo, requests, **run
                        ),
                        echo_pids,
                    )
                    demand_ok(bare, "echo")
                if not turn:
                    continue
                for name, value in (
                    ("calls", taken.ok_per_second), ("echo calls", bare.ok_per_second), ("cpu", cpu),
                    ("echo cpu", bare_cpu), ("storage cpu", storage_cpu), ("client cpu", taken.cpu / taken.calls),
                    ("calls ratio", taken.ok_per_second / bare.ok_per_second), ("cpu ratio", cpu / bare_cpu),
                ):  # fmt: skip
                    note(name, value)
                if size == 1:
                    one = some[0].ask("single", "ours", _SCORE, requests, seconds=single_seconds)
                    with ours.storage_stopped():
                        two = some[0].ask("single", "echo", echo, requests, seconds=single_seconds)
                    note("p50", one.quantile(0.5))
                    note("echo p50", two.quantile(0.5))
                    note("p50 ratio", one.quantile(0.5) / two.quantile(0.5))
            rows += _pace_rows(size, classes, found)
            keeping.append(
                f"B = {size}, K = {classes}: storage worker {1e6 * median(found['storage cpu']):,.0f} us, "
                f"generators {1e6 * median(found['client cpu']):,.0f} us per call"
            )
            tell(f"pace B={size} K={classes}: " + ", ".join(f"{name} {spread(v, '.4g')}" for name, v in found.items()))
        dropped = _metric(ours, "spool_dropped")
    header = ("rows", "K", "figure", "ours", "echo", "ours / echo, median of 3 (range)", "target", "")
    notes = "CPU beside the workers, on the same cores: " + "; ".join(keeping) + "."
    if dropped:
        notes += f" Records dropped because the spool was full: {dropped:,.0f}."
    return results.Table(header, rows), notes


def _pace_rows(size: int, classes: int, found: dict[str, list[float]]) -> list[Row]:
    """The figures of one shape and what is wanted of them."""

    def row(
        what: str, name: str, form: str, scale: float, target: float | None, *, most: bool, wanted: str = ""
    ) -> Row:
        ratios = found[f"{name} ratio"]
        bound = f"{'at most' if most else 'at least'} {target:g}" if target is not None else wanted
        met = verdict(median(ratios), target, most=most) if target is not None else ""
        ours, echo = (f"{scale * median(found[key]):{form}}" for key in (name, f"echo {name}"))
        return size, classes, what, ours, echo, spread(ratios), bound, met

    if size == 1:
        return [
            row("calls/s", "calls", ",.0f", 1.0, 0.8, most=False),
            row("CPU per call, us", "cpu", ",.0f", 1e6, 1.35, most=True),
            row("p50 of one caller, us", "p50", ",.0f", 1e6, 1.3, most=True),
        ]
    if size < 4096:
        return [
            row("calls/s", "calls", ",.0f", 1.0, None, most=False),
            row("CPU per call, us", "cpu", ",.0f", 1e6, 4.0, most=True),
        ]
    pace = row("rows/s", "calls", ",.0f", size, None, most=False, wanted="at least 250,000 rows/s")
    is_met = size * median(found["calls"]) >= 250_000
    return [
        (*pace[:-1], "met" if is_met else "**missed**"),
        row("CPU per call, us", "cpu", ",.0f", 1e6, None, most=True),
    ]


def _metric(ours: Served, name: str) -> float:
    """Sum of a counter over all its labels, 0 if it is not there."""
    _, page = ours.server.get("/metrics")
    lines = [line for line in page.splitlines() if name in line.split("{")[0] and not line.startswith("#")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


# -- latency -----------------------------------------------------------------------------------------------------------


def latency(bench: Bench) -> results.Parts:
    """Quantiles below saturation, and of single rows beside a bulk client."""
    seconds = bench.either(5.0, 1.5)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ("ours", "echo")}
    with (
        bench.serving([10, 100]) as ours,
        running_echo(_WORKERS) as (address, echo_pids),
        generators() as some,
    ):
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        connect(some, "echo", address, echo_pids, ours.metadata)
        one, bulk = bench.requests(1, 10), bench.requests(4096, 100, 4)
        methods = {"ours": (_SCORE, _SCORE)}
        methods["echo"] = tuple(ECHO.format(answer_size(some[0], "ours", each[0])) for each in (one, bulk))  # type: ignore[assignment]  # two
        for turn in range(3):
            for name, (method, bulk_method) in methods.items():
                with ExitStack() as stack:
                    if name == "echo":
                        stack.enter_context(ours.storage_stopped())
                    _latency_turn(some, name, method, bulk_method, one, bulk, seconds, found[name])
            tell(
                f"latency, turn {turn + 1} of 3: "
                + str({name: {k: f"{v[-1]:.4g}" for k, v in each.items()} for name, each in found.items()})
            )
    rows: list[Row] = []
    for what, top, bottom, target in (
        ("p99 / p50 at 70% of saturation", "p99 at 70%", "p50 at 70%", 5.0),
        ("single-row p99, beside a bulk client / alone", "p99 beside bulk", "p99 alone", 3.0),
    ):
        for name, each in found.items():
            ratios = [high / low for high, low in zip(each[top], each[bottom], strict=True)]
            is_ours = name == "ours"
            rows.append(
                (
                    what, name, f"{1e3 * median(each[bottom]):.2f}", f"{1e3 * median(each[top]):.2f}", spread(ratios),
                    *((f"at most {target:g}", verdict(median(ratios), target, most=True)) if is_ours else ("", "")),
                )
            )  # fmt: skip
    header = ("figure", "server", "lower, ms", "upper, ms", "ratio, median of 3 (range)", "target", "")
    ours_found = found["ours"]
    notes = (
        f"B = 1, K = 10; saturation {median(ours_found['saturation']):,.0f} calls/s (echo "
        f"{median(found['echo']['saturation']):,.0f}). Calls are due at even times and latencies count from then. "
        f"Alone and beside bulk: 10% of saturation; the bulk client sends B = 4096, K = 100, two at a time, and gets "
        f"{4096 * median(ours_found['bulk']):,.0f} rows/s (echo {4096 * median(found['echo']['bulk']):,.0f}). "
        f"Refused or failed at 70%: {100 * max(ours_found['refused']):.2f}% at most, and not in the quantiles."
    )
    return results.Table(header, rows), notes


def _latency_turn(
    some: Sequence[Generator], name: str, method: str, bulk_method: str, one: list[bytes], bulk: list[bytes],
    seconds: float, found: dict[str, list[float]],
) -> None:  # fmt: skip
    """All figures of one server, once."""

    def note(key: str, value: float) -> None:
        found.setdefault(key, []).append(value)

    full = demand_ok(together(some, "closed", name, method, one, in_flight=16, seconds=0.6 * seconds), name)
    note("saturation", full.ok_per_second)
    rate = 0.7 * full.ok_per_second / len(some)
    for number, generator in enumerate(some):
        generator.start("open", name, method, one, rate=rate, seconds=seconds, offset=number / len(some))
    taken = merged([generator.result() for generator in some])
    if taken.failures:
        tell(f"latency, {name}: {dict(taken.statuses)}, {dict(taken.texts)}")
    note("refused", 1.0 - taken.ok / taken.calls)
    note("p50 at 70%", taken.quantile(0.5))
    note("p99 at 70%", taken.quantile(0.99))
    single, other = some
    rate = 0.1 * full.ok_per_second
    alone = demand_ok(single.ask("open", name, method, one, rate=rate, seconds=seconds), name)
    note("p99 alone", alone.quantile(0.99))
    other.start("closed", name, bulk_method, bulk, in_flight=2, seconds=seconds + 0.4)
    time.sleep(0.3)
    beside = demand_ok(single.ask("open", name, method, one, rate=rate, seconds=seconds), name)
    load = demand_ok(other.result(), name)
    note("p99 beside bulk", beside.quantile(0.99))
    note("bulk", load.ok_per_second)


# -- overload ----------------------------------------------------------------------------------------------------------

_LIMIT = 64
"""Calls that a worker has in hand by default."""


def overload(bench: Bench) -> results.Parts:
    """Goodput at five times as many callers as the workers take in hand."""
    seconds = bench.either(10.0, 2.5)
    callers = 5 * _WORKERS * _LIMIT
    rows: list[Row] = []
    # Generators stand for other machines: the workers go before them.
    with bench.serving([10]) as ours, generators(nice=5) as some:
        connect(some, "ours", ours.address, ours.workers, ours.metadata, each=2)
        requests = bench.requests(1, 10)
        together(some, "closed", "ours", _SCORE, requests, in_flight=16, seconds=1.0)
        for what, obey in (("wait as the server says", True), ("call again at once", False)):
            peaks, runs, memory = [], [], []
            for _ in range(3):
                peak = together(some, "closed", "ours", _SCORE, requests, in_flight=16, seconds=0.4 * seconds)
                peaks.append(demand_ok(peak, "peak").ok_per_second)
                before = sum(map(resident_bytes, ours.workers))
                runs.append(
                    together(
                        some, "closed", "ours", _SCORE, requests,
                        in_flight=callers // len(some), seconds=seconds, obey_hints=obey,
                    )
                )  # fmt: skip
                memory.append((before, sum(map(resident_bytes, ours.workers))))
                tell(
                    f"overload, {what}: peak {peaks[-1]:,.0f}/s, goodput {runs[-1].ok_per_second:,.0f}/s, "
                    f"{dict(runs[-1].statuses)}"
                )
            ratios = [run.ok_per_second / peak for run, peak in zip(runs, peaks, strict=True)]
            failures = sum((run.failures for run in runs), Counter())
            refused = [run.statuses["RESOURCE_EXHAUSTED"] / run.calls for run in runs]
            offered = [run.calls / run.ok * ratio for run, ratio in zip(runs, ratios, strict=True)]
            rows.append(
                (
                    what, f"{median(peaks):,.0f}", f"{median([run.ok_per_second for run in runs]):,.0f}",
                    spread(ratios),
                    "at least 0.9", verdict(median(ratios), 0.9, most=False), f"{median(offered):.1f}",
                    f"{100 * median(refused):.1f}%", dict(failures) or 0,
                    f"{memory[0][0] / 1e6:.0f} to {memory[-1][1] / 1e6:.0f}",
                    f"{1e3 * median([run.quantile(0.99) for run in runs]):.0f}",
                )
            )  # fmt: skip
        refusals = _metric(ours, "overload")
    header = (
        "callers that are refused", "peak, calls/s", "goodput", "goodput / peak, median of 3 (range)", "target", "",
        "calls offered / peak", "refused with RESOURCE_EXHAUSTED", "other failures (target 0)", "workers' RSS, MB",
        "p99 of the good, ms",
    )  # fmt: skip
    notes = (
        f"{callers} callers on {_WORKERS} workers that take {_LIMIT} calls in hand each; peak with 32 callers. Callers "
        f"run on the workers' cores at lower priority. The server counted {refusals:,.0f} refusals."
    )
    return results.Table(header, rows), notes


# -- swaps -------------------------------------------------------------------------------------------------------------


def patient(ours: Served) -> Any:
    """A client for an operator's calls, which wait for SQLite while the storage worker writes."""
    from darksight_client import Client

    return Client(ours.address, token=ours.token, timeout_seconds=30.0)


def swaps(bench: Bench) -> results.Parts:
    """Activations of two versions in turn, under load."""
    from darksight_client.results.columns import read_response
    from darksight_service.control.registry import Version

    from darksight_core.bundle import read_bundle
    from darksight_core.runtime.policy import ScoringPolicy

    count, size, classes = bench.either(1000, 100), 4, 10
    paths = [bench.bundle(classes, seed) for seed in (0, 1)]
    versions = [Version(read_bundle(path)) for path in paths]
    names = [version.version for version in versions]
    tensors = bench.tensors(size, classes, _DISTINCT)
    requests = bench.requests(size, classes)
    policies = {version.version: ScoringPolicy(version.scorer, version.gate) for version in versions}
    expected = {name: [policy.score(tensor) for tensor in tensors] for name, policy in policies.items()}
    differing = sum(not np.array_equal(one.decision, two.decision) for one, two in zip(*expected.values(), strict=True))
    with bench.serving([classes]) as ours, generators() as some, patient(ours) as client:
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        bundles = ours.server.data_dir / "bundles"
        (bundles / "second.safetensors").write_bytes(paths[1].read_bytes())
        client.deploy(f"k{classes}", "second.safetensors", activate=False)
        run = {"in_flight": 1, "keep_every": 10, "marks": [name.encode() for name in names]}
        before = demand_ok(
            together(some, "closed", "ours", _SCORE, requests, seconds=bench.either(5.0, 2.0), **run), "k"
        )
        parts, failed_swaps, done, times = [], 0, 0, []
        started = time.perf_counter()
        while done < count:
            # In pieces, whose length is not known beforehand: a swap takes as long as it takes.
            for generator in some:
                generator.start("closed", "ours", _SCORE, requests, seconds=5.0, **run)
            end = time.perf_counter() + 4.8
            while done < count and time.perf_counter() < end:
                begun = time.perf_counter()
                try:
                    client.activate(f"k{classes}", names[(done + 1) % 2], author="bench")
                except Exception as error:
                    failed_swaps += 1
                    tell(f"swap {done}: {error}")
                done += 1
                times.append(time.perf_counter() - begun)
            # The rest of the piece is not under swaps, and at most a piece long.
            parts.append(merged([generator.result() for generator in some]))
            tell(f"swaps: {done} of {count}, {dict(parts[-1].statuses)}")
            if time.perf_counter() - started > 240:
                break
        elapsed = time.perf_counter() - started
        during = merged(parts)
        taken_over = len(ours.server.events("state_reloaded"))
    disagree, used = 0, Counter()
    for number, answer in during.kept:
        message, columns = read_response(answer, size)
        judged = expected.get(message.version)
        used[message.version] += 1
        disagree += judged is None or not (
            np.array_equal(columns["decision"], judged[number].decision)
            and np.array_equal(columns["p_value"], judged[number].p_value)
        )
    bad = during.statuses - Counter(OK=during.ok)
    strange = during.notes["unmarked"]
    early, late = before.quantile(0.99), during.quantile(0.99)
    rows: list[Row] = [
        ("swaps made", f"{done - failed_swaps:,}", f"{count:,}", verdict(done - failed_swaps, count, most=False)),
        (f"failed calls of {during.calls:,}", dict(bad) or 0, 0, verdict(bad.total(), 0, most=True)),
        (f"answers of another version, of {during.ok:,}", strange, 0, verdict(strange, 0, most=True)),
        (
            f"answers that disagree with the version they name, of {len(during.kept):,} checked", disagree, 0,
            verdict(disagree, 0, most=True),
        ),
        ("p99 under swaps / before", f"{1e3 * late:.1f} / {1e3 * early:.1f} ms = {late / early:.2f}", "", ""),
    ]  # fmt: skip
    notes = (
        f"B = {size}, K = {classes}, 2 calls in flight, {before.ok_per_second:,.0f} calls/s before and "
        f"{during.ok / elapsed:,.0f} during; a swap takes {1e3 * median(times):.0f} ms, the slowest "
        f"{1e3 * max(times):,.0f} ms, and {taken_over:,} were taken over by the other worker's watch. The versions "
        f"decide differently on {differing} of {len(tensors)} "
        f"requests; both answered ({', '.join(f'{each:,}' for each in used.values())} of the checked)."
    )
    return results.Table(("figure", "found", "target", ""), rows), notes


# -- restarts ----------------------------------------------------------------------------------------------------------


def restarts(bench: Bench) -> results.Parts:
    """SIGTERM to one of two replicas again and again, behind one client."""
    from darksight_client import Client

    from tests.support.servers import start_server

    count, callers, classes = bench.either(50, 4), 4, 10
    budget = bench.either(270.0, 60.0)
    tokens, token = bench.token_file
    tensors = bench.tensors(1, classes, _DISTINCT)
    failures: Counter[str] = Counter()
    latencies: list[float] = []
    stop = threading.Event()
    environment = {"DARKSIGHT_TOKENS_FILE": str(tokens)}
    model = {f"k{classes}": bench.bundle(classes)}
    ports = [_free_port() for _ in range(2)]

    def start(number: int) -> Any:
        options = ("--workers", "1", "--grpc-port", str(ports[number]))
        return start_server(
            bench.folder / f"replica-{number}", model, *options, environment=environment, seconds=_START_SECONDS
        )

    servers = [start(number) for number in range(2)]
    done, statuses = 0, Counter()
    try:
        with Client([server.grpc_target for server in servers], token=token) as client:

            def call() -> None:
                turn = 0
                while not stop.is_set():
                    turn += 1
                    sent = time.perf_counter()
                    try:
                        client.score(f"k{classes}", tensors[turn % _DISTINCT])
                        latencies.append(time.perf_counter() - sent)
                    except Exception as error:
                        failures[f"{type(error).__name__}: {error}"[:150]] += 1
                    # A replica that starts needs the processor too.
                    time.sleep(0.004)

            threads = [threading.Thread(target=call) for _ in range(callers)]
            for thread in threads:
                thread.start()
            started = time.perf_counter()
            while done < count and time.perf_counter() - started < budget:
                statuses[servers[0].stop()] += 1
                servers[0] = start(0)
                done += 1
                if done % 5 == 0:
                    tell(f"restarts: {done} of {count}, {len(latencies):,} calls, {failures.total()} failed")
            # And some time with both.
            time.sleep(1.0)
            elapsed = time.perf_counter() - started
            stop.set()
            for thread in threads:
                thread.join()
    finally:
        stop.set()
        for server in servers:
            if server.process.poll() is None:
                server.stop()
    calls = len(latencies) + failures.total()
    rows: list[Row] = [
        ("restarts", done, count, verdict(done, count, most=False)),
        ("exit statuses other than 0", done - statuses[0], 0, verdict(done - statuses[0], 0, most=True)),
        (f"failed calls of {calls:,}", dict(failures) or 0, 0, verdict(failures.total(), 0, most=True)),
        ("slowest call, ms", f"{1e3 * max(latencies):.0f}", "", ""),
    ]  # fmt: skip
    notes = f"{callers} callers share one Client of two addresses; {elapsed / max(done, 1):.1f} s per restart."
    return results.Table(("figure", "found", "target", ""), rows), notes


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# -- fuzz --------------------------------------------------------------------------------------------------------------


def score_seeds(bench: Bench) -> list[bytes]:
    """Good ScoreRequests of every form."""
    from darksight_client.stubs.darksight.v1 import monitor_pb2
    from darksight_service.store.ids import make_batch_id

    found = []
    for rows in (1, 3):
        probs = bench.tensors(rows, 10, 1)[0]
        tensor = monitor_pb2.Tensor(shape=probs.shape, data=probs.tobytes())
        lists = monitor_pb2.Rows(rows=[monitor_pb2.Row(values=row) for row in probs.tolist()])
        logits = monitor_pb2.Tensor(shape=probs.shape, data=np.log(probs).tobytes())
        found += [
            monitor_pb2.ScoreRequest(model="k10", tensor=tensor),
            monitor_pb2.ScoreRequest(model="k10", tensor=tensor, partial_ok=True),
            monitor_pb2.ScoreRequest(model="k10", rows=lists),
            monitor_pb2.ScoreRequest(model="k10", rows=lists, partial_ok=True),
            monitor_pb2.ScoreRequest(model="k10", tensor=logits, is_logits=True, partial_ok=True),
            monitor_pb2.ScoreRequest(
                model="k10",
                tensor=tensor,
                prediction_ids=[f"row {row}" for row in range(rows)],
                batch_id=make_batch_id(int(time.time() * 1000)),
                event_time={"seconds": int(time.time())},
                partial_ok=True,
            ),
        ]
    return [message.SerializeToString() for message in found]


def fuzz(bench: Bench) -> results.Parts:
    """Random and altered requests against the real server, and atheris on the decoder."""
    count = bench.either(100_000, 10_000)
    rows: list[Row] = []
    notes = []
    with bench.serving([10]) as ours, generators() as some:
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        seeds = {_SCORE: score_seeds(bench), _INFER: infer_requests(bench, 4) + infer_requests(bench, 4, is_raw=False)}
        for method, share in ((_SCORE, count), (_INFER, count // 5)):
            taken = together(some, "fuzz", "ours", method, seeds[method], count=share // len(some), in_flight=8)
            tell(f"fuzz {method}: {dict(taken.statuses)}, {dict(taken.notes)}")
            bad = taken.statuses["INTERNAL"] + taken.statuses["UNKNOWN"]
            statuses = ", ".join(f"{name} {n:,}" for name, n in taken.statuses.most_common())
            name = method.rpartition("/")[2]
            rows.append(
                (f"INTERNAL or UNKNOWN of {taken.calls:,} {name} calls", bad, 0, verdict(bad, 0, most=True), statuses)
            )
            if method == _SCORE:
                nan, seen = taken.notes["rows with NaN"], taken.notes["rows"] - taken.notes["invalid rows"]
                invalid, unscored = taken.notes["invalid rows"], taken.notes["unscored rows"]
                about = f"{invalid:,} rows were called invalid, {unscored:,} not scored"
                rows.append(
                    (f"rows with NaN of {seen:,} valid ones answered", nan, 0, verdict(nan, 0, most=True), about)
                )
        healthy = together(some, "closed", "ours", _SCORE, bench.requests(1, 10), in_flight=4, seconds=1.0)
        rows.append(
            (
                "failed calls afterwards",
                healthy.calls - healthy.ok,
                0,
                verdict(healthy.calls - healthy.ok, 0, most=True),
                "",
            )
        )
        restarted = len(ours.server.events("child_died"))
        rows.append(("processes that died", restarted, 0, verdict(restarted, 0, most=True), ""))
    runs = bench.either(200_000, 20_000)
    outcome, about = _atheris(runs)
    rows.append(
        (
            f"crashes in {runs:,} runs of atheris on the decoder",
            outcome,
            0,
            "met" if outcome == 0 else "**missed**",
            about,
        )
    )
    return results.Table(("figure", "found", "target", "", "note"), rows), *notes


def _atheris(runs: int) -> tuple[object, str]:
    """Crashes of the fuzz target, and what it said."""
    python, problem = ensure_venv("fuzz", _ATHERIS, base=True)
    if python is None:
        return "not run", problem
    target = _ROOT / "tests" / "support" / "fuzz" / "score_request.py"
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "service")])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, str(target), f"-atheris_runs={runs}", "-max_len=512", "-seed=2018"],
            cwd=folder, env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path, "TMPDIR": folder},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if " DONE " in line or "Error" in line or "Done" in line]
    tell(f"atheris: status {done.returncode}, {said[-2:]}")
    return int(done.returncode != 0), " ".join(said[-1:])[:200]


# -- HTTP --------------------------------------------------------------------------------------------------------------


def http(bench: Bench) -> results.Parts:
    """Calls per second over HTTP beside Score over gRPC on the same workers."""
    seconds, turns, each = bench.either(4.0, 1.5), bench.either(4, 3), 8
    rows: list[Row] = []
    with bench.serving([10], "--api-port", "0") as ours, generators() as some:
        host, _, port = ours.server.api_url.partition("://")[2].partition(":")
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        for generator in some:
            generator.ask("connect_http", "ours", (host, int(port)), ours.workers, each)
        kinds = {
            "infer, JSON": http_requests(bench, ours.token),
            "infer, binary": http_requests(bench, ours.token, is_binary=True),
        }
        found: dict[str, list[float]] = {"gRPC": [], **{kind: [] for kind in kinds}}
        for turn in range(turns):
            length = seconds if turn else 0.5
            score = bench.requests(1, 10)
            taken = together(some, "closed", "ours", _SCORE, score, in_flight=each * _WORKERS, seconds=length)
            speeds = {"gRPC": demand_ok(taken, "Score").ok_per_second}
            for kind, requests in kinds.items():
                taken = together(some, "closed_http", "ours", requests, seconds=length)
                speeds[kind] = demand_ok(taken, kind).ok_per_second
            if turn:
                for kind, speed in speeds.items():
                    found[kind].append(speed)
        tell(f"http: {found}")
        for kind in kinds:
            ratios = [one / two for one, two in zip(found[kind], found["gRPC"], strict=True)]
            rows.append(
                (
                    f"calls/s, {kind}, B = 1, K = 10", f"{median(found[kind]):,.0f}", f"{median(found['gRPC']):,.0f}",
                    spread(ratios), "at least 0.5", verdict(median(ratios), 0.5, most=False),
                )
            )  # fmt: skip
    header = ("figure", "HTTP", "Score over gRPC", "ratio, median (range)", "target", "")
    return results.Table(header, rows), f"{each * _WORKERS * _GENERATORS} calls in flight, one per HTTP connection."


def http_requests(bench: Bench, token: str, *, is_binary: bool = False) -> list[bytes]:
    """HTTP requests of one row."""
    found = []
    for probs in bench.tensors(1, 10, _DISTINCT):
        tensor: dict[str, Any] = {"name": "probs", "datatype": "FP32", "shape": list(probs.shape)}
        if not is_binary:
            body = json.dumps({"inputs": [{**tensor, "data": probs.tolist()}]}).encode()
            found.append(request_bytes("/v2/models/k10/infer", body, token))
            continue
        tensor["parameters"] = {"binary_data_size": probs.nbytes}
        text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        header = f"Inference-Header-Content-Length: {len(text)}\r\n"
        found.append(request_bytes("/v2/models/k10/infer", text + probs.tobytes(), token, header))
    return found


# -- tags --------------------------------------------------------------------------------------------------------------


def tags(bench: Bench) -> results.Parts:
    """CPU of a call of one row with four tags beside one without, what a call without pays, and bytes of a row."""
    from tests.support.servers import wait_until

    seconds, turns = bench.either(4.0, 1.0), bench.either(6, 3)
    found: dict[str, list[float]] = {"none": [], "four": []}
    with bench.serving([10]) as ours, generators() as some:
        # numpy scores before, with CPU of its own.
        wait_until(lambda: len(ours.server.events("kernel_loaded")) >= _WORKERS, _START_SECONDS, "compiled code")
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        kinds = {"none": bench.requests(1, 10), "four": tagged_requests(bench)}
        for turn in range(turns):
            for kind, requests in kinds.items() if turn % 2 else reversed(kinds.items()):
                run = {"in_flight": 16, "seconds": seconds if turn else 0.5}
                taken, (cpu,) = with_cpu(
                    lambda run=run, requests=requests: together(some, "closed", "ours", _SCORE, requests, **run),
                    ours.workers,
                )
                demand_ok(taken, f"{kind} tags")
                if turn:
                    found[kind].append(1e6 * cpu)
    ratios = [four / none for four, none in zip(found["four"], found["none"], strict=True)]
    absent, none = _absent_tags_us(kinds["none"][0]), median(found["none"])
    with_four, without = _row_bytes(2_000)
    tell(f"tags: {found}, absent {absent:.2f} us, row {with_four:.0f} and {without:.0f} bytes")
    rows: list[Row] = [
        ("CPU per call, four tags, us", f"{median(found['four']):,.0f}", f"{none:,.0f}", spread(ratios), "at most 1.1",
         verdict(median(ratios), 1.1, most=True)),
        ("CPU per call, looking for tags and a trace, us", f"{none:,.0f}", f"{none - absent:,.0f}",
         f"{none / (none - absent):.3f}", "at most 1.03", verdict(none / (none - absent), 1.03, most=True)),
        ("bytes of a row in PostgreSQL, four tags", f"{with_four:.0f}", f"{without:.0f}", f"+{with_four - without:.0f}",
         "at most +24", verdict(with_four - without, 24, most=True)),
    ]  # fmt: skip
    return results.Table(("figure", "with", "without", "ratio, median (range)", "target", ""), rows), "B = 1, K = 10."


def tagged_requests(bench: Bench) -> list[bytes]:
    """Serialised ScoreRequests of one row with four tags, of 40 cameras."""
    from darksight_client.stubs.darksight.v1 import monitor_pb2

    return [
        monitor_pb2.ScoreRequest(
            model="k10",
            tensor=monitor_pb2.Tensor(shape=[1, 10], data=tensor.tobytes()),
            tags={"camera": str(number % 40), "site": "Lyon", "line": str(number % 7), "shift": "night"},
        ).SerializeToString()
        for number, tensor in enumerate(bench.tensors(1, 10, _DISTINCT))
    ]


def _absent_tags_us(request: bytes) -> float:
    """Time in which a call without tags and trace finds that it has none."""
    from darksight_client.stubs.darksight.v1 import monitor_pb2
    from darksight_service.telemetry.traceparent import trace_of

    message = monitor_pb2.ScoreRequest.FromString(request)
    metadata = (("user-agent", "grpc-python"), ("authorization", "Bearer x"), ("grpc-accept-encoding", "gzip"))

    def look() -> None:
        if not (message.tags or message.row_tags):
            trace_of(metadata)

    return 1e6 * min(timeit.repeat(look, number=20_000, repeat=5)) / 20_000


def _row_bytes(rows: int) -> tuple[float, float]:
    """Bytes of a stored row with four tags and without, which are a multiple of 8."""
    from darksight_service.store.engine import reading
    from darksight_service.store.store import Store
    from sqlalchemy import text

    from tests.support.points import make_points
    from tests.support.postgres import running_postgres

    values = [{"camera": str(row % 40), "site": "Lyon", "line": str(row % 7), "shift": "night"} for row in range(rows)]
    with running_postgres() as server, Store.open(server.migrated_database()) as store:
        ms = time.time_ns() // 1_000_000
        for seed, given in enumerate(([], values)):
            store.insert([make_points(rows, ms=ms, seed=seed, with_invalid=False, names=None, tags=given)])
        query = "SELECT tags IS NULL, avg((pg_column_size(point.*) + 7) / 8 * 8) FROM point GROUP BY 1 ORDER BY 1"
        with reading(store._engine) as connection:
            (_, with_tags), (_, without) = connection.execute(text(query)).all()
    return float(with_tags), float(without)


# -- peers -------------------------------------------------------------------------------------------------------------


def infer_requests(bench: Bench, count: int = _DISTINCT, *, is_raw: bool = True) -> list[bytes]:
    """Serialised ModelInferRequests, B = 1, K = 10."""
    from darksight_client.stubs.inference import grpc_predict_v2_pb2 as pb2

    found = []
    for probs in bench.tensors(1, 10, count):
        tensor = pb2.ModelInferRequest.InferInputTensor(name="probs", datatype="FP32", shape=probs.shape)
        if not is_raw:
            tensor.contents.fp32_contents.extend(probs.ravel().tolist())
        message = pb2.ModelInferRequest(model_name="k10", inputs=[tensor])
        if is_raw:
            message.raw_input_contents.append(probs.tobytes())
        found.append(message.SerializeToString())
    return found


def ensure_venv(name: str, packages: Sequence[str], *, base: bool = False) -> tuple[Path | None, str]:
    """Python of a venv in .venv, made once, or why there is none; `base` adds what darksight itself needs."""
    import tomllib

    if base:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        packages = (*packages, *project["dependencies"])
    folder = _ROOT / ".venv" / name
    python, stamp = folder / "bin" / "python", folder / "ready"
    wanted = " ".join(packages)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        tell(f"making .venv/{name}: {wanted}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        made = subprocess.run([*install, *packages], capture_output=True, text=True)
        if made.returncode:
            return None, f"{wanted} cannot be installed: " + " ".join(made.stderr.strip().splitlines()[-1:])[:300]
        stamp.write_text(wanted, encoding="utf-8")
    return python, ""


@contextmanager
def running_mlserver(python: Path, bundle: Path, folder: Path, workers: int) -> Iterator[tuple[str, int]]:
    """MLServer with the scorer as a model k10, for the time of a block: its address and process id."""
    import grpc
    from darksight_client.stubs.inference import grpc_predict_v2_pb2 as pb2

    folder.mkdir()
    ports = {name: _free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    settings = {"host": "127.0.0.1", "parallel_workers": workers, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    model = {"name": "k10", "implementation": "tests.bench.peer.DarkSightModel", "parameters": {"uri": str(bundle)}}
    (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(_ROOT)}
    command = [str(python.with_name("mlserver")), "start", str(folder)]
    with open(folder / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    address = f"127.0.0.1:{ports['grpc_port']}"
    try:
        with grpc.insecure_channel(address) as channel:
            ready = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelReady", None, pb2.ModelReadyResponse.FromString
            )
            end = time.monotonic() + 90
            while True:
                try:
                    if ready(pb2.ModelReadyRequest(name="k10").SerializeToString(), timeout=5).ready:
                        break
                except grpc.RpcError:
                    pass
                if time.monotonic() > end or process.poll() is not None:
                    raise RuntimeError("MLServer did not start: " + (folder / "log").read_text()[-2000:])
                time.sleep(0.3)
        yield address, process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def peers(bench: Bench) -> results.Parts:
    """Calls per second of the same scorer in MLServer."""
    python, problem = ensure_venv("peers", _MLSERVER)
    if python is None:
        return problem
    seconds = bench.either(4.0, 1.5)
    score, infer = bench.requests(1, 10), infer_requests(bench)
    rows: list[Row] = []
    with bench.serving([10]) as ours, generators() as some:
        connect(some, "ours", ours.address, ours.workers, ours.metadata)
        for workers in (0, 1, 2):
            folder = bench.folder / f"mlserver-{workers}"
            with running_mlserver(python, bench.bundle(10), folder, workers) as (address, pid):
                connect(some, f"theirs {workers}", address, [pid], ())
                found: dict[str, list[float]] = {"score": [], "infer": [], "theirs": []}
                for turn in range(4):
                    length = seconds if turn else 0.5
                    for key, name, method, requests in (
                        ("score", "ours", _SCORE, score),
                        ("infer", "ours", _INFER, infer),
                        ("theirs", f"theirs {workers}", _INFER, infer),
                    ):
                        with ExitStack() as stack:
                            if key == "theirs":
                                stack.enter_context(ours.storage_stopped())
                            taken = together(some, "closed", name, method, requests, in_flight=16, seconds=length)
                        demand_ok(taken, f"{key}, {workers} parallel workers")
                        if turn:
                            found[key].append(taken.ok_per_second)
            tell(f"peers, MLServer with {workers} parallel workers: {found}")
            for key, what in (("score", "Score"), ("infer", "ModelInfer")):
                ratios = [one / two for one, two in zip(found[key], found["theirs"], strict=True)]
                rows.append(
                    (
                        what, f"{median(found[key]):,.0f}", f"ModelInfer, parallel_workers {workers}",
                        f"{median(found['theirs']):,.0f}", spread(ratios), "at least 2",
                        verdict(median(ratios), 2.0, most=False),
                    )
                )  # fmt: skip
    header = ("ours", "our calls/s", f"{_MLSERVER[0]}", "its calls/s", "ratio, median of 3 (range)", "target", "")
    notes = (
        "B = 1, K = 10, 32 calls in flight, raw contents. Ours validates, counts, stores and checks tokens; the model "
        "on MLServer only judges."
    )
    return results.Table(header, rows), notes


_PARTS: dict[str, tuple[str, Callable[[Bench], results.Parts]]] = {
    "pace": ("pace beside a no-op echo", pace),
    "latency": ("latency", latency),
    "overload": ("five-fold overload", overload),
    "swaps": ("hot swaps under load", swaps),
    "restarts": ("restarts of one of two replicas", restarts),
    "fuzz": ("random and altered requests", fuzz),
    "http": ("HTTP beside gRPC", http),
    "tags": ("calls with tags", tags),
    "peers": ("beside MLServer", peers),
}


def main(argv: list[str]) -> int:
    """Run all parts, or the ones named."""
    parser = argparse.ArgumentParser(prog="./dev bench serve", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], default=[], metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--quick", action="store_true", help="a short look; printed, and not saved")
    args = parser.parse_args(argv)
    results.is_quick |= args.quick
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # So that nothing is left running by a bench that is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    status = 0
    with tempfile.TemporaryDirectory(prefix="darksight-bench-") as folder:
        bench = Bench(Path(folder), args.quick)
        for part in args.parts or _PARTS:
            title, run = _PARTS[part]
            tell(f"{part}: begins")
            started = time.perf_counter()
            try:
                parts = run(bench)
            except Exception as error:
                if len(args.parts) == 1:
                    raise
                # One part that fails must not cost the figures of the others.
                tell(f"{part}: failed: {type(error).__name__}: {error}")
                status = 1
                continue
            results.save(f"serve: {title}", parts)
            tell(f"{part}: took {time.perf_counter() - started:.0f} s")
    return status
