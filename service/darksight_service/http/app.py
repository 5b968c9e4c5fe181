"""The ASGI stack of the HTTP API and of the explorer: routes, limits, errors and headers.

A request is admitted by its headers before its body is read, and handled in a pool, so that nothing that waits blocks
the event loop. Whatever is raised becomes a problem. Every response has headers that forbid framing, content sniffing
and resources of other hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from darksight_core.errors import DarkSightError
from darksight_service.control.tokens import OPEN, Caller
from darksight_service.errors import ForbiddenError, NotFoundError, OverloadedError, RequestError
from darksight_service.http.problems import HttpError, problem_response
from darksight_service.http.requests import HttpCall, Request, read_body
from darksight_service.metrics.catalogue import GRPC_CODES
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings.validation import is_local_host

__all__ = ["Access", "Answer", "App", "Endpoint", "HttpRoute", "Limits", "Pool"]

_RETRY_SECONDS = 0.05
# Of requests without a token; a login has one in its body.
_MAX_OPEN_BYTES = 1 << 13
# A response is sent in parts, so that a connection holds little of it until the caller reads.
_PART_BYTES = 1 << 16
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

Answer = Callable[[Request, HttpCall], Response]
"""Handles a request."""


class Access(Protocol):
    """Decides who may call."""

    @property
    def needs_token(self) -> bool:
        """Whether callers need a token; if not, all callers on this machine may call."""

    def permit(self, request: Request, scope: str) -> Caller:
        """The caller; an error if it lacks the scope. The body of the request was not read."""


class Pool(Protocol):
    """Threads."""

    @property
    def limit(self) -> int:
        """Maximum number of calls."""

    @property
    def is_full(self) -> bool:
        """Whether the next call must be rejected."""

    def submit(self, fn: Callable[[], object], /) -> object:
        """Run a function in a thread."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all endpoints of an application share.

    Parameters
    ----------
    access
        Decides who may call.
    max_bytes
        Largest body.
    counts
        Counters of the process.
    """

    access: Access
    max_bytes: int
    counts: ProcessCounts


class Endpoint:
    """The ASGI application of a route.

    Parameters
    ----------
    answer
        Handles requests.
    scope
        The scope that a caller needs; `OPEN` for none.
    pool
        Where requests are handled.
    limits
        Of the application.
    is_short
        Whether a request waits for nothing and takes less than a millisecond, so that the event loop may handle it.
    submit
        Returns what runs a function for a body, if it is not always the pool.
    """

    def __init__(
        self,
        answer: Answer,
        scope: str,
        pool: Pool,
        limits: Limits,
        *,
        is_short: Callable[[Request], bool] = lambda request: False,
        submit: Callable[[bytes], Callable[[Callable[[], object]], object]] | None = None,
    ) -> None:
        self._answer = answer
        self._scope = scope
        self._pool = pool
        self._limits = limits
        self._is_short = is_short
        self._submit = submit or (lambda body: pool.submit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        request = Request.of(scope)
        try:
            caller = self._limits.access.permit(request, self._scope)
            self._check_room()
            request = request._replace(body=await read_body(receive, request, self._max_bytes(request)))
            # Others may have filled the queue meanwhile.
            self._check_room()
        except Exception as error:
            response = self._run(request, partial(_fail, error))
        else:
            call = HttpCall.of(caller, request)
            run = partial(self._run, request, partial(self._answer, request, call))
            if self._is_short(request):
                response = run()
            else:
                done: Future[Response] = Future()
                self._submit(request.body)(lambda: done.set_result(run()))
                response = await _while_active(asyncio.wrap_future(done), receive, call)
        await response(scope, receive, send)

    def _max_bytes(self, request: Request) -> int:
        """The largest body: a request that only reads has none, and a login is short."""
        if request.method not in ("POST", "PUT"):
            return 0
        return _MAX_OPEN_BYTES if self._scope == OPEN else self._limits.max_bytes

    def _check_room(self) -> None:
        if self._pool.is_full:
            self._limits.counts.refuse_overload()
            raise OverloadedError(
                f"the server already has {self._pool.limit} calls; retry in {_RETRY_SECONDS:g} s",
                retry_seconds=_RETRY_SECONDS,
            )

    def _run(self, request: Request, answer: Callable[[], Response]) -> Response:
        """The response to a call, which is counted; raises nothing."""
        self._limits.counts.start_call()
        code = "OK"
        try:
            return answer()
        except Exception as error:
            response, code = problem_response(error, request.path, request.header("traceparent"))
            return response
        finally:
            self._limits.counts.end_call(GRPC_CODES.index(code))


class HttpRoute(Route):
    """A route that refuses other HTTP methods with a problem.

    Parameters
    ----------
    route
        HTTP method and path, such as `GET /v1/models/{model}`.
    endpoint
        The ASGI application behind it.
    """

    def __init__(self, route: str, endpoint: ASGIApp) -> None:
        method, _, path = route.partition(" ")
        # The name of a region may have a slash.
        super().__init__(path.replace("{name}", "{name:path}"), endpoint, methods=[method])
        self.path = path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is a request for this path."""
        return super().matches(scope) if scope["type"] == "http" else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request for this path."""
        if self.methods and scope["method"] not in self.methods:
            allowed = ", ".join(sorted(self.methods))
            error = RequestError(f"method: must be {allowed}, not {scope['method'][:20]}", field="method")
            raise HttpError(error, HTTPStatus.METHOD_NOT_ALLOWED, {"allow": allowed})
        await self.app(scope, receive, send)


class App:
    """An ASGI application.

    Parameters
    ----------
    routes
        In the order in which they are tried.
    access
        Decides who may call.
    """

    def __init__(self, routes: Sequence[BaseRoute], access: Access) -> None:
        self.routes = routes
        self._router = Router(routes, redirect_slashes=False, default=_not_found)
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        send_with_headers = partial(_send_safely, send)
        try:
            if scope["type"] == "http" and not self._access.needs_token:
                _check_host(Request.of(scope))
            await self._router(scope, receive, send_with_headers)
        except (HttpError, DarkSightError) as error:
            await problem_response(error, scope["path"])[0](scope, receive, send_with_headers)
        except HTTPException as error:
            # Of static files.
            await Response(error.detail, error.status_code)(scope, receive, send_with_headers)


def _check_host(request: Request) -> None:
    """Without tokens, refuse a host name that somebody else could point to this machine (DNS rebinding)."""
    if not is_local_host(request.header("host")):
        raise ForbiddenError(
            "without tokens the host of a request must be an address, localhost or a name without a dot; "
            "use one of these, or set tokens_file",
            kind="host",
        )


async def _send_safely(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        given = {name for name, _ in message["headers"]}
        # Data is never cached; files are revalidated by their ETag.
        cache = (b"cache-control", b"no-cache" if b"etag" in given else b"no-store")
        message["headers"] = [*message["headers"], *(each for each in (*_HEADERS, cache) if each[0] not in given)]
    body = memoryview(message.get("body", b""))
    for start in range(0, len(body) - _PART_BYTES, _PART_BYTES):
        await send({"type": message["type"], "body": body[start : start + _PART_BYTES], "more_body": True})
        message["body"] = body[start + _PART_BYTES :]
    await send(message)


async def _while_active(response: asyncio.Future[Response], receive: Receive, call: HttpCall) -> Response:
    """The response; the call learns if the caller closes the connection before it is ready."""

    async def watch() -> None:
        await receive()
        call.is_abandoned = True

    watcher = asyncio.create_task(watch())
    try:
        return await response
    finally:
        watcher.cancel()


def _fail(error: Exception) -> Any:
    raise error


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        raise NotFoundError(f"there is no path {scope['path'][:100]!r}")
