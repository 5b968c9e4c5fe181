"""The explorer as one ASGI application: pages, static files, endpoints, and what holds for all of them.

Every answer has the headers that keep a browser from framing, sniffing or loading anything from elsewhere. Endpoints
run in threads, so the event loop never waits for SQL. What an endpoint raises becomes a status and a sentence; what is
not one of our errors is a mistake of ours, and only its number leaves the process.
"""

from __future__ import annotations

import gzip
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from darksight_core import __version__
from darksight_core.errors import BundleError, ConfigError, DarkSightError, PredictionsError
from darksight_service.control.tokens import TokenFile
from darksight_service.errors import (
    ForbiddenError,
    NotFoundError,
    RefusedError,
    RequestError,
    StoreUnavailableError,
    UnauthenticatedError,
)
from darksight_service.explorer.api import drift, gate, models, points, regions, review
from darksight_service.explorer.api import map as map_page
from darksight_service.explorer.columns import Columns
from darksight_service.explorer.endpoint import Answer, Call, Download, Endpoint, Sources
from darksight_service.explorer.pages import LOGIN, PAGES, STATIC, Page
from darksight_service.explorer.session import Guard
from darksight_service.report.plotly_js import packed_plotly

__all__ = ["STATUSES", "make_app"]

STATUSES: dict[type[DarkSightError], int] = {
    RequestError: 400,
    PredictionsError: 400,
    ConfigError: 400,
    UnauthenticatedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    RefusedError: 409,
    BundleError: 409,
    StoreUnavailableError: 503,
    DarkSightError: 500,
}
"""Status of an error, by its class or the nearest one above it."""

_MAX_BODY = 1 << 20
_BARE_POLICY = "default-src 'none'; frame-ancestors 'none'"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_log = logging.getLogger("darksight.explorer")


def make_app(sources: Sources) -> ASGIApp:
    """The application.

    Parameters
    ----------
    sources
        Where everything that is shown comes from.
    """
    settings = sources.settings
    tokens = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
    guard = Guard(tokens, is_secure=settings.tls_cert is not None)
    modules = (models, map_page, regions, gate, drift, review, points)
    endpoints = [endpoint for module in modules for endpoint in module.endpoints(sources)]
    routes = [
        Route("/", lambda _: RedirectResponse(f"/{PAGES[0].name}")),
        # Where alerts and dashboards point to.
        Route("/models/{model}", lambda request: RedirectResponse(f"/map?model={quote(request.path_params['model'])}")),
        *(_page(page, guard) for page in (*PAGES, LOGIN)),
        *(_route(endpoint, sources, guard) for endpoint in endpoints),
        *_session_routes(guard),
        Route("/vendor/plotly.min.js", _plotly),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return _Guarded(Starlette(routes=routes), guard)


def _page(page: Page, guard: Guard) -> Route:
    text = page.render(PAGES)

    def show(request: Request) -> Response:
        if guard.needs_login and page is not LOGIN:
            try:
                guard.permit(request, "read")
            except (UnauthenticatedError, ForbiddenError):
                asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(asked, safe='')}")
        return HTMLResponse(text, headers={"content-security-policy": page.policy})

    return Route(f"/{page.name}", show)


def _route(endpoint: Endpoint, sources: Sources, guard: Guard) -> Route:
    def answer(request: Request, data: bytes) -> Response:
        author = guard.permit(request, endpoint.scope)
        sources.registry.refresh()
        return _respond(endpoint.answer(Call(request.query_params, data, author)))

    async def handle(request: Request) -> Response:
        return await run_in_threadpool(answer, request, await _read(request))

    return Route(endpoint.path, _telling(handle), methods=[endpoint.method])


def _session_routes(guard: Guard) -> list[Route]:
    async def describe(request: Request) -> Response:
        return _respond({**guard.describe(request), "version": __version__})

    async def log_in(request: Request) -> Response:
        response = _respond({"ok": True})
        guard.log_in(request, str(Call({}, await _read(request)).body().get("token", "")), response)
        return response

    async def log_out(request: Request) -> Response:
        response = _respond({"ok": True})
        guard.log_out(request, response)
        return response

    return [
        Route("/api/session", _telling(describe)),
        Route("/api/login", _telling(log_in), methods=["POST"]),
        Route("/api/logout", _telling(log_out), methods=["POST"]),
    ]


def _telling(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The same with errors as answers."""

    async def tell(request: Request) -> Response:
        try:
            return await handle(request)
        except Exception as error:
            return _error(error)

    return tell


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MAX_BODY:
            raise RequestError(f"the body has more than {_MAX_BODY:,} bytes", field="body")
    return bytes(data)


def _respond(answer: Answer, status: int = 200) -> Response:
    if isinstance(answer, Columns):
        return Response(answer.encode(), status, media_type="application/octet-stream")
    if isinstance(answer, Download):
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(answer.name, safe='')}"}
        return StreamingResponse(answer.parts, status, media_type=answer.media_type, headers=headers)
    text = json.dumps(answer, allow_nan=False, ensure_ascii=False)
    return Response(text.encode(), status, media_type="application/json")


def _error(error: Exception) -> Response:
    status = 500
    if isinstance(error, DarkSightError):
        status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    if status == 500:
        number = uuid.uuid4().hex
        _log.error("request_failed", exc_info=error, extra={"request": number})
        text = f"the explorer failed on request {number}; its log has more under this number"
        return _respond({"error": {"code": "internal", "message": text}}, status)
    assert isinstance(error, DarkSightError)
    found: dict[str, Any] = {"code": error.code, "message": error.message}
    if "field" in error.details:
        found["field"] = str(error.details["field"])
    return _respond({"error": found}, status)


def _plotly(request: Request) -> Response:
    packed = packed_plotly()
    headers = {"cache-control": "private, max-age=86400", "vary": "accept-encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), media_type="text/javascript", headers=headers)
    return Response(packed, media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})


class _Guarded:
    """What holds for every answer: the name that was asked for is ours, and headers say what a browser may do."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("content-security-policy", _BARE_POLICY)
                # What a page shows is not for caches on the way, and static files are asked for again by their tag.
                headers.setdefault("cache-control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        try:
            self._guard.check_host(Headers(scope=scope).get("host", ""))
        except ForbiddenError as error:
            await _error(error)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)
