"""The methods of the gRPC server: the table of operations, and the standard services for health and reflection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import reflection, reflection_pb2

from darksight_service.control.tokens import ANYBODY, OPEN
from darksight_service.errors import ForbiddenError, OverloadedError, RequestError, UnauthenticatedError
from darksight_service.grpc_api.callers import GrpcCall, find_header
from darksight_service.grpc_api.health import Health
from darksight_service.grpc_api.pools import BulkPool, CallPool, Handler, StreamPool
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Operation, Pool, Service
from darksight_service.operations.table import OPERATIONS

__all__ = ["EncodedRequest", "Method", "MethodTable"]

HEALTH = "grpc.health.v1.Health"
# The messages of both are encoded alike. Older clients know v1alpha only, newer ones ask for v1 first.
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

# Requests that the thread that reads for gRPC may parse.
_SHORT_BYTES = 1 << 14

_log = logging.getLogger("darksight.rpc")

MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class EncodedRequest:
    """A request, which is parsed once, by the first that asks for it.

    gRPC must not parse it: bytes that are not a message would become INTERNAL, and large messages are parsed by the
    thread that handles them.
    """

    __slots__ = ("_data", "_message", "_parse")

    def __init__(self, parse: Callable[[bytes], Any], data: bytes) -> None:
        self._parse = parse
        self._data = data
        self._message: Any = None

    def __len__(self) -> int:
        return len(self._data)

    def message(self) -> Any:
        """The request; RequestError if the bytes are not one."""
        if self._message is None:
            self._message = self._parse(self._data)
        return self._message


@dataclass(frozen=True, slots=True)
class Method:
    """A method.

    Parameters
    ----------
    scope
        The scope that it needs.
    pool
        The pool that its handler runs in.
    handler
        Its handler, for callers with a token for all models.
    checking_handler
        The same for all others: it finds out who calls, and checks the model of each request.
    """

    scope: str
    pool: CallPool | StreamPool
    handler: MethodHandler
    checking_handler: MethodHandler


@dataclass(frozen=True, slots=True)
class MethodTable:
    """Builds the methods, by full name.

    Parameters
    ----------
    service
        What handlers work with.
    pools
        The pools by name.
    bulk
        Where large batches are scored.
    callers
        Know who calls.
    counts
        Counters of the process.
    worker_header
        Metadata that tells clients which worker responded.
    """

    service: Service
    pools: Mapping[Pool, CallPool | StreamPool]
    bulk: BulkPool
    callers: Callers
    counts: ProcessCounts
    worker_header: tuple[str, str]

    def operations(self) -> dict[str, Method]:
        """MonitorService, AdminService and GRPCInferenceService."""
        return {
            each.method: self._stream(each) if each.pool == "stream" else self._unary(each)
            for each in OPERATIONS.values()
        }

    def health(self, health: Health, watches: StreamPool) -> dict[str, Method]:
        """The standard health service; it needs no token."""
        pool, reads_early = self.pools["open"], self.reads_early
        check: MethodHandler = grpc.unary_unary_rpc_method_handler(Handler(health.check, pool, reads_early=reads_early))
        watch: MethodHandler = grpc.unary_stream_rpc_method_handler(
            Handler(health.watch, watches, reads_early=reads_early)
        )
        return {
            f"/{HEALTH}/Check": Method(OPEN, pool, check, check),
            f"/{HEALTH}/Watch": Method(OPEN, watches, watch, watch),
        }

    def reflection(self) -> dict[str, Method]:
        """The standard reflection service, in both of its versions."""
        _describe_reflection()
        services = dict.fromkeys(each.service for each in OPERATIONS.values())
        servicer = reflection.ReflectionServicer((*services, HEALTH, *REFLECTIONS))

        def respond(requests: Iterator[Any], context: grpc.ServicerContext, is_checked: bool) -> Iterator[Any]:
            if is_checked:
                _ = GrpcCall(context, self.callers, "read").caller
            yield from servicer.ServerReflectionInfo(requests, context)

        handlers: list[MethodHandler] = [
            grpc.stream_stream_rpc_method_handler(
                Handler(self._guarded(partial(respond, is_checked=is_checked)), self._streams),
                reflection_pb2.ServerReflectionRequest.FromString,
                reflection_pb2.ServerReflectionResponse.SerializeToString,
            )
            for is_checked in (False, True)
        ]
        return {f"/{name}/ServerReflectionInfo": Method("read", self._streams, *handlers) for name in REFLECTIONS}

    @property
    def _streams(self) -> StreamPool:
        pool = self.pools["stream"]
        assert isinstance(pool, StreamPool)
        return pool

    @property
    def reads_early(self) -> bool:
        """Whether a call takes a thread when its message has arrived."""
        pool = self.pools["call"]
        assert isinstance(pool, CallPool)
        return pool.reads_early

    def _unary(self, operation: Operation) -> Method:
        handlers: list[MethodHandler] = [
            grpc.unary_unary_rpc_method_handler(
                _OperationHandler(operation, self, is_checked=is_checked), partial(EncodedRequest, operation.parse)
            )
            for is_checked in (False, True)
        ]
        return Method(operation.scope, self.pools[operation.pool], *handlers)

    def _stream(self, operation: Operation) -> Method:
        handlers: list[MethodHandler] = [
            grpc.stream_stream_rpc_method_handler(Handler(self._guarded(run), self._streams))
            for run in (self._respond(operation), self._respond(operation, is_checked=True))
        ]
        return Method(operation.scope, self._streams, *handlers)

    def _respond(self, operation: Operation, *, is_checked: bool = False) -> Callable[..., Iterator[bytes]]:
        """What handles a stream: gRPC reads the next request after the response to this one."""
        handle, encode, encode_error = operation.bind(self.service), operation.encode, operation.encode_error
        parse = operation.parse
        assert encode_error is not None

        def respond(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call = GrpcCall(context, self.callers, operation.scope)
            caller = call.caller if is_checked else ANYBODY
            for data in requests:
                if caller.models is not None:
                    self.callers.check_model(caller, operation, parse(data))
                try:
                    request = parse(data)
                    yield encode(self.bulk.run(len(data), partial(handle, request, call)))
                except Exception as error:
                    yield encode_error(error)

        return respond

    def _guarded(self, respond: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """A stream that counts among those of its caller, and is ended if the caller sends nothing for too long."""

        def run(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self.counts.start_call()
            code = 0
            try:
                with self._streams.share_of(_stream_owner(context)):
                    context.send_initial_metadata((self.worker_header,))
                    yield from respond(self._streams.silence.guard(requests, context), context)
            except (OverloadedError, ForbiddenError, RequestError, UnauthenticatedError) as error:
                code = abort_code(error)
                abort(context, error)
            finally:
                self.counts.end_call(code)

        return run


class _OperationHandler(Handler):
    """Handles the calls of an operation; with `is_checked`, it checks their callers and the models in requests."""

    def __init__(self, operation: Operation, table: MethodTable, *, is_checked: bool) -> None:
        handle = operation.bind(table.service)
        if operation.is_scoring and not table.reads_early:
            handle = partial(_in_bulk, table.bulk, handle)
        if operation.pool == "store":
            handle = partial(_logged, operation.name, handle)
        is_short = operation.is_short
        super().__init__(
            handle,
            table.pools[operation.pool],
            is_short=None if is_short is None else partial(_is_short, partial(is_short, table.service)),
            is_scoring=operation.is_scoring,
            reads_early=table.reads_early,
        )
        self._operation, self._encode, self._is_checked = operation, operation.encode, is_checked
        self._callers, self._counts, self._trailers = table.callers, table.counts, (table.worker_header,)

    def __call__(self, request: EncodedRequest, context: grpc.ServicerContext) -> Any:
        self._counts.start_call()
        code = 0
        try:
            context.set_trailing_metadata(self._trailers)
            call = GrpcCall(context, self._callers, self._operation.scope)
            if self._is_checked:
                self._callers.check_model(call.caller, self._operation, request.message())
            return self._encode(self._run(request.message(), call))
        except Exception as error:
            code = abort_code(error)
            abort(context, error)
        finally:
            self._counts.end_call(code)


def _is_short(is_short: Callable[[Any], bool], request: EncodedRequest) -> bool:
    if len(request) > _SHORT_BYTES:
        return False
    try:
        return is_short(request.message())
    except RequestError:
        return False


def _in_bulk(bulk: BulkPool, handle: Callable[..., Any], request: Any, call: GrpcCall) -> Any:
    return bulk.run(request.ByteSize(), partial(handle, request, call))


def _logged(name: str, handle: Callable[..., Any], request: Any, call: GrpcCall) -> Any:
    started = time.monotonic()
    try:
        return handle(request, call)
    finally:
        seconds = round(time.monotonic() - started, 4)
        _log.debug("store_call_ended", extra={"call": name, "seconds": seconds})


def _stream_owner(context: grpc.ServicerContext) -> str:
    """The token of a stream or, without one, the certificate of its connection; empty without both."""
    header = find_header(context.invocation_metadata(), "authorization")
    return str(context.auth_context().get("x509_common_name", "")) if header is None else header[7:].strip()


def _describe_reflection() -> None:
    """Add the description of reflection v1, which grpc_reflection does not have, to those that clients may read."""
    found = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(found)
    text = text_format.MessageToString(found).replace("v1alpha", "v1")
    described = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(described.SerializeToString())
