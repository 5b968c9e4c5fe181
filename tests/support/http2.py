"""A caller that speaks HTTP/2 by hand, for what no gRPC client would do."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

__all__ = ["RawCaller"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4
_END_STREAM, _END_HEADERS = 1, 4


class RawCaller:
    """A connection of a caller to `HOST:PORT`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._streams = 0
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))

    def __enter__(self) -> RawCaller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def start_call(self, path: str, **headers: str) -> int:
        """Send the headers of a call and no message; returns the number of its stream."""
        stream = 2 * self._streams + 1
        self._streams += 1
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
        fields |= {"content-type": "application/grpc", **{name.replace("_", "-"): headers[name] for name in headers}}
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def send_message(self, stream: int, data: bytes, *, is_compressed: bool = False) -> None:
        """Send the message of a call, of less than 64 KB, which needs no flow control."""
        data = struct.pack(">BI", is_compressed, len(data)) + data
        for start in range(0, len(data), 16_384):
            self._socket.sendall(_frame(_DATA, 0, stream, data[start : start + 16_384]))
        self._socket.sendall(_frame(_DATA, _END_STREAM, stream, b""))

    def wait_for_ends(self, calls: int, seconds: float) -> int:
        """Wait until so many calls have been ended by the server; returns how many have."""
        self._socket.settimeout(seconds)
        ended: set[int] = set()
        try:
            with self._socket.makefile("rb") as received:
                while len(ended) < calls and (head := received.read(9)):
                    length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + head[:3] + head[3:])
                    received.read(length)
                    if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                        ended.add(stream)
        except TimeoutError:
            pass
        return len(ended)

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        self._socket.settimeout(0.0)
        try:
            while self._socket.recv(4096):
                pass
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(value: str) -> bytes:
    data = value.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data
