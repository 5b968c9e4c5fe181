"""Service: pace beside a no-op echo, latency, overload and tags.

Two workers with everything on (validation, metrics, spool drained to SQLite, tokens) against two echo processes of the
same kind that answer with as many bytes, in turns, with the same generators on the same cores. While the echo has its
turn the storage worker is stopped, so that nothing of ours runs beside it. What counts are the ratios.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
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
from tests.bench.load import Generator, Taken, cpu_seconds, merged, resident_bytes

_ROOT = Path(__file__).parents[2]
_SCORE = "/darksight.v1.MonitorService/Score"
_WORKERS = 2
_GENERATORS = 2
_DISTINCT = 64
# Long, because after a change to the compiled loops the first start compiles them.
_START_SECONDS = 400.0

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

    def requests(self, rows: int, classes: int, count: int = _DISTINCT, *, has_ids: bool = False) -> list[bytes]:
        """Serialised ScoreRequests, whose rows may have ids of 16 letters."""
        from darksight_client.stubs.darksight.v1 import monitor_pb2

        tensors = self.tensors(rows, classes, count)
        return [
            monitor_pb2.ScoreRequest(
                model=f"k{classes}",
                tensor=monitor_pb2.Tensor(shape=[rows, classes], data=tensor.tobytes()),
                prediction_ids=[f"{number * rows + row:016x}" for row in range(rows * has_ids)],
            ).SerializeToString()
            for number, tensor in enumerate(tensors)
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
            is_compiled=True,
        )
        try:
            wait_until(lambda: len(server.children()) == workers + 1, what="all children")
            # Until then numpy scores, with CPU of its own.
            wait_until(lambda: len(server.events("kernel_loaded")) >= workers, _START_SECONDS, "compiled code")
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


# -- tags --------------------------------------------------------------------------------------------------------------


def tags(bench: Bench) -> results.Parts:
    """CPU of a call of one row with four tags beside one without, what a call without pays, and bytes of a row."""
    seconds, turns = bench.either(4.0, 1.0), bench.either(6, 3)
    found: dict[str, list[float]] = {"none": [], "four": []}
    with bench.serving([10]) as ours, generators() as some:
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


_PARTS: dict[str, tuple[str, Callable[[Bench], results.Parts]]] = {
    "pace": ("pace beside a no-op echo", pace),
    "latency": ("latency", latency),
    "overload": ("five-fold overload", overload),
    "tags": ("calls with tags", tags),
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
