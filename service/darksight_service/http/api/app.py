"""The HTTP API as an ASGI application: routes, tokens, limits and errors around the methods of the gRPC server.

A small scoring call is answered in the thread of the event loop. Every other call runs where it would run if it had
come over gRPC: a large batch in the bulk thread, a call that may wait for the database in the pool for those. So HTTP
and gRPC share their limits, and neither keeps the other waiting.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from darksight_service.control.tokens import ANYBODY, OPEN, Caller
from darksight_service.errors import (
    AbandonedError,
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    RequestError,
)
from darksight_service.http.api.calls import READ_HEADERS, Call, Callers, Method, Reply, Request
from darksight_service.http.api.events import EventAnswer
from darksight_service.http.api.inference import Answer, answer_infer, answer_state
from darksight_service.http.api.messages import MessageAnswer
from darksight_service.http.api.pages import page_routes
from darksight_service.http.api.problems import Problem, ProblemError, problem_of
from darksight_service.http.api.routes import EVENT_PATHS, INFERENCE_PATHS, MESSAGE_PATHS
from darksight_service.http.api.tensors import SIZE_HEADER
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings import PassiveModel
from darksight_service.settings.validation import is_local_host

__all__ = ["Limits", "make_app"]

# Of the body. A value takes at least 2 bytes of it, so no short call has a tensor for the bulk thread.
_SHORT_BYTES = 1 << 12
# Of the body: a batch of half a millisecond, as in `grpc_api.pools`.
_BULK_BYTES = 1 << 13
_RETRY_SECONDS = 0.05
_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
_READ = (*READ_HEADERS, b"content-length", b"content-encoding", b"host", b"origin", SIZE_HEADER.encode())

Headers = Mapping[bytes, str]


class Limits(NamedTuple):
    """What every endpoint respects.

    Parameters
    ----------
    callers
        Permits calls; None if everybody may call.
    max_bytes
        Largest body.
    waits_for_disk
        Whether a scoring call waits for fsync.
    counts
        Counters of the process.
    run_bulk
        Runs a function in the bulk thread.
    """

    callers: Callers | None
    max_bytes: int
    waits_for_disk: bool
    counts: ProcessCounts
    run_bulk: Callable[[Callable[[], object]], object]


def make_app(
    methods: Mapping[str, Method],
    limits: Limits,
    passive: Mapping[str, PassiveModel] | None = None,
) -> ASGIApp:
    """The application.

    Parameters
    ----------
    methods
        The methods of the gRPC server, by full name.
    limits
        Tokens and limits.
    passive
        How events of inference loggers are read, by name of the model.
    """
    routes: list[Route] = []
    for path in INFERENCE_PATHS:
        method = methods[path.method]
        answer = answer_infer(method) if path.name == "ModelInfer" else answer_state(path.name, method)
        routes.append(_Route(path.path, _Endpoint(method, answer, limits), methods=[path.verb]))
    for path in MESSAGE_PATHS:
        method = methods[path.method]
        routes.append(_Route(path.path, _Endpoint(method, MessageAnswer(path, method), limits), methods=[path.verb]))
    for path in EVENT_PATHS:
        method = methods[path.method]
        answer = EventAnswer(method, passive or {}, limits.counts)
        routes.append(_Route(path.path, _EventEndpoint(method, answer, limits), methods=[path.verb]))
    scopes = {path.method: methods[path.method].scope for path in (*INFERENCE_PATHS, *MESSAGE_PATHS, *EVENT_PATHS)}
    for name, reply in page_routes(scopes).items():
        routes.append(_Route(name, _Page(reply), methods=["GET"]))
    return Router(routes, redirect_slashes=False, default=_not_found)


class _Route(Route):
    """A route that refuses other HTTP methods with a problem."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # Not a redirect or a websocket, which the others would have to handle.
        return super().matches(scope) if scope["type"] == "http" else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] not in self.methods:
            allowed = ", ".join(sorted(self.methods))
            error = RequestError(f"method: must be {allowed}, not {scope['method'][:20]}", field="method")
            problem = problem_of(error, status=HTTPStatus.METHOD_NOT_ALLOWED, headers=((b"allow", allowed.encode()),))
            await _send(send, Reply(*problem.response(scope["path"])))
        else:
            await self.app(scope, receive, send)


class _Page:
    """An endpoint that always gives the same reply."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send(send, self._reply)


class _Endpoint:
    """An endpoint that calls a method."""

    def __init__(self, method: Method, answer: Answer, limits: Limits) -> None:
        self._method = method
        self._answer = answer
        self._limits = limits
        self._scores = getattr(method.handler.unary_unary, "scores", False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._headers(scope)
        try:
            caller = self._admit(headers)
            body = await _read(receive, headers, self._limits.max_bytes)
        except ProblemError as error:
            reply = self._refuse(error.problem, scope["path"])
        except Exception as error:
            reply = self._refuse(problem_of(error), scope["path"])
        else:
            request = Request(scope["path_params"], scope["query_string"], body, headers.get(_READ[-1]), headers)
            check = None if caller.models is None else partial(self._check_model, caller)
            call = Call(headers, check)
            run = partial(self._run, request, call, scope["path"])
            reply = run() if self._is_short(request) else await _while_wanted(self._submit(run, body), receive, call)
        await _send(send, reply)

    def _headers(self, scope: Scope) -> Headers:
        """The headers that this endpoint reads."""
        return {name: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}

    def _admit(self, headers: Headers) -> Caller:
        """The caller; checks the token and whether there is room for a call, before the body is read."""
        limits, caller = self._limits, ANYBODY
        if limits.callers is None:
            _check_page(headers)
        elif self._method.scope != OPEN:
            caller = limits.callers.permit(headers.get(b"authorization"), self._method.scope)
        if self._method.pool.is_full:
            limits.counts.refuse_overload()
            raise OverloadedError(
                f"the server already has {self._method.pool.limit} calls; retry in {_RETRY_SECONDS:g} s",
                retry_seconds=_RETRY_SECONDS,
            )
        return caller

    def _check_model(self, caller: Caller, method: Method, request: Any) -> None:
        assert self._limits.callers is not None
        self._limits.callers.check_model(caller, method.read_model, request)

    def _is_short(self, request: Request) -> bool:
        """Whether a call waits for nothing and takes less than a millisecond: few values, and no version to load."""
        body = request.body
        if not self._scores or self._limits.waits_for_disk or len(body) >= _SHORT_BYTES:
            return False
        # JSON in UTF-16 or with escapes can have the field without these bytes.
        is_plain = b"\\" not in body and b"\0" not in body[:4]
        return is_plain and b'"version"' not in body and "version" not in request.parameters

    def _submit(self, run: Callable[[], Reply], body: bytes) -> asyncio.Future[Reply]:
        pool = self._method.pool
        if isinstance(pool, ThreadPoolExecutor):
            return asyncio.wrap_future(pool.submit(run))
        done: Future[Reply] = Future()
        submit = self._limits.run_bulk if self._scores and len(body) >= _BULK_BYTES else pool.submit
        submit(lambda: done.set_result(run()))
        return asyncio.wrap_future(done)

    def _run(self, request: Request, call: Call, path: str) -> Reply:
        """The reply to a call; raises nothing."""
        try:
            return self._answer(request, call)
        except ProblemError as error:
            return Reply(*error.problem.response(path))
        except Exception as error:
            return self._refuse(problem_of(error), path)

    def _refuse(self, problem: Problem, path: str) -> Reply:
        """The reply to a call that no handler has counted."""
        self._limits.counts.start_call()
        self._limits.counts.end_call(problem.grpc_code)
        return Reply(*problem.response(path))


class _EventEndpoint(_Endpoint):
    """An endpoint for events, whose attributes are headers.

    A logger that sends no headers of its own can have the token in its URL, as the password; it then arrives as Basic
    authentication.
    """

    def _headers(self, scope: Scope) -> Headers:
        found = {
            name: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _READ or name == b"content-type" or name.startswith(b"ce-")
        }
        kind, _, text = found.get(b"authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                secret = base64.b64decode(text, validate=True).decode("latin-1").partition(":")[2]
            except (binascii.Error, ValueError):
                secret = ""
            found[b"authorization"] = f"Bearer {secret}"
        return found


def _check_page(headers: Headers) -> None:
    """Without tokens, refuse calls of web pages of other hosts, whoever visits them."""
    host = headers.get(b"host", "")
    # A page whose own name was pointed to this machine reads without an `Origin` header.
    if not is_local_host(host):
        raise ForbiddenError(
            "without tokens the host of a call must be an address, localhost or a name without a dot; "
            "use one of these, or set tokens_file",
            kind="host",
        )
    if b"origin" in headers and headers[b"origin"].partition("://")[2] != host:
        raise ForbiddenError("calls of web pages need tokens, unless the page is of this server", kind="origin")


async def _read(receive: Receive, headers: Headers, limit: int) -> bytes:
    """The body of a request."""
    encoding = headers.get(b"content-encoding", "identity")
    if encoding != "identity":
        error = RequestError(f"content-encoding: {encoding[:20]!r} is not supported", field="content-encoding")
        raise ProblemError(problem_of(error, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE))
    parts: list[bytes] = []
    declared = int(length) if (length := headers.get(b"content-length", "0")).isdecimal() else 0
    received, more = 0, True
    while more and max(declared, received) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise AbandonedError("the caller has closed the connection")
        part = message.get("body", b"")
        parts.append(part)
        received += len(part)
        more = message.get("more_body", False)
    if max(declared, received) > limit:
        error = RequestError(f"body: has more than {limit:,} bytes, which is the limit", field="body")
        closing = ((b"connection", b"close"),)
        raise ProblemError(problem_of(error, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, headers=closing))
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _while_wanted(reply: asyncio.Future[Reply], receive: Receive, call: Call) -> Reply:
    """The reply; the call learns if the caller closes the connection before it is there."""

    async def watch() -> None:
        await receive()
        call.is_abandoned = True

    watcher = asyncio.create_task(watch())
    try:
        return await reply
    finally:
        watcher.cancel()


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        problem = problem_of(NotFoundError(f"there is no path {scope['path'][:100]!r}; /openapi.json lists all"))
        await _send(send, Reply(*problem.response(scope["path"])))


async def _send(send: Send, reply: Reply) -> None:
    headers = [*reply.headers, *_HEADERS, (b"content-length", str(len(reply.body)).encode())]
    start: dict[str, Any] = {"type": "http.response.start", "status": reply.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": reply.body})
