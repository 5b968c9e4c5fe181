"""The standard health service: the state of the server and of each model, now (Check) and from now on (Watch).

Nobody needs a token for it, so nothing that a caller sends is kept: a request is small, and a name that the server does
not know is answered once. A watch has a thread of its own, and a caller who does not read blocks no other. One watch
too many ends the oldest, so that nobody keeps others from watching.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from darksight_service.errors import NotFoundError, RequestError
from darksight_service.grpc_api.silence import SilenceLimit
from darksight_service.grpc_api.status import abort

__all__ = ["Health"]

_Response = health_pb2.HealthCheckResponse

# The name of a model has at most 100 characters.
_MAX_BYTES = 1024


class Health:
    """Handlers of grpc.health.v1.Health; requests and responses are bytes.

    Parameters
    ----------
    watches
        Most watches that are open.
    """

    def __init__(self, watches: int) -> None:
        self._watches = SilenceLimit(math.inf, watches, "there are too many watches, and this was the oldest")
        self._changed = threading.Condition()
        self._statuses: Mapping[str, int] = {"": _Response.NOT_SERVING}
        self._is_stopping = False

    def set_serving(self, is_serving: Mapping[str, bool]) -> None:
        """Report these names; one that was reported before and is not among them is not served any more."""
        with self._changed:
            if not self._is_stopping:
                self._set({**dict.fromkeys(self._statuses, False), **is_serving})

    def stop(self) -> None:
        """Report that nothing is served from now on."""
        with self._changed:
            self._is_stopping = True
            self._set(dict.fromkeys(self._statuses, False))

    def check(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Check."""
        name = _service(data, context)
        status = self._statuses.get(name)
        if status is None:
            abort(context, NotFoundError(f"there is no service or model {name[:100]!r}", field="service"))
        return _response(status)

    def watch(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Watch: the status now and whenever it changes; SERVICE_UNKNOWN, once, for a name that is not known."""
        name = _service(data, context)
        sent = None
        context.add_callback(self._wake)
        call = context._rpc_event.call  # type: ignore[attr-defined]  # the public `cancel` takes no status
        self._watches.begin(call)
        try:
            while context.is_active() and sent != _Response.SERVICE_UNKNOWN:
                sent = self._statuses.get(name, _Response.SERVICE_UNKNOWN)
                yield _response(sent)
                with self._changed:
                    while self._statuses.get(name) == sent and context.is_active():
                        self._changed.wait()
        finally:
            self._watches.end(call)

    def _set(self, is_serving: Mapping[str, bool]) -> None:
        self._statuses = {
            name: _Response.SERVING if each else _Response.NOT_SERVING for name, each in is_serving.items()
        }
        self._changed.notify_all()

    def _wake(self) -> None:
        """A call has ended, and its thread may wait for a change."""
        with self._changed:
            self._changed.notify_all()


def _response(status: int) -> bytes:
    data: bytes = _Response(status=status).SerializeToString()
    return data


def _service(data: bytes, context: grpc.ServicerContext) -> str:
    """The name in a request."""
    if len(data) <= _MAX_BYTES:
        try:
            name: str = health_pb2.HealthCheckRequest.FromString(data).service
            return name
        except DecodeError:
            pass
    abort(context, RequestError(f"the request is not a HealthCheckRequest of at most {_MAX_BYTES} bytes"))
