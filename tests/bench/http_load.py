"""Callers over HTTP for ./dev bench serve: sockets that send prebuilt requests, each when its last answer has come."""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["closed_http", "connect_http", "request_bytes"]


def request_bytes(path: str, body: bytes, token: str, headers: str = "") -> bytes:
    """A POST request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def connect_http(
    address: tuple[str, int], pids: Sequence[int], each: int, count_sockets: Callable[[int], int]
) -> list[socket.socket]:
    """`each` connections to every process of a server, which the system spreads by chance."""
    found: dict[int, list[socket.socket]] = {pid: [] for pid in pids}
    for _ in range(50 * each * len(pids)):
        if all(len(some) >= each for some in found.values()):
            return [connection for some in found.values() for connection in some]
        before = {pid: count_sockets(pid) for pid in pids}
        connection = socket.create_connection(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + 5.0
        grown: list[int] = []
        while not grown and time.perf_counter() < end:
            grown = [pid for pid in pids if count_sockets(pid) > before[pid]]
        if len(grown) == 1 and len(found[grown[0]]) < each:
            found[grown[0]].append(connection)
        else:
            connection.close()
            time.sleep(0.05)
    raise RuntimeError(f"connections to {address} do not spread over its processes")


def closed_http(
    connections: Sequence[socket.socket], requests: Sequence[bytes], seconds: float
) -> tuple[Counter[str], float, NDArray[np.float64]]:
    """One caller on each connection: calls by status, good answers per second, and their latencies."""
    source, statuses, latencies = itertools.cycle(requests), Counter[str](), []
    started = time.perf_counter()
    begin, end = started + min(0.3, 0.2 * seconds), started + seconds
    sent: dict[socket.socket, float] = {}
    inside = 0
    with selectors.EpollSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            sent[connection] = time.perf_counter()
            connection.sendall(next(source))
        while sent:
            for key, _ in selector.select(30.0):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                status = _read_answer(connection)
                now = time.perf_counter()
                statuses["OK" if status == 200 else str(status)] += 1
                if status == 200:
                    latencies.append(now - sent[connection])
                    inside += begin <= now <= end
                if now >= end:
                    del sent[connection]
                    continue
                sent[connection] = now
                connection.sendall(next(source))
    return statuses, inside / (end - begin), np.array(latencies)


def _read_answer(connection: socket.socket) -> int:
    """Status of an answer, which is read to its end."""
    data = connection.recv(1 << 16)
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    left = length - len(body)
    while left > 0:
        left -= len(connection.recv(min(left, 1 << 20)))
    return int(head[9:12])
