"""How much a caller without a token can take of an HTTP server."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["API", "BACKLOG", "EXPLORER", "HEALTH", "MAX_HANDSHAKES", "Limits"]

BACKLOG = 128
"""Connections that wait to be accepted; asyncio tries, and logs, as many times in a row without free descriptors."""


class Limits(NamedTuple):
    """Limits of one server.

    Parameters
    ----------
    request_seconds
        A request must be here, body included, this long after the connection was made or the last response was sent.
    connections
        One more closes the connection that has waited for a request for the longest time.
    """

    request_seconds: float
    connections: int


# A browser opens six connections.
EXPLORER = Limits(10.0, 256)
API = Limits(60.0, 512)
HEALTH = Limits(10.0, 256)

MAX_HANDSHAKES = 64
"""TLS handshakes of a server at a time. One more ends the oldest."""
