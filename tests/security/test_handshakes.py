"""Callers of an HTTP server with TLS who do not finish, or do not start, the handshake."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from darksight_service.http.web.connections import LimitedProtocol
from darksight_service.http.web.handshakes import limit_handshakes
from darksight_service.http.web.limits import EXPLORER, MAX_HANDSHAKES
from darksight_service.http.web.server import WebServer
from darksight_service.settings import Settings

from tests.support.certificates import Certificates
from tests.support.servers import wait_until


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the scheme and the body of the request."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["scheme"].encode() + b" " + body})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority."""
    return Certificates(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def address(certificates: Certificates) -> Iterator[tuple[str, int]]:
    """A server with TLS."""
    cert, key = certificates.make("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    protocol = limit_handshakes(partial(LimitedProtocol, EXPLORER), lambda: context)
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)
    bound = socket.create_server(("localhost", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    wait_until(lambda: server.started, seconds=20, what="the server")
    yield bound.getsockname()[:2]
    server.should_exit = True
    thread.join(20)


def post(address: tuple[str, int], ca: Path) -> bytes:
    """The answer to a request."""
    context = ssl.create_default_context(cafile=ca)
    connection = http.client.HTTPSConnection("localhost", address[1], timeout=20, context=context)
    try:
        connection.request("POST", "/", b"x" * 10_000)
        return connection.getresponse().read()
    finally:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it sent nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_connections_without_a_handshake_make_room_and_end(
    address: tuple[str, int], certificates: Certificates
) -> None:
    """The oldest end at once for newer ones, the others after five seconds; requests are answered meanwhile."""
    silent = [socket.create_connection(address, timeout=20) for _ in range(MAX_HANDSHAKES + 20)]
    started = time.monotonic()
    try:
        assert post(address, certificates.ca) == b"https " + b"x" * 10_000
        assert sum(map(is_closed, silent)) >= 20
        assert not is_closed(silent[-1])
        wait_until(lambda: all(map(is_closed, silent)), seconds=20, what="the end of silent connections")
        assert time.monotonic() - started < 15.0
    finally:
        for each in silent:
            each.close()


def test_what_is_no_handshake_ends_the_connection_alone(address: tuple[str, int], certificates: Certificates) -> None:
    """Plain HTTP to a port with TLS, and a caller who leaves."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert b"HTTP" not in connection.recv(4096)
    socket.create_connection(address, timeout=20).close()

    assert post(address, certificates.ca).startswith(b"https ")


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
    server = WebServer(app, Settings(tls_cert=served[0], tls_key=served[1]), bound, EXPLORER)
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
