"""Connections to an HTTP server that keep it waiting, with and without TLS: they are ended, and others are answered."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from darksight_service.http.app import App, HttpRoute
from darksight_service.http.web import connections
from darksight_service.http.web.server import WebServer
from darksight_service.http.web.sockets import EXPLORER, Limits
from darksight_service.settings import Settings
from starlette.responses import Response

from tests.support.certificates import Certificates
from tests.support.servers import wait_until

# A stall of a few seconds is an attack here, and half of the connections may be of one address.
LIMITS = Limits(3.0, 16)
LARGE = bytes(8 << 20)


class _Anybody:
    needs_token = True

    def permit(self, request: Any, scope: str) -> Any:
        """Permit everything."""


class _Echo:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with the scheme and the body of the request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        # As a call that is answered in a pool, while the caller is watched.
        watcher = asyncio.create_task(receive())
        await asyncio.sleep(0.001)
        watcher.cancel()
        await Response(scope["scheme"].encode() + b" " + body)(scope, receive, send)


APP = App([HttpRoute("POST /", _Echo()), HttpRoute("GET /large", Response(LARGE))], _Anybody())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority."""
    return Certificates(tmp_path_factory.mktemp("tls") / "ca")


class Site:
    """A server, and callers of it."""

    def __init__(self, certificates: Certificates, *, has_tls: bool) -> None:
        cert, key = certificates.make("localhost") if has_tls else (None, None)
        self._bound = socket.create_server(("127.0.0.1", 0))
        self._address = self._bound.getsockname()
        self._context = ssl.create_default_context(cafile=certificates.ca) if has_tls else None
        self.server = WebServer(APP, Settings(tls_cert=cert, tls_key=key), self._bound, LIMITS)
        self.server.start()
        self.callers = ExitStack()

    @property
    def connections(self) -> list[Any]:
        """Those of the server."""
        return [*self.server._server.server_state.connections]

    def connect(self, address: str = "127.0.0.1", *, has_handshake: bool = True) -> socket.socket:
        """A connection from an address of this machine; with TLS, after its handshake."""
        made = socket.create_connection(self._address, timeout=20, source_address=(address, 0))
        self.callers.callback(made.close)
        if self._context is not None and has_handshake:
            made = self._context.wrap_socket(made, server_hostname="localhost")
            self.callers.callback(made.close)
        return made

    def post(self, body: bytes = b"x" * 10_000, connection: socket.socket | None = None) -> bytes:
        """The response to a request."""
        if connection is None:
            with self.connect() as made:
                return self.post(body, made)
        connection.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.read()


@pytest.fixture(params=["plain", "TLS"])
def site(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Site]:
    """A server."""
    made = Site(certificates, has_tls=request.param == "TLS")
    with made.callers:
        yield made
    made.server.stop(20)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection; what it has sent is read."""
    connection.setblocking(False)
    try:
        return not connection.recv(1 << 20)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def silent(site: Site) -> socket.socket:
    """Neither a handshake nor a request."""
    return site.connect(has_handshake=False)


def half_sent(site: Site) -> socket.socket:
    """A request whose body does not arrive."""
    made = site.connect()
    made.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nx")
    return made


def unread(site: Site) -> socket.socket:
    """Requests for large responses, none of which is read."""
    made = site.connect()
    made.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" * 150)
    return made


def idle(site: Site) -> socket.socket:
    """A request that was answered, and no further one."""
    made = site.connect()
    site.post(connection=made)
    return made


@pytest.mark.parametrize("attack", [silent, half_sent, unread, idle])
def test_connections_that_stall_make_room_and_end(site: Site, attack: Callable[[Site], socket.socket]) -> None:
    """More than a server has: the oldest end for newer ones, the others after their time; others are answered."""
    made = []
    for _ in range(3 * LIMITS.connections):
        with suppress(OSError):
            made.append(attack(site))
        assert len(made) % 8 or site.post() == site.post()
    assert site.post().endswith(b"x" * 10_000)
    for each in made:
        # To look whether it is closed is to read.
        if attack is not unread:
            wait_until(lambda each=each: is_closed(each), seconds=30, what="the end of a connection")


def test_a_response_that_is_not_read_ends_the_connection(site: Site) -> None:
    """It stayed for ever, since the next request waited for the caller to read."""
    unread(site)
    wait_until(lambda: not site.connections, seconds=30, what="the end")


def test_a_slow_reader_gets_all_of_a_response(site: Site) -> None:
    """The limit is on a stall, not on a response."""
    with site.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.read() == LARGE


def test_one_address_leaves_room_for_others(site: Site) -> None:
    """Its own connections are ended, and an idle one of another address stays."""
    with site.connect("127.0.0.2") as idle:
        assert site.post(connection=idle)
        made = [silent(site) for _ in range(3 * LIMITS.connections)]
        wait_until(lambda: sum(map(is_closed, made)) >= 2 * LIMITS.connections, seconds=20, what="the end of most")
        assert site.post(connection=idle)


def test_further_requests_are_few_bytes_while_one_is_answered(site: Site) -> None:
    """They were kept in memory without a limit."""
    largest = 0
    with site.connect() as connection, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(connection.sendall, b"POST / HTTP/1.1\r\nHost: h\r\n\r\n" * 300_000)
        with suppress(OSError):
            while connection.recv(1 << 16) and not sending.done() and largest < 1 << 20:
                largest = max(largest, *(len(each.conn.trailing_data[0]) for each in site.connections))
        connection.close()
    assert largest < 1 << 20


def test_the_bodies_of_all_requests_have_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has waited longest is ended; the others arrive."""
    monkeypatch.setattr(connections, "_MAX_BYTES", 1 << 20)
    made = [site.connect() for _ in range(4)]
    for each in made:
        each.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 400001\r\n\r\n" + bytes(400_000))
        wait_until(
            lambda: sum(each._size > 400_000 for each in site.connections) in (1, 2),
            seconds=20,
            what="the body",
        )
    assert site.post(bytes(100_000)).endswith(bytes(100_000))
    assert [is_closed(each) for each in made] == [True, True, False, False]


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 3\n\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nHost: i\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    ],
    ids=["two-lengths", "bare-lf", "one-bare-lf", "folded", "two-authorizations", "two-hosts", "other-lengths"],
)
@pytest.mark.parametrize(
    "before", [b"", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n\n\n"], ids=["first", "second"]
)
def test_what_a_proxy_may_read_in_another_way_is_refused(site: Site, head: bytes, before: bytes) -> None:
    """Also as the second request of a connection."""
    with site.connect() as connection:
        connection.sendall(before + head)
        found = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                found += part
    assert re.findall(rb"HTTP/1.1 ([0-9]+)", found) == [b"200"] * bool(before) + [b"400"]


def test_what_is_no_handshake_ends_the_connection_alone(site: Site) -> None:
    """Plain bytes to a port with TLS, and a caller who leaves."""
    with site.connect(has_handshake=False) as connection:
        connection.sendall(b"\0\0\0\0\r\n\r\n")
        with suppress(ConnectionResetError):
            assert b"200" not in connection.recv(4096)
    site.connect(has_handshake=False).close()

    assert site.post().startswith(b"http")


def test_no_handshake_fails_while_the_certificate_is_renewed(certificates: Certificates, tmp_path: Path):
    """Each connection sees one certificate with its key."""
    pairs = [certificates.make(f"renewed-{number}") for number in range(2)]
    served = tmp_path / "served.pem", tmp_path / "served.key"

    def renew(number: int) -> None:
        for source, copy in zip(pairs[number % 2], served, strict=True):
            copy.write_bytes(source.read_bytes())
            os.utime(copy, (number, number))

    renew(0)
    bound = socket.create_server(("localhost", 0))
    server = WebServer(APP, Settings(tls_cert=served[0], tls_key=served[1]), bound, EXPLORER)
    server.start()
    shown, is_over = [], threading.Event()

    def connect() -> None:
        while not is_over.is_set():
            shown.append(ssl.get_server_certificate(bound.getsockname()[:2], timeout=20))

    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(connect) for _ in range(2)]
        for number in range(1, 300):
            renew(number)
            server.reload_certificate()
        is_over.set()
        for call in calls:
            call.result()
    server.stop(20)

    assert len(set(shown)) == 2
