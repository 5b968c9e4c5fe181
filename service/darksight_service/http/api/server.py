"""The HTTP server of a worker, on a port that all workers share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from darksight_service.http.api.app import make_api
from darksight_service.http.app import Pool
from darksight_service.http.web.server import WebServer
from darksight_service.http.web.sockets import API, listen
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Pool as PoolName
from darksight_service.operations.operation import Service
from darksight_service.settings import Settings

__all__ = ["make_server"]

# An idle connection is closed after this time, as over gRPC.
_IDLE_SECONDS = 60


def make_server(
    settings: Settings,
    service: Service,
    callers: Callers,
    pools: Mapping[PoolName, Pool],
    run_bulk: Callable[[Callable[[], object]], object],
) -> WebServer:
    """The HTTP server of a worker, not yet started; the parameters are those of `make_api`."""
    return WebServer(
        make_api(service, callers, pools, run_bulk, settings.max_message_bytes, settings.passive),
        settings,
        # The kernel gives each connection to one of the workers.
        listen(settings, "api_port", socket.SO_REUSEPORT),
        API,
        loop="asyncio",
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=int(settings.grace_seconds) or 1,
    )
