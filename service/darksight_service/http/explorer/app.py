"""The explorer as an ASGI application: pages, static files, endpoints and the operations that its pages call."""

from __future__ import annotations

import gzip
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from darksight_core import __version__
from darksight_core.errors import DarkSightError
from darksight_service.control.tokens import OPEN, TokenFile
from darksight_service.errors import ForbiddenError, UnauthenticatedError, report_error
from darksight_service.http import app as stack
from darksight_service.http.explorer.answers import Answer, Download, FileAnswer, to_json
from darksight_service.http.explorer.api import drift, gate, models, points, reference, review
from darksight_service.http.explorer.api import map as map_page
from darksight_service.http.explorer.columns import Columns
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.oidc import LOGIN_SECONDS, Provider
from darksight_service.http.explorer.operations import operation_routes
from darksight_service.http.explorer.pages import LOGIN, PAGES, STATIC, Page
from darksight_service.http.explorer.session import Guard
from darksight_service.http.inputs import Input, read_body_input
from darksight_service.http.requests import HttpCall, Request
from darksight_service.report.plotly_js import packed_plotly

__all__ = ["make_app"]

_MAX_BODY = 1 << 20
_THREADS = 40
_FILE_HEADERS = {
    "content-disposition": "attachment",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}

_log = logging.getLogger("darksight.explorer")


class _Threads(ThreadPoolExecutor):
    """Threads for all requests, which wait for one if there are too many; connections are limited."""

    limit, is_full = _THREADS, False


class _Login(Input):
    token: str = ""


def make_app(sources: Sources) -> stack.App:
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
    pool, limits = _Threads(_THREADS, "explorer"), stack.Limits(guard, _MAX_BODY, sources.counts)
    routes: list[BaseRoute] = []

    def add(route: str, answer: stack.Answer, scope: str = OPEN) -> None:
        routes.append(stack.HttpRoute(route, stack.Endpoint(answer, scope, pool, limits)))

    add("GET /", lambda request, call: RedirectResponse(f"/{PAGES[0].name}"))
    # Alerts and dashboards link to this path.
    add("GET /models/{model}", lambda request, call: _redirect("/map?model=", request.parameters["model"]))
    for page in (*PAGES, LOGIN):
        add(f"GET /{page.name}", _page(page, guard, settings.reference_origins, has_provider=provider is not None))
    for module in (models, map_page, gate, drift, review, points, reference):
        for endpoint in module.endpoints(sources):
            add(f"{endpoint.method} {endpoint.path}", _endpoint(endpoint, sources), endpoint.scope)
    for route, answer, scope in operation_routes(sources, tokens):
        add(route, answer, scope)
    sessions = _Sessions(guard, provider, is_secure=is_secure)
    add("GET /api/session", sessions.describe)
    add("POST /api/login", sessions.log_in)
    add("POST /api/logout", sessions.log_out)
    if provider is not None:
        add("GET /oidc/login", sessions.start)
        add("GET /oidc/callback", sessions.finish)
    add("GET /vendor/plotly.min.js", _plotly)
    routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    return stack.App(routes, guard)


def _redirect(url: str, value: str, status: int = 307) -> Response:
    """A redirect to a URL that ends with a value."""
    return RedirectResponse(url + quote(value, safe=""), status)


def _page(page: Page, guard: Guard, origins: tuple[str, ...], *, has_provider: bool) -> stack.Answer:
    text, policy = page.render(has_provider=has_provider), page.policy(origins)

    def show(request: Request, call: HttpCall) -> Response:
        if guard.needs_token and page is not LOGIN:
            try:
                guard.permit(request, "read")
            except (UnauthenticatedError, ForbiddenError):
                query = f"?{request.query.decode('latin-1')}" if request.query else ""
                return _redirect("/login?next=", request.path + query)
        return HTMLResponse(text, headers={"content-security-policy": policy})

    return show


def _endpoint(endpoint: Endpoint[Any], sources: Sources) -> stack.Answer:
    def answer(request: Request, call: HttpCall) -> Response:
        query = _query(request)
        given = endpoint.read(query, request.body)
        endpoint.check_model(call.caller, given)
        sources.registry.refresh()
        return _respond(endpoint.answer(Call(given, call.caller)))

    return answer


class _Sessions:
    """Login and logout, with a token or through an OpenID provider."""

    def __init__(self, guard: Guard, provider: Provider | None, *, is_secure: bool) -> None:
        self._guard = guard
        self._provider = provider
        # The provider is another site, so a strict cookie would not come back with the browser.
        self._options: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": is_secure}
        self._cookie = "__Host-darksight-login" if is_secure else "darksight-login"

    def describe(self, request: Request, call: HttpCall) -> Response:
        """The session of a page."""
        return _respond({**self._guard.describe(request), "version": __version__})

    def log_in(self, request: Request, call: HttpCall) -> Response:
        """Start a session with a token."""
        response = _respond({"ok": True})
        self._guard.log_in(request, read_body_input(_Login, request.body).token, response)
        return response

    def log_out(self, request: Request, call: HttpCall) -> Response:
        """End a session; the page goes to the URL, as the session at the provider would log in again."""
        ended = self._guard.log_out(request)
        user = None if ended is None else ended.user
        url = "" if self._provider is None or user is None else self._provider.logout_url(user)
        response = _respond({"ok": True, "url": url})
        self._guard.forget(response)
        return response

    def start(self, request: Request, call: HttpCall) -> Response:
        """Send the browser to the provider."""
        assert self._provider is not None
        try:
            url, sealed = self._provider.start(_query(request).get("next", "/"))
        except DarkSightError as error:
            return _failed_login(error)
        response = RedirectResponse(url, 303)
        response.set_cookie(self._cookie, sealed, max_age=LOGIN_SECONDS, **self._options)
        return response

    def finish(self, request: Request, call: HttpCall) -> Response:
        """Start the session of a user who comes back from the provider."""
        assert self._provider is not None
        try:
            user, target = self._provider.finish(_query(request), request.cookies.get(self._cookie, ""))
            # A browser that comes from another site sends no strict cookie yet. The login page asks for the session
            # by itself, and then shows the page that was asked for.
            response = _redirect("/login?next=", target, 303)
            self._guard.log_in_user(user, response)
        except DarkSightError as error:
            response = _failed_login(error)
        response.delete_cookie(self._cookie, **self._options)
        return response


def _query(request: Request) -> dict[str, str]:
    return dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))


def _failed_login(error: DarkSightError) -> Response:
    """The login page with the reason."""
    _log.warning("login_failed", extra={"error": error.message})
    found = report_error(error, _log)
    text = LOGIN.render(has_provider=True, problem=found.message)
    return HTMLResponse(text, found.http, headers={"content-security-policy": LOGIN.policy()})


def _respond(answer: Answer) -> Response:
    if isinstance(answer, Columns):
        return Response(answer.encode(), media_type="application/octet-stream")
    if isinstance(answer, Download):
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(answer.name, safe='')}"}
        return StreamingResponse(answer.parts, media_type=answer.media_type, headers=headers)
    if isinstance(answer, FileAnswer):
        return Response(answer.data, media_type=answer.media_type, headers=_FILE_HEADERS)
    text = json.dumps(to_json(answer), allow_nan=False, ensure_ascii=False)
    return Response(text, media_type="application/json")


def _plotly(request: Request, call: HttpCall) -> Response:
    packed = packed_plotly()
    headers = {"cache-control": "private, max-age=86400", "vary": "accept-encoding"}
    if "gzip" not in request.header("accept-encoding"):
        return Response(_unpacked(packed), media_type="text/javascript", headers=headers)
    return Response(packed, media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> bytes:
    return gzip.decompress(packed)
