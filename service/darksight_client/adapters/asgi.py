"""Middleware that gates the responses of an ASGI application, such as one of FastAPI or Starlette.

It reads the probabilities from a field of a JSON response, asks the service, and adds the decision as headers. A
prediction that is rejected is replaced by problem details (RFC 9457), so that no caller acts on it by mistake. No part
of a framework is imported: ASGI is a protocol of dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from darksight_client.adapters.remote import Decided, RemoteGate

__all__ = ["GateMiddleware"]

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_App: TypeAlias = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class GateMiddleware:
    """Gates the responses of an application that hold the probabilities of one prediction.

    Responses that are not JSON objects with the field, have an error status or another path pass unchanged. A gated
    response has the headers `darksight-decision`, `darksight-reason` and, for `Client.report`,
    `darksight-prediction-id`.

    Parameters
    ----------
    app
        The application.
    gate
        Its option `on_failure` says what happens while the service is unavailable. The application closes it.
    field
        Member of the response with the probabilities, a list in the order of the classes.
    paths
        Paths of the application that are gated, with or without the prefix under which it is mounted (`root_path`).
    reject_status
        Status of the response in place of a rejected prediction; None lets the prediction pass, with its headers.
    """

    def __init__(
        self,
        app: _App,
        gate: RemoteGate,
        *,
        field: str = "probabilities",
        paths: Sequence[str] = ("/predict",),
        reject_status: int | None = 422,
    ) -> None:
        self._app = app
        self._gate = gate
        self._field = field
        self._paths = frozenset(paths)
        self._reject_status = reject_status

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Run the application and gate what it sends."""
        if scope["type"] != "http" or self._paths.isdisjoint(_paths(scope)):
            await self._app(scope, receive, send)
            return
        start: _Message = {}
        body = bytearray()

        async def collect(message: _Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._finish(start, bytes(body), send)
            else:
                await send(message)

        await self._app(scope, receive, collect)

    async def _finish(self, start: _Message, body: bytes, send: _Send) -> None:
        """Send the response, gated if it holds a prediction."""
        probs = self._probabilities(start, body)
        if probs is not None:
            (decided,) = await self._gate(probs)
            headers = _headers(decided)
            if self._reject_status is not None and not decided["accepted"]:
                body, status = _problem(decided, self._reject_status), self._reject_status
                start = {**start, "status": status}
                headers.append((b"content-type", b"application/problem+json"))
            replaced = {b"content-length", *(name for name, _ in headers)}
            kept = [(name, value) for name, value in start.get("headers", []) if bytes(name).lower() not in replaced]
            start = {**start, "headers": [*kept, *headers, (b"content-length", str(len(body)).encode())]}
        await send(start)
        await send({"type": "http.response.body", "body": body})

    def _probabilities(self, start: _Message, body: bytes) -> list[float] | None:
        headers = {bytes(name).lower(): bytes(value) for name, value in start.get("headers", [])}
        is_json = headers.get(b"content-type", b"").partition(b";")[0].strip() == b"application/json"
        if not (is_json and 200 <= start["status"] < 300) or b"content-encoding" in headers:
            return None
        found = json.loads(body)
        values = found.get(self._field) if isinstance(found, dict) else None
        return values if isinstance(values, list) else None


def _paths(scope: _Message) -> tuple[str, str]:
    """The path with and without the prefix that servers put before it for a proxy, and routers for a mount."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path, path.removeprefix(root)


def _headers(decided: Decided) -> list[tuple[bytes, bytes]]:
    values = {
        "darksight-decision": "accept" if decided["accepted"] else "reject",
        "darksight-reason": decided["reason"],
        "darksight-prediction-id": decided["prediction_id"],
    }
    return [(name.encode(), value.encode()) for name, value in values.items()]


def _problem(decided: Decided, status: int) -> bytes:
    reason = decided["reason"]
    problem = {
        "type": "about:blank",
        "title": "Prediction rejected",
        "status": status,
        "detail": f"the prediction must not be acted on: {reason}",
        "reason": reason,
        "prediction_id": decided["prediction_id"],
    }
    return json.dumps(problem).encode()
