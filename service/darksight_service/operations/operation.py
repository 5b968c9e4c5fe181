"""How a call of the service is declared: once, next to the function that handles it.

    @operation(ADMIN, "read", "store", "GET /v1/models/{model}")
    def get_model(service: Service, request: admin_pb2.GetModelRequest, call: Call) -> admin_pb2.GetModelResponse:
        \"\"\"Show one model.\"\"\"

The name of the function is that of the RPC, which the proto file gives its messages. gRPC methods, HTTP routes, the
OpenAPI document and the table in the documentation are made from the declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.control.changes import Control
from darksight_service.control.tokens import Caller
from darksight_service.errors import ForbiddenError, RequestError
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.scoring.service import ScoringService
from darksight_service.settings.validation import check_text
from darksight_service.telemetry.tracing import traced_call

if TYPE_CHECKING:
    # Loaded when a call needs it: SQLAlchemy takes 27 MB of a worker.
    from darksight_service.store.store import Store

__all__ = ["Call", "Operation", "Pool", "Service", "decode", "operation"]

M = TypeVar("M", bound=Message)

Pool = Literal["call", "store", "stream", "open"]
"""Where a handler runs: calls that never wait for the database, calls that may, streams, calls without a token."""

# No text of a request, such as the name of a model, is longer.
_MAX_TEXT = 4096
_MODEL_FIELDS = ("model", "model_name", "name")


class Call(Protocol):
    """What a handler knows of a call besides its request."""

    @property
    def caller(self) -> Caller:
        """Who calls."""

    @property
    def trace(self) -> bytes:
        """Trace id of the call; empty without one."""

    @property
    def traceparent(self) -> str:
        """The header with the trace and the span of the caller; empty without one."""

    @property
    def is_active(self) -> Callable[[], bool]:
        """Whether the caller still waits: neither cancelled nor past the deadline."""


@dataclass(frozen=True, slots=True)
class Service:
    """What handlers work with.

    Parameters
    ----------
    scoring
        Scores and records.
    control
        Models, policies and regions.
    store
        Returns the store, which is opened when it is first needed.
    accuracy
        Accuracy of the models, for the response to outcomes.
    counts
        Counters of the process.
    waits_for_disk
        Whether a scoring call waits for fsync.
    """

    scoring: ScoringService
    control: Control
    store: Callable[[], Store]
    accuracy: AccuracyFile
    counts: ProcessCounts
    waits_for_disk: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A call of the service.

    Parameters
    ----------
    service, name
        Full name of the gRPC service, and name of the RPC.
    scope
        The scope that a caller needs; `OPEN` for none.
    pool
        Where the handler runs.
    request, response
        Classes of the messages.
    handle
        The handler. Its result is what `encode` takes.
    summary
        One line for the documentation.
    routes
        HTTP methods and paths, such as `GET /v1/models/{model}`.
    encode
        The bytes of a response.
    encode_error
        The bytes of a response that reports an error: of a stream, which continues after it.
    is_short
        Whether a request waits for nothing and takes less than a millisecond; None if that is never so.
    is_scoring
        Whether large requests belong into the bulk thread.
    is_checked
        Whether texts of a request are checked when it is parsed, rather than by the handler.
    lists_models
        Whether requests name no model, and the handler shows the models of the caller alone.
    span
        Name of the trace span of a call; empty for none.
    span_attributes
        Attributes of the span from the result of the handler.
    """

    service: str
    name: str
    scope: str
    pool: Pool
    request: type[Message]
    response: type[Message]
    handle: Callable[[Service, Any, Call], Any]
    summary: str
    routes: tuple[str, ...] = ()
    encode: Callable[[Any], bytes] = lambda response: bytes(response.SerializeToString())
    encode_error: Callable[[Exception], bytes] | None = None
    is_short: Callable[[Service, Any], bool] | None = None
    is_scoring: bool = False
    is_checked: bool = True
    lists_models: bool = False
    span: str = ""
    span_attributes: Callable[[Any], Mapping[str, str | int | bool]] = lambda result: {}

    @property
    def method(self) -> str:
        """Full name of the gRPC method."""
        return f"/{self.service}/{self.name}"

    @property
    def parse(self) -> Callable[[bytes], Any]:
        """What makes a request of its bytes; RequestError if they are not one, or if one of its texts is not valid."""
        read = partial(decode, self.request)
        return (lambda data: self.check(read(data))) if self.is_checked else read

    def check(self, request: M) -> M:
        """The same request; RequestError if one of its texts is too long or has a NUL."""
        if self.is_checked:
            for field, value in request.ListFields():
                if isinstance(value, str):
                    check_text(field.name, value, _MAX_TEXT)
        return request

    def check_model(self, caller: Caller, request: Any) -> None:
        """ForbiddenError if a caller may not use the model of a request."""
        if caller.models is None or self.lists_models:
            return
        if self.encode_error is not None:
            request = request.request
        field = next((each for each in _MODEL_FIELDS if each in request.DESCRIPTOR.fields_by_name), None)
        if field is None:
            raise ForbiddenError("this method needs a caller who may use all models", kind="forbidden")
        caller.check_model(getattr(request, field))

    def bind(self, service: Service) -> Callable[[Any, Call], Any]:
        """The handler with a service, and with a span if calls are traced."""
        handle: Callable[[Any, Call], Any] = partial(self.handle, service)
        return traced_call(self.span, handle, self.span_attributes) if self.span else handle


def operation(
    service: ServiceDescriptor, scope: str, pool: Pool, *routes: str, **options: Any
) -> Callable[[Callable[[Service, Any, Call], Any]], Operation]:
    """Declare the function that follows as the handler of the RPC of its name; its docstring is the summary.

    Parameters
    ----------
    service
        The gRPC service.
    scope, pool, routes, options
        Of the operation.
    """

    def declare(handle: Callable[[Service, Any, Call], Any]) -> Operation:
        rpc = service.methods_by_name["".join(word.capitalize() for word in handle.__name__.split("_"))]
        request, response = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
        summary = (handle.__doc__ or "").partition("\n")[0].removesuffix(".")
        return Operation(
            service.full_name, rpc.name, scope, pool, request, response, handle, summary, routes, **options
        )

    return declare


def decode(kind: type[M], data: bytes) -> M:
    """A message from its bytes; RequestError if they are not one."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(f"the request is not a {kind.DESCRIPTOR.full_name}", field="request") from None
