"""The HTTP API: the operations of the service as JSON, the Open Inference Protocol, and CloudEvents.

A small scoring call is answered in the thread of the event loop. Every other call runs where it would run if it had
come over gRPC: a large batch in the bulk thread, a call that may wait for the database in the pool for those. So HTTP
and gRPC share their limits, and neither keeps the other waiting.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

from starlette.responses import RedirectResponse, Response

from darksight_service.control.tokens import ANYBODY, OPEN, Caller
from darksight_service.errors import ForbiddenError
from darksight_service.http.api.events import EVENT_ROUTES, EventAnswer
from darksight_service.http.api.inference import answer_infer, answer_state
from darksight_service.http.api.openapi import openapi_document
from darksight_service.http.app import Answer, App, Endpoint, HttpRoute, Limits, Pool
from darksight_service.http.messages import MessageAnswer
from darksight_service.http.operations import BoundOperation
from darksight_service.http.requests import Request
from darksight_service.operations.callers import Callers
from darksight_service.operations.inference import INFERENCE
from darksight_service.operations.operation import Operation, Service
from darksight_service.operations.operation import Pool as PoolName
from darksight_service.operations.table import OPERATIONS
from darksight_service.settings import PassiveModel

__all__ = ["TokenAccess", "make_api"]

# Of the body. A value takes at least 2 bytes of it, so no short call has a tensor for the bulk thread.
_SHORT_BYTES = 1 << 12
# Of the body: a batch of half a millisecond, as in `grpc_api.pools`.
_BULK_BYTES = 1 << 13
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The OpenAPI document and the page to try calls need no token, and the page loads nothing of other hosts.
_FILES = {"/docs": "try.html", "/docs/try.js": "try.js", "/docs/try.css": "try.css"}
# The paths of EVENT_ROUTES.
_EVENT_PATH = re.compile(r"/v1(/models/[^/]+)?/events")
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


class TokenAccess:
    """Permits calls by the token in their `authorization` header.

    A logger that sends no headers of its own can have the token in its URL, as the password; it then arrives as Basic
    authentication.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self.needs_token = callers.tokens is not None

    def permit(self, request: Request, scope: str) -> Caller:
        """The caller; without tokens, calls of web pages of other hosts are refused, whoever visits them."""
        if not self.needs_token:
            if b"origin" in request.headers and not request.is_same_origin:
                raise ForbiddenError("calls of web pages need tokens, unless the page is of this server", kind="origin")
            return ANYBODY
        return ANYBODY if scope == OPEN else self._callers.permit(_bearer(request), scope)


def make_api(
    service: Service,
    callers: Callers,
    pools: Mapping[PoolName, Pool],
    run_bulk: Callable[[Callable[[], object]], object],
    max_bytes: int,
    passive: Mapping[str, PassiveModel] | None = None,
) -> App:
    """The application.

    Parameters
    ----------
    service
        What handlers work with.
    callers
        Permits calls.
    pools
        The pools of the gRPC server by name.
    run_bulk
        Runs a function in the bulk thread.
    max_bytes
        Largest body.
    passive
        How events of inference loggers are read, by name of the model.
    """
    access = TokenAccess(callers)
    limits = Limits(access, max_bytes, service.counts)
    documents: dict[str, Response] = {
        "/": RedirectResponse("/docs"),
        "/openapi.json": Response(json.dumps(openapi_document()), media_type="application/json"),
        **{path: _file(name) for path, name in _FILES.items()},
    }
    routes = [HttpRoute(f"GET {path}", response) for path, response in documents.items()]

    def add(route: str, operation: Operation, answer: Answer) -> None:
        pool, is_scoring = pools[operation.pool], operation.is_scoring

        def submit(body: bytes) -> Callable[[Callable[[], object]], object]:
            return run_bulk if is_scoring and len(body) >= _BULK_BYTES else pool.submit

        def is_short(request: Request) -> bool:
            return is_scoring and not service.waits_for_disk and _is_short(request)

        endpoint = Endpoint(answer, operation.scope, pool, limits, is_short=is_short, submit=submit)
        routes.append(HttpRoute(route, endpoint))

    for operation in OPERATIONS.values():
        bound = BoundOperation(operation, service, callers)
        for route in operation.routes:
            if operation.service != INFERENCE.full_name:
                add(route, operation, MessageAnswer(route, bound))
            else:
                add(route, operation, answer_infer(bound) if operation.name == "ModelInfer" else answer_state(bound))
    score = OPERATIONS["Score"]

    def class_names(model: str) -> Sequence[str]:
        active = service.scoring.models().get(model)
        return () if active is None else active.bundle.class_names

    for route in EVENT_ROUTES:
        bound = BoundOperation(score, service, callers)
        add(route, score, EventAnswer(bound, passive or {}, class_names, service.counts))
    return App(routes, access)


def _is_short(request: Request) -> bool:
    """Whether a scoring call has few values, and no version to load."""
    body = request.body
    # JSON in UTF-16 or with escapes can have the field without these bytes.
    is_plain = len(body) < _SHORT_BYTES and b"\\" not in body and b"\0" not in body[:4]
    return is_plain and b'"version"' not in body and "version" not in request.parameters


def _bearer(request: Request) -> str | None:
    """The `authorization` header, with Basic authentication as a token where loggers send their events."""
    header = request.headers.get(b"authorization")
    kind, _, text = (header or "").partition(" ")
    if kind.lower() != "basic" or not _EVENT_PATH.fullmatch(request.path):
        return header
    try:
        return f"Bearer {base64.b64decode(text, validate=True).decode('latin-1').partition(':')[2]}"
    except (binascii.Error, ValueError):
        return "Bearer "


def _file(name: str) -> Response:
    body = files("darksight_service.http.api").joinpath("static", name).read_bytes()
    return Response(body, headers={"content-security-policy": _POLICY}, media_type=_TYPES[name.rpartition(".")[2]])
