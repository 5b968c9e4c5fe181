"""Load generators for ./dev bench serve: processes that send prebuilt bytes and tell what came back.

    with Generator(0) as generator:
        generator.ask("connect", "ours", address, pids, metadata)
        generator.ask("closed", "ours", method, requests, in_flight=16, seconds=3.0)

A generator is pinned to a core like the servers it calls, and gives each of their processes the same
number of connections: the system spreads connections over a shared port by chance, and with few of them badly.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Generator", "Taken", "cpu_seconds", "merged", "resident_bytes"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_HINT = "grpc-retry-pushback-ms"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
# Beyond the end of a run, time for what is under way.
_LAST_SECONDS = 30.0
# OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED.
_EXPECTED = (0, 3, 5, 8)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, of all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


@dataclass(slots=True)
class Taken:
    """What a run of one or more generators gave.

    Parameters
    ----------
    statuses
        Calls by the name of their status, all of them.
    ok_per_second
        Good answers per second, the first fraction of a second left out.
    latencies
        Seconds of all good answers.
    kept
        Number of the request and answer, of some good calls.
    cpu
        CPU seconds of the generators.
    texts
        What was said about failures other than refusals and mistakes of the caller.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    ok_per_second: float = 0.0
    latencies: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    cpu: float = 0.0
    texts: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """All of them."""
        return self.statuses.total()

    @property
    def ok(self) -> int:
        """Good answers."""
        return self.statuses["OK"]

    @property
    def failures(self) -> Counter[str]:
        """All but good answers and refusals."""
        return Counter({name: n for name, n in self.statuses.items() if name not in ("OK", "RESOURCE_EXHAUSTED")})

    def quantile(self, share: float) -> float:
        """Of latencies, in seconds."""
        return float(np.quantile(self.latencies, share)) if len(self.latencies) else math.nan


def merged(parts: Sequence[Taken]) -> Taken:
    """One from those of several generators that ran at the same time."""
    return Taken(
        sum((part.statuses for part in parts), Counter()),
        sum(part.ok_per_second for part in parts),
        np.concatenate([part.latencies for part in parts]),
        [each for part in parts for each in part.kept],
        sum(part.cpu for part in parts),
        sum((part.texts for part in parts), Counter()),
    )


class Generator:
    """A process that makes load.

    Parameters
    ----------
    number
        Of the core it is put on.
    nice
        By how much everything else goes before it: a generator stands for other machines.
    """

    def __init__(self, number: int, *, nice: int = 0) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, number, nice), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, work: str, *arguments: Any, **options: Any) -> None:
        """Begin with one of the methods of `_Load`."""
        self._pipe.send((work, arguments, options))

    def result(self) -> Any:
        """What it gave, when it is done."""
        is_good, value = self._pipe.recv()
        if not is_good:
            raise RuntimeError(f"a generator failed: {value}")
        return value

    def ask(self, work: str, *arguments: Any, **options: Any) -> Any:
        """Both."""
        self.start(work, *arguments, **options)
        return self.result()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def _run(pipe: Connection, number: int, nice: int) -> None:
    """The process: does what it is asked until the other end is closed."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    os.nice(nice)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    load = _Load(number)
    while True:
        try:
            work, arguments, options = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            pipe.send((True, getattr(load, work)(*arguments, **options)))
        except Exception as error:
            pipe.send((False, f"{work}: {type(error).__name__}: {error}"))


class _Load:
    """What a generator can do; names are those of servers that were connected to."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._channels: dict[str, list[Any]] = {}
        self._metadata: dict[str, tuple[tuple[str, str], ...]] = {}

    def connect(
        self,
        name: str,
        address: str,
        pids: Sequence[int],
        metadata: Sequence[tuple[str, str]] = (),
        each: int = 1,
    ) -> None:
        """Open `each` connections to every process of a server."""
        import grpc

        found: dict[int, list[Any]] = {pid: [] for pid in pids}
        spare: list[Any] = []
        for _ in range(50 * each * len(pids)):
            if all(len(channels) >= each for channels in found.values()):
                break
            before = {pid: _count_sockets(pid) for pid in pids}
            channel = grpc.insecure_channel(address, _OPTIONS)
            grpc.channel_ready_future(channel).result(30)
            grown = [pid for pid in pids if _count_sockets(pid) > before[pid]] if len(pids) > 1 else list(pids)
            is_needed = len(grown) == 1 and len(found[grown[0]]) < each
            (found[grown[0]] if is_needed else spare).append(channel)
        else:
            raise RuntimeError(f"connections to {address} do not spread over its processes")
        for channel in spare:
            channel.close()
        # In turns, so that the first n of them are spread as well.
        self._channels[name] = [channel for some in zip(*found.values(), strict=True) for channel in some]
        self._metadata[name] = tuple(tuple(pair) for pair in metadata)  # type: ignore[misc]  # pairs

    def closed(
        self,
        name: str,
        method: str,
        requests: Sequence[bytes],
        *,
        in_flight: int,
        seconds: float,
        obey_hints: bool = False,
        keep_every: int = 0,
    ) -> Taken:
        """Callers that send the next request when they have the answer to the last.

        Parameters
        ----------
        name, method, requests
            What is sent to whom.
        in_flight
            How many callers.
        seconds
            How long.
        obey_hints
            Whether who is refused waits as long as the server says.
        keep_every
            Keep one of so many answers; 0 for none.
        """
        kept: list[tuple[int, bytes]] = []
        turn = itertools.count(1)

        def see(number: int, answer: bytes) -> None:
            if keep_every and next(turn) % keep_every == 0:
                kept.append((number, answer))

        numbered = itertools.cycle(list(enumerate(requests)))
        loop = _Loop(self._methods(name, method), self._metadata[name], numbered, see, obey_hints)
        taken = loop.run(in_flight, seconds)
        taken.kept = kept
        return taken

    def open(
        self, name: str, method: str, requests: Sequence[bytes], *, rate: float, seconds: float, offset: float = 0.0
    ) -> Taken:
        """Calls at fixed times, whatever becomes of them; latencies count from when each was due.

        Parameters
        ----------
        name, method, requests
            What is sent to whom.
        rate
            Calls per second.
        seconds
            How long.
        offset
            Share of the time between two calls by which to begin later.
        """
        loop = _Loop(self._methods(name, method), self._metadata[name], itertools.cycle(list(enumerate(requests))))
        return loop.run_by_schedule(rate, seconds, offset)

    def single(self, name: str, method: str, requests: Sequence[bytes], *, seconds: float) -> Taken:
        """One call after the other, on all connections in turn."""
        methods = itertools.cycle(self._methods(name, method))
        source = itertools.cycle(requests)
        latencies, metadata = [], self._metadata[name]
        cpu, started = time.process_time(), time.perf_counter()
        while time.perf_counter() - started < seconds:
            call, request = next(methods), next(source)
            sent = time.perf_counter()
            call(request, metadata=metadata, timeout=_LAST_SECONDS)
            latencies.append(time.perf_counter() - sent)
        elapsed = time.perf_counter() - started
        return Taken(
            Counter(OK=len(latencies)), len(latencies) / elapsed, np.array(latencies), cpu=time.process_time() - cpu
        )

    def _methods(self, name: str, method: str) -> list[Any]:
        return [channel.unary_unary(method, None, None) for channel in self._channels[name]]


class _Loop:
    """Calls under way, of which each end starts the next."""

    def __init__(
        self,
        methods: Sequence[Any],
        metadata: tuple[tuple[str, str], ...],
        source: Iterator[tuple[int, bytes]],
        see: Callable[[int, bytes], None] | None = None,
        obey_hints: bool = False,
    ) -> None:
        self._methods = methods
        self._metadata = metadata
        self._source = source
        self._see = see
        self._obey_hints = obey_hints
        self._done: list[tuple[Any, float, float]] = []
        self._delayed: deque[tuple[float, int]] = deque()
        self._end = math.inf
        self._live = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # gRPC swallows what is raised in a callback.
        self._trouble: Exception | None = None
        self._texts: Counter[str] = Counter()

    def run(self, in_flight: int, seconds: float) -> Taken:
        """So many callers for so long, or until the source ends."""
        cpu, started = time.process_time(), time.perf_counter()
        self._end = started + seconds
        self._live = in_flight
        for slot in range(in_flight):
            self._launch(slot)
        while not self._ended.is_set():
            if self._trouble is not None:
                raise self._trouble
            now = time.perf_counter()
            if now > self._end + _LAST_SECONDS:
                raise RuntimeError(f"{self._live} calls do not end")
            while self._delayed and self._delayed[0][0] <= now:
                self._launch(self._delayed.popleft()[1])
            pause = self._delayed[0][0] - now if self._delayed else 0.02
            self._ended.wait(min(max(pause, 0.0005), 0.02))
        return self._taken(started, time.process_time() - cpu)

    def run_by_schedule(self, rate: float, seconds: float, offset: float) -> Taken:
        """A call whenever one is due."""
        cpu, started = time.process_time(), time.perf_counter()
        count = int(rate * seconds)
        self._live, self._end = count, -math.inf
        for turn in range(count):
            due = started + (turn + offset) / rate
            pause = due - time.perf_counter()
            if pause > 0.0:
                time.sleep(pause)
            self._send(turn, due)
        if not self._ended.wait(_LAST_SECONDS):
            raise RuntimeError(f"{self._live} calls do not end")
        return self._taken(started, time.process_time() - cpu)

    def _launch(self, slot: int) -> None:
        if time.perf_counter() >= self._end:
            self._leave()
            return
        try:
            self._send(slot, time.perf_counter())
        except StopIteration:
            self._leave()
        except Exception as error:
            self._trouble = error

    def _send(self, slot: int, sent: float) -> None:
        number, request = next(self._source)
        call = self._methods[slot % len(self._methods)].future(request, metadata=self._metadata)
        call.add_done_callback(lambda call: self._finish(slot, number, sent, call))

    def _finish(self, slot: int, number: int, sent: float, call: Any) -> None:
        now, code = time.perf_counter(), call.code()
        self._done.append((code, sent, now))
        if code.value[0] not in _EXPECTED:
            self._texts[f"{code.name}: {call.details()}"[:200]] += 1
        if self._see is not None and code.value[0] == 0:
            try:
                self._see(number, call.result())
            except Exception as error:
                self._trouble = error
        if self._end == -math.inf:
            self._leave()
        elif self._obey_hints and code.value[0] == 8:
            hint = next((float(value) for key, value in call.trailing_metadata() if key == _HINT), 0.0)
            self._delayed.append((now + hint / 1000.0, slot))
        else:
            self._launch(slot)

    def _leave(self) -> None:
        with self._lock:
            self._live -= 1
            if self._live == 0:
                self._ended.set()

    def _taken(self, started: float, cpu: float) -> Taken:
        end = min(self._end if self._end > 0.0 else math.inf, time.perf_counter())
        # Until everything is warm, but not much of a short run.
        begin = started + min(0.3, 0.2 * (end - started))
        good = [(sent, now) for code, sent, now in self._done if code.value[0] == 0]
        inside = sum(begin <= now <= end for _, now in good)
        statuses = Counter(code.name for code, _, _ in self._done)
        latencies = np.array([now - sent for sent, now in good])
        return Taken(statuses, inside / (end - begin), latencies, cpu=cpu, texts=self._texts)


def _count_sockets(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    found = 0
    for name in os.listdir(folder):
        try:
            found += os.readlink(f"{folder}/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return found
