"""The HTTP server of a worker, on a port that all workers share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from darksight_service.http.api.app import Limits, make_app
from darksight_service.http.api.calls import Callers, Method
from darksight_service.http.web.limits import API
from darksight_service.http.web.server import WebServer
from darksight_service.http.web.sockets import listen
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings import Settings

__all__ = ["make_server"]

# An idle connection is closed after this time, as over gRPC.
_IDLE_SECONDS = 60


def make_server(
    settings: Settings,
    methods: Mapping[str, Method],
    callers: Callers | None,
    counts: ProcessCounts,
    run_bulk: Callable[[Callable[[], object]], object],
) -> WebServer:
    """The HTTP server of a worker, not yet started.

    Parameters
    ----------
    settings
        Address, limits and certificates.
    methods
        The methods of the gRPC server, by full name.
    callers
        Permits calls; None if everybody may call.
    counts
        Counters of the process.
    run_bulk
        Runs a function in the bulk thread.
    """
    limits = Limits(callers, settings.max_message_bytes, settings.durability == "fsync", counts, run_bulk)
    return WebServer(
        make_app(methods, limits, settings.passive),
        settings,
        # The kernel gives each connection to one of the workers.
        listen(settings, "api_port", socket.SO_REUSEPORT),
        API,
        loop="asyncio",
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=int(settings.grace_seconds) or 1,
    )
