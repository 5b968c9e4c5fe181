"""HTTP/1.1 of the explorer with limits that uvicorn does not have: time for a request to arrive, and connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["LimitedProtocol"]

# A request must be here, body included, this long after the connection was made or the last response was sent.
_REQUEST_SECONDS = 10.0
# One more closes the connection that has waited for a request for the longest time. A browser opens six.
_MAX_CONNECTIONS = 256


class LimitedProtocol(H11Protocol):
    """A connection of a browser."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has waited longest if there are too many."""
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > _MAX_CONNECTIONS:
            # Those that were ended a moment ago are still among them.
            alive = [each for each in self.connections if isinstance(each, LimitedProtocol) and not each._is_closing]
            if len(alive) > _MAX_CONNECTIONS:
                waiting = [each for each in alive if each._is_waiting]
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
    def _is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def _is_waiting(self) -> bool:
        """Whether a request, or the rest of one, has not arrived."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _expect_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(_REQUEST_SECONDS, self._end_if_waiting)

    def _end_if_waiting(self) -> None:
        if self._is_waiting:
            self.transport.abort()
