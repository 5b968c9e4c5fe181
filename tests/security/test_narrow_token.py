"""What the holder of a token can take from others: memory, time, threads, pages and sessions."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from darksight_client import Client, Conflict, InvalidRequest

from tests.integration.test_service import K
from tests.support.builders import make_probs
from tests.support.servers import Server, wait_until

MONITOR = "/darksight.v1.MonitorService"
MB = 1 << 20
Tokens = dict[str, str]


@pytest.fixture
def server(attacked: Server) -> Server:
    """A service of one worker that wants tokens, with its explorer."""
    return attacked


@pytest.fixture
def connect(server: Server, tokens: tuple[Tokens, str]) -> Iterator[Callable[[str], Client]]:
    """Opens clients by name of their token."""
    with ExitStack() as clients:

        def open_one(name: str) -> Client:
            return clients.enter_context(Client(server.grpc_target, token=tokens[0][name], timeout_seconds=60.0))

        yield open_one


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    """A bare channel, for requests that no client would make."""
    with grpc.insecure_channel(server.grpc_target, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def header(tokens: tuple[Tokens, str], name: str) -> tuple[tuple[str, str]]:
    """Metadata of a call."""
    return (("authorization", f"Bearer {tokens[0][name]}"),)


def test_idle_streams_of_one_token_leave_room_for_others_and_end(
    channel: grpc.Channel, tokens: tuple[Tokens, str], connect: Callable[[str], Client]
) -> None:
    """A token may have half of the streams; one without a request for too long is ended."""
    is_over = threading.Event()

    def nothing() -> Iterator[bytes]:
        is_over.wait(60)
        yield from ()

    call = channel.stream_stream(f"{MONITOR}/ScoreStream")
    silent = [call(nothing(), metadata=header(tokens, "gateway"), timeout=60) for _ in range(16)]
    wait_until(lambda: sum(not stream.is_active() for stream in silent) == 8, seconds=6, what="refusals")
    refused = {stream.code() for stream in silent if not stream.is_active()}

    assert len(list(connect("other").stream("digits", [make_probs(1, K)] * 3))) == 3
    wait_until(lambda: not any(stream.is_active() for stream in silent), seconds=40, what="the end of all")
    is_over.set()
    assert refused == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert {stream.code() for stream in silent} - refused == {grpc.StatusCode.DEADLINE_EXCEEDED}


def comb(corners: int) -> list[tuple[float, float]]:
    """A polygon on the whole map; every side but two crosses it from bottom to top."""
    xs = np.linspace(-99.0, 99.0, corners - 1).tolist()
    return [*((x, -99.0 if number % 2 else 99.0) for number, x in enumerate(xs)), (0.0, -100.0)]


def test_regions_of_many_corners_slow_scoring_by_a_second_at_most(connect: Callable[[str], Client]) -> None:
    """The corners of enforced regions are bounded together, and a preview has a time limit."""
    operator, rows = connect("operator"), make_probs(5_000, K)
    names = [f"comb {number}" for number in range(3)]
    for name in names:
        operator.save_region("digits", name, comb(4096))
    for name in names[:2]:
        operator.enforce_region("digits", name)
    with pytest.raises(Conflict, match="8,192"):
        operator.enforce_region("digits", names[2])
    started = time.monotonic()
    operator.score("digits", rows)
    seconds = time.monotonic() - started
    started = time.monotonic()
    operator.preview_region("digits", name=names[0])
    preview_seconds = time.monotonic() - started
    for name in names:
        operator.remove_region("digits", name)

    assert seconds < 7.5
    assert preview_seconds < 30.0


@pytest.mark.parametrize("author", ["a" * (4 * MB - 1000), "a" * 101, "a\0b"])
def test_authors_and_comments_are_short_texts(connect: Callable[[str], Client], author: str) -> None:
    """They are in the audit trail and in the state of every process for ever."""
    operator = connect("operator")
    with pytest.raises(InvalidRequest, match="author"):
        operator.save_region("digits", "large", [(0, 0), (1, 0), (1, 1)], author=author)
    with pytest.raises(InvalidRequest, match="comment"):
        operator.reset_evidence("digits", comment="c" * 1001)
    assert operator.regions("digits") == ()


class Browser:
    """A browser at the explorer, with one connection."""

    def __init__(self, server: Server) -> None:
        self._host = server.explorer_url.partition("://")[2]
        self._connection = http.client.HTTPConnection(self._host, timeout=60)
        self._cookie = self._csrf = ""

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: str = "") -> tuple[int, dict[str, object]]:
        """Status and content of a response."""
        headers = {"origin": f"http://{self._host}", "cookie": self._cookie, "x-csrf-token": self._csrf}
        self._connection.request(method, path, body or None, headers)
        response = self._connection.getresponse()
        self._cookie = (response.getheader("set-cookie") or self._cookie).partition(";")[0]
        return response.status, json.loads(response.read())

    def log_in(self, secret: str) -> int:
        """Log in and read the CSRF token."""
        status, _ = self.call("POST", "/api/login", json.dumps({"token": secret}))
        self._csrf = str(self.call("GET", "/api/session")[1].get("csrf", ""))
        # The next call opens it again: on a busy machine the server may have closed it by then, because it was idle.
        self._connection.close()
        return status


def test_logins_with_one_token_end_no_session_of_another(server: Server, tokens: tuple[Tokens, str]) -> None:
    """A token has a hundred sessions; one more ends its own oldest."""
    with Browser(server) as other, Browser(server) as first, Browser(server) as many:
        assert (other.log_in(tokens[0]["operator"]), first.log_in(tokens[0]["second"])) == (200, 200)
        for _ in range(120):
            assert many.call("POST", "/api/login", json.dumps({"token": tokens[0]["second"]}))[0] == 200

        assert other.call("GET", "/api/session")[0] == 200
        assert many.call("GET", "/api/session")[0] == 200
        assert first.call("GET", "/api/session")[0] == 401
