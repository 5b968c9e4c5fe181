"""What callers without a token can do to a service: each attack is bounded, and scoring continues."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from darksight_client import Client
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.test_service import K
from tests.support.builders import make_probs
from tests.support.http2 import RawCaller
from tests.support.servers import Server, wait_until

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
MB = 1 << 20


@pytest.fixture
def server(attacked: Server) -> Server:
    """A service of one worker that wants tokens, and that may open few files."""
    return attacked


@pytest.fixture
def client(server: Server, tokens: tuple[dict[str, str], str]) -> Iterator[Client]:
    """A client with the token that neither waits nor retries."""
    with Client(server.grpc_target, token=tokens[0]["other"], timeout_seconds=20.0, retries=0) as client:
        yield client


@pytest.fixture
def health(server: Server) -> Iterator[health_pb2_grpc.HealthStub]:
    """The health service, as orchestrators call it."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def memory(server: Server) -> int:
    """Resident bytes of the worker."""
    pages = Path(f"/proc/{server.children()['worker-0']}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def is_scored(client: Client) -> bool:
    """Whether a row is scored and recorded."""
    return client.score("digits", make_probs(1, K)).recorded


@pytest.mark.parametrize("method", [CHECK, WATCH])
def test_calls_without_a_message_keep_nobody_out_and_end(
    server: Server, client: Client, health: health_pb2_grpc.HealthStub, method: str
) -> None:
    """More than a worker runs or queues; they wait in no queue, and are ended after five seconds."""
    with RawCaller(server.grpc_target) as caller:
        for _ in range(150):
            caller.start_call(method)
        assert all(is_scored(client) for _ in range(20))
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1
        # The oldest were ended at once, for the newest.
        assert caller.wait_for_ends(150, seconds=60.0) == 150


def test_a_watch_of_a_name_that_nobody_knows_leaves_nothing_behind(
    server: Server, client: Client, health: health_pb2_grpc.HealthStub
) -> None:
    """It is answered once; a long name is refused; a known one is watched."""
    before = memory(server)
    for number in range(30):
        name = f"{number:02d}" + "x" * (39 * MB // 10)
        with pytest.raises(grpc.RpcError) as refused:
            list(health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=20))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    unknown = [each.status for each in health.Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=20)]
    known = health.Watch(health_pb2.HealthCheckRequest(service="darksight.v1.MonitorService"), timeout=20)

    assert unknown == [health_pb2.HealthCheckResponse.SERVICE_UNKNOWN]
    assert next(known).status == health_pb2.HealthCheckResponse.SERVING
    known.cancel()
    assert memory(server) - before < 100 * MB
    assert is_scored(client)


def test_many_watches_end_the_oldest_and_end_with_their_callers(
    server: Server, health: health_pb2_grpc.HealthStub
) -> None:
    """One caller holds all of them; another is watched at once, for the oldest."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service="darksight.v1.MonitorService"), timeout=60)
            for _ in range(64)
        ]
        assert all(next(watch).status == health_pb2.HealthCheckResponse.SERVING for watch in watches)
        newcomer = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(newcomer).status == health_pb2.HealthCheckResponse.SERVING
        wait_until(lambda: any(watch.done() for watch in watches), seconds=20, what="the end of a watch")
        ended = [watch.code() for watch in watches if watch.done()]
        assert ended == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        newcomer.cancel()
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1

    def is_watched() -> bool:
        try:
            watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
            return next(watch).status == 1 and watch.cancel()
        except grpc.RpcError:
            return False

    wait_until(is_watched, seconds=20, what="a watch")


def test_idle_connections_leave_descriptors_for_the_spool(server: Server, client: Client) -> None:
    """More connections than the first limit of open files are accepted; beyond the last one they are refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2000), hard), hard))
    assert is_scored(client)
    idle = [RawCaller(server.grpc_target) for _ in range(400)]
    try:
        with RawCaller(server.grpc_target) as newcomer:
            newcomer.start_call(CHECK)
            assert not newcomer.is_closed
        idle += [RawCaller(server.grpc_target) for _ in range(700)]
        # A segment of the spool is open for a second; the next one needs a descriptor.
        for _ in range(5):
            assert is_scored(client)
            time.sleep(0.5)
        assert sum(each.is_closed for each in idle) >= 100
        assert not server.events("records_dropped")
    finally:
        for each in idle:
            each.__exit__(None, None, None)
    with RawCaller(server.grpc_target) as newcomer:
        newcomer.send_message(newcomer.start_call(CHECK), b"")
        assert newcomer.wait_for_ends(1, seconds=20.0) == 1


def explorer_address(server: Server) -> tuple[str, int]:
    """Host and port of the explorer."""
    host, _, port = server.explorer_url.partition("://")[2].rpartition(":")
    return host, int(port)


def test_the_log_of_the_explorer_does_not_grow_with_bad_requests(server: Server) -> None:
    """Twenty lines a second of one warning; a later line says how many were left out."""
    before = len(server.lines)
    for _ in range(200):
        with socket.create_connection(explorer_address(server), timeout=20) as connection:
            connection.sendall(b"\0\r\n\r\n")
            assert b"400" in connection.recv(4096)
    time.sleep(1.1)
    with socket.create_connection(explorer_address(server), timeout=20) as connection:
        connection.sendall(b"\0\r\n\r\n")
        connection.recv(4096)
    wait_until(lambda: any("left_out" in line for line in server.lines[before:]), seconds=20, what="a line")

    assert 20 <= len(server.lines) - before < 100
