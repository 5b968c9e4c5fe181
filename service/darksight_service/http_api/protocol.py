"""HTTP/1.1 with limits that uvicorn does not have: time for a request to arrive, and connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ApiProtocol"]

# A request must be here, body included, this long after the connection was made or the last response was sent.
_REQUEST_SECONDS = 60.0
# One more closes the connection that has waited for a request for the longest time.
_MAX_CONNECTIONS = 512


class ApiProtocol(H11Protocol):
    """A connection of a caller."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has waited longest if there are too many."""
        super().connection_made(transport)
        self._expect_request()
        self._timer = self.loop.call_later(_REQUEST_SECONDS, self._end_if_waiting)
        if len(self.connections) > _MAX_CONNECTIONS:
            waiting = [
                each
                for each in self.connections
                if isinstance(each, ApiProtocol) and each._is_waiting and not each.transport.is_closing()
            ]
            if len(waiting) > 1:
                min(waiting, key=lambda each: each._waiting_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._expect_request()

    @property
    def _is_waiting(self) -> bool:
        """Whether a request, or the rest of one, has not arrived."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _expect_request(self) -> None:
        self._waiting_since = self.loop.time()

    def _end_if_waiting(self) -> None:
        """Close the connection if it has waited for too long; one timer for all its requests, as most are quick."""
        left = self._waiting_since + _REQUEST_SECONDS - self.loop.time()
        if self._is_waiting and left <= 0.0:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(max(left, 1.0), self._end_if_waiting)
