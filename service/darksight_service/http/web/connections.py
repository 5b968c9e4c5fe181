"""HTTP/1.1 with limits that uvicorn does not have: time for a request to arrive, and connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from darksight_service.http.web.limits import Limits

__all__ = ["LimitedProtocol"]

# Between two looks at a connection whose request is being answered.
_LOOK_SECONDS = 1.0


class LimitedProtocol(H11Protocol):
    """A connection.

    Parameters
    ----------
    limits
        Of the server.
    args, options
        For uvicorn.
    """

    def __init__(self, limits: Limits, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has waited longest if there are too many."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self._limits.request_seconds, self._end_if_late)
        if len(self.connections) > self._limits.connections:
            # Those that were ended a moment ago are still among them.
            alive = [each for each in self.connections if isinstance(each, LimitedProtocol) and not each._is_closing]
            if len(alive) > self._limits.connections:
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
        self._waiting_since = self.loop.time()

    @property
    def _is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def _is_waiting(self) -> bool:
        """Whether a request, or the rest of one, has not arrived."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _end_if_late(self) -> None:
        """Close the connection if it has waited for too long; one timer for all its requests, as most are quick."""
        left = self._waiting_since + self._limits.request_seconds - self.loop.time()
        if self._is_waiting and left <= 0.0:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(left if left > 0.0 else _LOOK_SECONDS, self._end_if_late)
