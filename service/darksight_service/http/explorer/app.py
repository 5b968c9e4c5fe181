"""The explorer as an ASGI application: pages, static files and endpoints.

Every response has headers that forbid framing, content sniffing and resources of other hosts. Endpoints run in threads,
so SQL never blocks the event loop. A DarkSightError becomes a status and a message; of any other exception only a
request id leaves the process.
"""

from __future__ import annotations

import gzip
import json
import logging
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
from darksight_core.errors import DarkSightError
from darksight_service.control.tokens import TokenFile
from darksight_service.errors import ForbiddenError, RequestError, UnauthenticatedError, report_error
from darksight_service.http.explorer.answers import Answer, Download, FileAnswer, to_json
from darksight_service.http.explorer.api import drift, gate, models, points, reference, regions, review
from darksight_service.http.explorer.api import map as map_page
from darksight_service.http.explorer.columns import Columns
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources, read_body
from darksight_service.http.explorer.inputs import Input
from darksight_service.http.explorer.oidc import LOGIN_SECONDS, Provider
from darksight_service.http.explorer.pages import LOGIN, PAGES, STATIC, Page
from darksight_service.http.explorer.session import Guard
from darksight_service.report.plotly_js import packed_plotly
from darksight_service.settings import Settings

__all__ = ["make_app"]

_MAX_BODY = 1 << 20
_BARE_POLICY = "default-src 'none'; frame-ancestors 'none'"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_FILE_HEADERS = {
    "content-disposition": "attachment",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}

_log = logging.getLogger("darksight.explorer")

_Handler = Callable[[Request], Awaitable[Response]]


class _Login(Input):
    token: str = ""


def make_app(sources: Sources) -> ASGIApp:
    """The application.

    Parameters
    ----------
    sources
        Where the explorer reads from.
    """
    settings = sources.settings
    tokens = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
    is_secure = settings.tls_cert is not None or settings.explorer_url.startswith("https:")
    guard = Guard(tokens, is_secure=is_secure)
    provider = Provider(settings) if settings.oidc_issuer else None
    modules = (models, map_page, regions, gate, drift, review, points, reference)
    endpoints = [endpoint for module in modules for endpoint in module.endpoints(sources)]
    routes = [
        Route("/", lambda _: RedirectResponse(f"/{PAGES[0].name}")),
        # Alerts and dashboards link to this path.
        Route("/models/{model}", lambda request: RedirectResponse(f"/map?model={quote(request.path_params['model'])}")),
        *(_page(page, guard, settings, has_provider=provider is not None) for page in (*PAGES, LOGIN)),
        *(_route(endpoint, sources, guard) for endpoint in endpoints),
        *_session_routes(guard, provider),
        *([] if provider is None else _provider_routes(guard, provider, is_secure=is_secure)),
        Route("/vendor/plotly.min.js", _plotly),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return _Guarded(Starlette(routes=routes), guard)


def _page(page: Page, guard: Guard, settings: Settings, *, has_provider: bool) -> Route:
    text, policy = page.render(has_provider=has_provider), page.policy(settings.reference_origins)

    def show(request: Request) -> Response:
        if guard.needs_login and page is not LOGIN:
            try:
                guard.permit(request, "read")
            except (UnauthenticatedError, ForbiddenError):
                target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(target, safe='')}")
        return HTMLResponse(text, headers={"content-security-policy": policy})

    return Route(f"/{page.name}", show)


def _route(endpoint: Endpoint[Any], sources: Sources, guard: Guard) -> Route:
    def answer(request: Request, body: bytes) -> Response:
        caller = guard.permit(request, endpoint.scope)
        given = endpoint.read(request.query_params, body)
        endpoint.check_model(caller, given)
        sources.registry.refresh()
        return _respond(endpoint.answer(Call(given, caller)))

    async def handle(request: Request) -> Response:
        return await run_in_threadpool(answer, request, await _read(request))

    return Route(endpoint.path, _with_errors(handle), methods=[endpoint.method])


def _session_routes(guard: Guard, provider: Provider | None) -> list[Route]:
    async def describe(request: Request) -> Response:
        return _respond({**guard.describe(request), "version": __version__})

    async def log_in(request: Request) -> Response:
        response = _respond({"ok": True})
        guard.log_in(request, read_body(_Login, await _read(request)).token, response)
        return response

    async def log_out(request: Request) -> Response:
        ended = guard.log_out(request)
        user = None if ended is None else ended.user
        # The session of a user at the provider would log in again without a question.
        url = "" if provider is None or user is None else await run_in_threadpool(provider.logout_url, user)
        response = _respond({"ok": True, "url": url})
        guard.forget(response)
        return response

    return [
        Route("/api/session", _with_errors(describe)),
        Route("/api/login", _with_errors(log_in), methods=["POST"]),
        Route("/api/logout", _with_errors(log_out), methods=["POST"]),
    ]


def _provider_routes(guard: Guard, provider: Provider, *, is_secure: bool) -> list[Route]:
    cookie = "__Host-darksight-login" if is_secure else "darksight-login"

    def start(request: Request) -> Response:
        try:
            url, sealed = provider.start(request.query_params.get("next", "/"))
        except DarkSightError as error:
            return _failed_login(error)
        response = RedirectResponse(url, 303)
        # The provider is another site, so a strict cookie would not come back with the browser.
        response.set_cookie(cookie, sealed, max_age=LOGIN_SECONDS, httponly=True, samesite="lax", secure=is_secure)
        return response

    def finish(request: Request) -> Response:
        try:
            user, target = provider.finish(request.query_params, request.cookies.get(cookie, ""))
            # A browser that comes from another site sends no strict cookie yet. The login page asks for the session
            # by itself, and then shows the page that was asked for.
            response: Response = RedirectResponse(f"/login?next={quote(target, safe='')}", 303)
            guard.log_in_user(user, response)
        except DarkSightError as error:
            response = _failed_login(error)
        response.delete_cookie(cookie, httponly=True, samesite="lax", secure=is_secure)
        return response

    return [
        Route("/oidc/login", _with_errors(_in_thread(start))),
        Route("/oidc/callback", _with_errors(_in_thread(finish))),
    ]


def _in_thread(answer: Callable[[Request], Response]) -> _Handler:
    async def handle(request: Request) -> Response:
        return await run_in_threadpool(answer, request)

    return handle


def _failed_login(error: DarkSightError) -> Response:
    """The login page with the reason."""
    _log.warning("login_failed", extra={"error": error.message})
    found = report_error(error, _log)
    text = LOGIN.render(has_provider=True, problem=found.message)
    return HTMLResponse(text, found.http, headers={"content-security-policy": LOGIN.policy()})


def _with_errors(handle: _Handler) -> _Handler:
    """The same handler with exceptions as responses."""

    async def handle_safely(request: Request) -> Response:
        try:
            return await handle(request)
        except Exception as error:
            return _error(error)

    return handle_safely


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MAX_BODY:
            raise RequestError(f"body: must be at most {_MAX_BODY:,} bytes", field="body")
    return bytes(data)


def _respond(answer: Answer, status: int = 200) -> Response:
    if isinstance(answer, Columns):
        return Response(answer.encode(), status, media_type="application/octet-stream")
    if isinstance(answer, Download):
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(answer.name, safe='')}"}
        return StreamingResponse(answer.parts, status, media_type=answer.media_type, headers=headers)
    if isinstance(answer, FileAnswer):
        return Response(answer.data, status, media_type=answer.media_type, headers=_FILE_HEADERS)
    text = json.dumps(to_json(answer), allow_nan=False, ensure_ascii=False)
    return Response(text.encode(), status, media_type="application/json")


def _error(error: Exception) -> Response:
    found = report_error(error, _log)
    answer = {"code": found.code, "message": found.message}
    if isinstance(error, DarkSightError) and found.http != 500 and "field" in error.details:
        answer["field"] = str(error.details["field"])
    return _respond({"error": answer}, found.http)


def _plotly(request: Request) -> Response:
    packed = packed_plotly()
    headers = {"cache-control": "private, max-age=86400", "vary": "accept-encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), media_type="text/javascript", headers=headers)
    return Response(packed, media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})


class _Guarded:
    """Checks the host name of every request and adds the security headers to every response."""

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
                # Data is never cached; static files are revalidated by their ETag.
                headers.setdefault("cache-control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        try:
            self._guard.check_host(Headers(scope=scope).get("host", ""))
        except ForbiddenError as error:
            await _error(error)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)
