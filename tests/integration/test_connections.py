"""One client against a server of two workers: both get calls."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from darksight_client import AsyncClient, Client
from darksight_service.metrics.exposition import render

from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server, wait_until

ROW = make_probs(1, K)
# Until a client has found both workers: the kernel misses one 30 times with probability 2^-30.
SEARCH = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of two workers."""
    bundle = gated_bundle(tmp_path_factory.mktemp("bundles") / "digits.safetensors")
    with running_server({"digits": bundle}, tmp_path_factory.mktemp("data"), "--workers", "2") as running:
        yield running


def calls_by_worker(server: Server) -> list[int]:
    """Calls that each worker has counted."""
    found = []
    for number in range(2):
        with tempfile.TemporaryDirectory() as folder:
            for path in (server.data_dir / "counts").glob(f"process-{number}.*"):
                shutil.copy(path, folder)
            lines = render(Path(folder))[0].decode().splitlines()
        found += [int(float(line.split()[-1])) for line in lines if line.startswith("darksight_calls_total ")]
    return found


def new_calls(server: Server, before: list[int]) -> list[int]:
    """Calls of each worker since then."""
    return [now - then for now, then in zip(calls_by_worker(server), before, strict=True)]


def test_calls_are_spread_over_all_workers(server: Server) -> None:
    """Evenly, once both are found."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        for _ in range(SEARCH):
            client.score("digits", ROW)
        before = calls_by_worker(server)
        for _ in range(40):
            client.score("digits", ROW)

        assert new_calls(server, before) == [20, 20]


def test_the_asynchronous_client_does_the_same(server: Server) -> None:
    """One after the other, and at the same time."""

    async def use() -> list[int]:
        async with AsyncClient(server.grpc_target, timeout_seconds=60.0) as client:
            for _ in range(SEARCH):
                await client.score("digits", ROW)
            before = calls_by_worker(server)
            await asyncio.gather(*(client.score("digits", ROW) for _ in range(40)))
            return new_calls(server, before)

    assert asyncio.run(use()) == [20, 20]


def test_streams_are_spread_too(server: Server) -> None:
    """A stream stays on one connection; open streams count as calls in flight."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        for _ in range(SEARCH):
            list(client.stream("digits", [ROW]))
        before = calls_by_worker(server)
        streams = [client.stream("digits", [ROW] * 3) for _ in range(8)]
        for stream in streams:
            next(stream)

        assert new_calls(server, before) == [4, 4]
        assert [len(list(stream)) for stream in streams] == [2] * 8


def test_one_connection_uses_one_worker(server: Server) -> None:
    """A caller may ask for that."""
    with Client(server.grpc_target, timeout_seconds=60.0, max_connections=1) as client:
        before = calls_by_worker(server)
        for _ in range(20):
            client.score("digits", ROW)

        assert sorted(new_calls(server, before)) == [0, 20]


def test_a_worker_that_was_killed_gets_calls_again(server: Server) -> None:
    """No call fails meanwhile."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        for _ in range(SEARCH):
            client.score("digits", ROW)
        killed = server.children()["worker-1"]
        os.kill(killed, signal.SIGKILL)
        for _ in range(SEARCH):
            client.score("digits", ROW)
        wait_until(lambda: server.children()["worker-1"] != killed, what="a new worker")

        def has_both() -> bool:
            before = calls_by_worker(server)
            for _ in range(10):
                client.score("digits", ROW)
            return new_calls(server, before) == [5, 5]

        wait_until(has_both, what="calls at both workers")
