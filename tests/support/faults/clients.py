"""Clients of a service that is being broken: they write down what they ask and what they are told.

    python -m tests.support.faults.clients TARGET[,TARGET...] FOLDER [--threads N] [--rate CALLS_PER_SECOND]

With one target the calls are bare gRPC, some of them repeated by the caller; with several, our own client chooses among
them and repeats. Runs until stdin closes. Every thread has a connection and a log of its own, one JSON object per line:
a call before it is sent, an answer, a failure. The time of its event names a call in the store: no two calls have the
same, so every stored row can be told whose it is, whatever became of the answer.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import grpc
import numpy as np
from darksight_client import Client, DarkSightClientError
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.store.ids import make_batch_id
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from tests.support.builders import make_probs

__all__ = ["CLASSES", "MODEL", "event_ms", "pool", "row_name", "running_clients"]

MODEL = "digits"
CLASSES = 5
_SCORE = "/darksight.v1.MonitorService/Score"
_SIZES = (1, 1, 1, 1, 1, 5, 40, 300)
_POOL = 512
# A thread begins a call at most this often while nothing answers.
_PAUSE_SECONDS = 0.05
_TIMEOUT_SECONDS = 20.0
_TRIES = 200
# What the service takes for a clock that is merely wrong.
_SKEW_MS = 55 * 60_000
_CHANNEL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def pool() -> NDArray[np.float32]:
    """The rows that calls are made of, a few of them not valid."""
    rows = make_probs(_POOL, CLASSES, seed=7)
    rows[100::101, 2] = np.nan
    return rows


def event_ms(thread: int, number: int) -> int:
    """The time that names a call."""
    return 1_700_000_000_000 + thread * 100_000_000 + number


def row_name(call_ms: int, row: int) -> str:
    """What a client calls a row, if it names them."""
    return f"row-{call_ms}-{row}"


@contextmanager
def running_clients(target: str, folder: Path, *, threads: int = 4, rate: float = 0.0) -> Iterator[None]:
    """A process of clients for the time of a block; it has written down everything when the block has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [target, str(folder), "--threads", str(threads), "--rate", str(rate)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.faults.clients", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(120)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert process.returncode == 0


class _Caller:
    """One thread of calls."""

    def __init__(self, target: str, number: int, log: IO[str], stop: threading.Event, interval: float) -> None:
        self._number = number
        self._log = log
        self._stop = stop
        self._interval = interval
        self._rng = np.random.default_rng(number)
        self._pool = pool()
        self._connect(target)

    def _connect(self, target: str) -> None:
        self._connection = grpc.insecure_channel(target, options=_CHANNEL)
        self._score = self._connection.unary_unary(
            _SCORE,
            request_serializer=monitor_pb2.ScoreRequest.SerializeToString,
            response_deserializer=monitor_pb2.ScoreResponse.FromString,
        )

    def run(self) -> None:
        """Call until told to stop."""
        due = time.monotonic() + self._interval * self._rng.random()
        call = 0
        with self._connection:
            while not self._stop.wait(max(due - time.monotonic(), 0.0)):
                self._call(call, due if self._interval else time.monotonic())
                call += 1
                due += self._interval

    def _call(self, number: int, due: float) -> None:
        rng, ms = self._rng, event_ms(self._number, number)
        rows = int(rng.choice(_SIZES))
        start = int(rng.integers(0, _POOL - rows)) // 8 * 8
        is_named = bool(rng.random() < 0.5)
        self._ask(ms, start, rows, is_named, due)

    def _ask(self, ms: int, start: int, rows: int, is_named: bool, due: float) -> None:
        rng, batch_id = self._rng, b""
        if rng.random() < 0.6:
            skew = int(rng.integers(-_SKEW_MS, _SKEW_MS)) if rng.random() < 0.4 else 0
            batch_id = make_batch_id(int(time.time() * 1000) + skew)
        data = np.ascontiguousarray(self._pool[start : start + rows], dtype="<f4")
        request = monitor_pb2.ScoreRequest(
            model=MODEL,
            tensor=monitor_pb2.Tensor(shape=data.shape, data=data.tobytes()),
            prediction_ids=[row_name(ms, row) for row in range(rows)] if is_named else [],
            event_time=Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000),
            partial_ok=True,
            batch_id=batch_id,
        )
        self._write(kind="call", ms=ms, start=start, rows=rows, named=is_named, batch=batch_id.hex())
        # Only a batch with an id of its own may be sent again.
        for _ in range(_TRIES if batch_id else 1):
            try:
                answer = self._score(request, timeout=_TIMEOUT_SECONDS)
            except grpc.RpcError as error:
                self._write(kind="failure", ms=ms, at=time.time(), code=error.code().name, why=error.details())
                # An id that is too far from a clock that was stepped will be refused again.
                if self._stop.wait(_PAUSE_SECONDS) or error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    return
            else:
                self._note(ms, answer, answer.batch_id.hex(), due)
                return

    def _note(self, ms: int, answer: Any, batch: str, due: float) -> None:
        self._write(
            kind="answer",
            ms=ms,
            at=time.time(),
            seconds=time.monotonic() - due,
            batch=batch,
            version=answer.version,
            decision=[int(each) for each in answer.decision],
            reason=[int(each) for each in answer.reason],
            p_value=base64.b64encode(np.array(answer.p_value, "<f8").tobytes()).decode(),
            recorded=answer.recorded,
        )

    def _write(self, **event: object) -> None:
        self._log.write(json.dumps(event) + "\n")


class _ReplicaCaller(_Caller):
    """One thread of calls by our own client, which goes on at another replica when one fails."""

    def _connect(self, target: str) -> None:
        self._connection = Client(target.split(","), timeout_seconds=_TIMEOUT_SECONDS)

    def _ask(self, ms: int, start: int, rows: int, is_named: bool, due: float) -> None:
        self._write(kind="call", ms=ms, start=start, rows=rows, named=is_named, batch="")
        try:
            answer = self._connection.score(
                MODEL,
                self._pool[start : start + rows],
                prediction_ids=[row_name(ms, row) for row in range(rows)] if is_named else None,
                event_time=datetime.fromtimestamp(ms / 1000, UTC),
                partial_ok=True,
            )
        except DarkSightClientError as error:
            self._write(kind="failure", ms=ms, at=time.time(), code=type(error).__name__, why=str(error))
        else:
            self._note(ms, answer, answer.batch_id.hex, due)


def main(argv: list[str]) -> int:
    """Run the clients until stdin closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.0, help="calls per second of all threads; 0 for no limit")
    args = parser.parse_args(argv)
    stop = threading.Event()
    interval = args.threads / args.rate if args.rate else 0.0
    # Logs of an earlier process in the same folder stay, and its calls keep their names.
    first = len(list(args.folder.glob("*.jsonl")))
    logs = [(args.folder / f"{number:03d}.jsonl").open("w") for number in range(first, first + args.threads)]
    kind = _ReplicaCaller if "," in args.target else _Caller
    callers = [
        threading.Thread(target=kind(args.target, number, log, stop, interval).run)
        for number, log in enumerate(logs, first)
    ]
    for caller in callers:
        caller.start()
    print("ready", flush=True)  # noqa: T201  # who started us waits for it
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    stop.set()
    for caller, log in zip(callers, logs, strict=True):
        caller.join()
        log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
