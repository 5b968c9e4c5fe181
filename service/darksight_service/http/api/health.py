"""Metrics and health over HTTP, for Prometheus and for probes.

The supervisor serves these pages itself: they must answer while everything else is down.
"""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from darksight_core import __version__
from darksight_service.control.tokens import ANYBODY, Caller, TokenFile
from darksight_service.http import requests
from darksight_service.http.app import App
from darksight_service.http.web.server import WebServer
from darksight_service.http.web.sockets import HEALTH, listen
from darksight_service.settings import Settings

__all__ = ["HealthServer", "Status"]


class Status(Protocol):
    """The state of the service that the pages show."""

    @property
    def is_ready(self) -> bool:
        """Whether every worker takes calls for every model."""

    @property
    def explorer_url(self) -> str:
        """Address of the explorer; empty if it does not run."""

    def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics page and its content type, for an `Accept` header."""


class HealthServer(WebServer):
    """Serves the pages; SettingsError if the port is taken.

    `/metrics` needs a token of the scope `metrics` if the setting `metrics_token` is on. Health is open: probes have no
    token. Neither asks for a client certificate.

    Parameters
    ----------
    settings
        Settings of the service.
    status
        What the pages show.
    """

    def __init__(self, settings: Settings, status: Status) -> None:
        changed = {"host": settings.http_host or settings.host, "tls_client_ca": None}
        if not settings.http_tls:
            changed |= {"tls_cert": None, "tls_key": None}
        own = settings.model_copy(update=changed)
        bound = listen(own, "http_port")
        self.port: int = bound.getsockname()[1]
        tokens = TokenFile(settings.tokens_file) if settings.metrics_token and settings.tokens_file else None
        app = App(_routes(status, tokens), _Anybody(needs_token=settings.tokens_file is not None))
        super().__init__(app, own, bound, HEALTH, loop="asyncio", proxy_headers=False, timeout_graceful_shutdown=1)


class _Anybody:
    """Everybody may ask; of a service with tokens by any name of its host, as Prometheus and probes may know it."""

    def __init__(self, *, needs_token: bool) -> None:
        self.needs_token = needs_token

    def permit(self, request: requests.Request, scope: str) -> Caller:
        return ANYBODY


def _routes(status: Status, tokens: TokenFile | None) -> list[Route]:
    def metrics(request: Request) -> Response:
        if tokens is not None:
            caller = tokens.permit(request.headers.get("authorization"), "metrics")
            caller.check_all_models("the metrics are of")
        body, content_type = status.render_metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    # In the event loop, so that no scrape keeps a probe waiting.
    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        is_ready = status.is_ready
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def index(request: Request) -> Response:
        pages = ["/metrics", "/v2/health/live", "/v2/health/ready"]
        found = {"name": "darksight", "version": __version__, "pages": pages, "explorer": status.explorer_url}
        return JSONResponse(found)

    answers = {"/": index, "/metrics": metrics, "/v2/health/live": live, "/v2/health/ready": ready}
    return [Route(path, answer) for path, answer in answers.items()]
