"""What callers of gate get from a real service that is stopped, stalled or overloaded."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from darksight_client import AsyncClient, Batcher, Client, DeadlineExceeded, Gated, Reason, Unavailable

from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server, start_server, wait_until

ROW = make_probs(1, K)[0]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a gate."""
    return gated_bundle(tmp_path_factory.mktemp("bundles") / "digits.safetensors")


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker that accepts two calls at a time."""
    limit = {"DARKSIGHT_MAX_CONCURRENT_CALLS": "2"}
    data_dir = tmp_path_factory.mktemp("data")
    with running_server({"digits": bundle}, data_dir, "--workers", "1", environment=limit) as running:
        yield running


def thread_states(pid: int) -> set[str]:
    """The states of the threads of a process."""
    return {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")}


@contextmanager
def stalled(server: Server) -> Iterator[None]:
    """The worker accepts connections and calls, and answers none."""
    worker = server.children()["worker-0"]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: thread_states(worker) == {"T"}, what="all threads to stop")
    try:
        yield
    finally:
        # The supervisor replaces a worker that was stalled for 10 seconds.
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def timed(gate: Callable[[], Gated], calls: int) -> tuple[list[Gated], float]:
    """Results of calls one after the other, and the seconds that they took."""
    start = time.monotonic()
    return [gate() for _ in range(calls)], time.monotonic() - start


def test_a_stalled_service_costs_a_bounded_time(server: Server) -> None:
    """Three timeouts, then the breaker is open; the service decides again when it is back."""
    with Client(
        server.grpc_target, on_failure="reject", gate_timeout_seconds=0.2, breaker_failures=3, breaker_seconds=0.3
    ) as client:
        client.gate("digits", ROW, timeout_seconds=30.0)
        with stalled(server):
            gated, _ = timed(lambda: client.gate("digits", ROW), 3)
            # gRPC may lose the connection first, on a busy machine.
            assert {each.failure for each in gated} <= {"deadline_exceeded", "unavailable"}
            assert client.gate_counts().not_sent == 0

            gated, seconds = timed(lambda: client.gate("digits", ROW), 100)
            assert {(each.accepted, each.reason) for each in gated} == {(False, Reason.UNSCORED)}
            assert client.gate_counts().is_open
            # One probe per interval waits for its timeout; the other calls wait for nothing.
            assert 100 - client.gate_counts().not_sent <= 1 + seconds / 0.3

        wait_until(lambda: not client.gate("digits", ROW, timeout_seconds=30.0).failure)

        assert not client.gate_counts().is_open
        assert client.gate("digits", ROW, timeout_seconds=30.0).recorded


def test_a_stopped_service(bundle: Path, tmp_path: Path) -> None:
    """Rows are decided as the caller said, and soon without a call."""
    server = start_server(tmp_path, {"digits": bundle}, "--workers", "1")
    address = server.grpc_target
    with (
        Client(address, on_failure="accept", breaker_failures=5, breaker_seconds=60.0) as accepting,
        Client(address, retries=1) as raising,
    ):
        assert accepting.gate("digits", ROW, timeout_seconds=30.0).failure == ""
        server.stop()

        gated = [accepting.gate("digits", ROW, prediction_id="id") for _ in range(20)]
        assert {(each.accepted, each.prediction_id) for each in gated} == {(True, "id")}
        # On a busy machine the attempts to connect may take the whole timeout.
        assert {each.failure for each in gated} <= {"unavailable", "deadline_exceeded"}
        with pytest.raises((Unavailable, DeadlineExceeded)):
            raising.gate("digits", ROW)
        counts = accepting.gate_counts()
        assert (counts.rows, counts.accepted, counts.not_sent) == (21, 20, 15)
        assert sum(counts.failures.values()) == 20
        assert counts.is_open


def test_the_asynchronous_client_and_the_batcher_do_the_same(server: Server) -> None:
    """A stalled service, with each."""

    async def ask() -> list[Gated]:
        options: dict[str, Any] = {"on_failure": "accept", "gate_timeout_seconds": 0.2, "breaker_seconds": 60.0}
        async with AsyncClient(server.grpc_target, **options) as client:
            found = list(await asyncio.gather(*(client.gate("digits", ROW) for _ in range(5))))
            found.append(await client.gate("digits", ROW))
            assert client.gate_counts().not_sent == 1
            return found

    with stalled(server):
        assert [each.failure for each in asyncio.run(ask())] == ["deadline_exceeded"] * 5 + ["unavailable"]
        with (
            Client(server.grpc_target, on_failure="reject", gate_timeout_seconds=0.2) as client,
            Batcher(client, "digits") as batcher,
        ):
            gated = batcher.gate(ROW, prediction_id="id")
            assert (gated.accepted, gated.failure, gated.prediction_id) == (False, "deadline_exceeded", "id")
        with Client(server.grpc_target) as client, pytest.raises(DeadlineExceeded):
            client.gate("digits", ROW)


def test_an_overloaded_service_loses_no_call(server: Server) -> None:
    """More threads than the service accepts calls: the rest are sent again when it says."""
    with (
        Client(server.grpc_target, gate_timeout_seconds=30.0, retries=1000) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        gated = list(pool.map(lambda _: client.gate("digits", ROW), range(400)))

        assert {each.failure for each in gated} == {""}
        wait_until(lambda: server.counted("darksight_overload_total") > 0, 10.0)
