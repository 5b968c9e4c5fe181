"""The table of all methods: the scope that each needs, its handler and its pool.

A method that is not in the table cannot be called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeAlias

import grpc
from darksight_client.stubs.darksight.v1 import monitor_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection, reflection_pb2

from darksight_service.control.tokens import OPEN
from darksight_service.errors import ForbiddenError, OverloadedError, RequestError
from darksight_service.grpc_api.admin import Admin
from darksight_service.grpc_api.callers import ModelReader
from darksight_service.grpc_api.health import Health
from darksight_service.grpc_api.inference import InferenceServicer
from darksight_service.grpc_api.pools import CallPool, StreamPool
from darksight_service.grpc_api.scoring import ScoreCall, Scoring, parse
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts

__all__ = ["Method", "MethodTable", "in_pool"]

MONITOR, ADMIN, INFERENCE = "darksight.v1.MonitorService", "darksight.v1.AdminService", "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
# The messages of both are encoded alike. Older clients know v1alpha only, newer ones ask for v1 first.
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

# Methods whose requests name no model: they say nothing about any, or list those that the caller may use.
_WITHOUT_MODEL = ("ListModels", "RepositoryIndex", "ServerMetadata")
_MODEL_FIELDS = ("model", "model_name", "name")

_log = logging.getLogger("darksight.rpc")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def _no_model(_: Any) -> str | None:
    raise ForbiddenError("this method needs a caller who may use all models", kind="forbidden")


@dataclass(frozen=True, slots=True)
class Method:
    """A method.

    Parameters
    ----------
    scope
        The scope that it needs.
    handler
        Its handler.
    pool
        The pool that the handler runs in.
    read_model
        Reads the model of a request, for callers who may use some models only; by default they may not call.
    """

    scope: str
    handler: Handler
    pool: CallPool | StreamPool
    read_model: ModelReader = _no_model


@dataclass(frozen=True, slots=True)
class MethodTable:
    """Builds the methods of each service, by full name.

    Parameters
    ----------
    calls, streams, store_calls, open_calls, watches
        The pools: of calls that never wait for the database, of streams, of calls that may, and of calls and health
        watches, which need no token.
    counts
        Counters of the process.
    worker_header
        Metadata that tells clients which worker responded.
    """

    calls: CallPool
    streams: StreamPool
    store_calls: StreamPool
    open_calls: StreamPool
    watches: StreamPool
    counts: ProcessCounts
    worker_header: tuple[str, str]

    def darksight(self, scoring: Scoring, admin: Admin, inference: InferenceServicer) -> dict[str, Method]:
        """MonitorService, AdminService and GRPCInferenceService."""
        unary, store, regions = self._unary, self._store_call, admin.regions
        table = {
            f"/{MONITOR}/Score": unary("score", scoring.score, scoring.is_short, scores=True, read=ScoreCall),
            f"/{MONITOR}/ScoreStream": self._stream("score", scoring.score_stream),
            f"/{MONITOR}/ReportOutcomes": unary("report", scoring.report_outcomes),
            f"/{MONITOR}/ListPoints": store("read", scoring.list_points),
            f"/{ADMIN}/ListModels": store("read", admin.list_models),
            f"/{ADMIN}/GetModel": store("read", admin.get_model),
            f"/{ADMIN}/DeployBundle": store("admin", admin.deploy_bundle),
            f"/{ADMIN}/ActivateVersion": store("admin", admin.activate_version),
            f"/{ADMIN}/RollBack": store("admin", admin.roll_back),
            f"/{ADMIN}/SetShadow": store("admin", admin.set_shadow),
            f"/{ADMIN}/GetPolicy": store("read", admin.get_policy),
            f"/{ADMIN}/SetPolicy": store("admin", admin.set_policy),
            f"/{ADMIN}/DryRunPolicy": store("read", admin.dry_run_policy),
            f"/{ADMIN}/ResetEvidence": store("admin", admin.reset_evidence),
            f"/{ADMIN}/ListRegions": store("read", regions.list_regions),
            f"/{ADMIN}/PreviewRegion": store("read", regions.preview_region),
            f"/{ADMIN}/SaveRegion": store("admin", regions.save_region),
            f"/{ADMIN}/SetRegionMode": store("admin", regions.set_region_mode),
            f"/{ADMIN}/RemoveRegion": store("admin", regions.remove_region),
            f"/{ADMIN}/CarryOverRegion": store("admin", regions.carry_over_region),
        }
        for name, (scope, behaviour) in inference.methods().items():
            table[f"/{INFERENCE}/{name}"] = (
                self._open_call(self._counted(behaviour))
                if scope == OPEN
                else unary(scope, behaviour, scores=name == "ModelInfer")
            )
        return {name: replace(method, read_model=_model_reader(name)) for name, method in table.items()}

    def health(self, health: Health) -> dict[str, Method]:
        """The standard health service."""
        watch: Handler = grpc.unary_stream_rpc_method_handler(self._apart(health.watch, self.watches))
        return {
            f"/{HEALTH}/Check": self._open_call(health.check),
            f"/{HEALTH}/Watch": Method(OPEN, watch, self.watches),
        }

    def reflection(self) -> dict[str, Method]:
        """The standard reflection service, in both of its versions."""
        _describe_reflection()
        servicer = reflection.ReflectionServicer((MONITOR, ADMIN, INFERENCE, HEALTH, *REFLECTIONS))
        method = self._stream(
            "read",
            servicer.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        method = replace(method, read_model=lambda _: None)
        return {f"/{name}/ServerReflectionInfo": method for name in REFLECTIONS}

    def _unary(
        self,
        scope: str,
        behaviour: Callable[[Any, grpc.ServicerContext], bytes],
        is_short: Callable[[Any], bool] | None = None,
        *,
        scores: bool = False,
        read: Callable[[bytes], Any] | None = None,
    ) -> Method:
        call = self._counted(behaviour)
        # `CallPool` reads these attributes.
        call.is_short, call.scores = is_short, scores  # type: ignore[attr-defined]
        return Method(scope, grpc.unary_unary_rpc_method_handler(call, read), self.calls)

    def _store_call(self, scope: str, behaviour: Callable[[Any, grpc.ServicerContext], bytes]) -> Method:
        """A call that may wait for the database, in a thread of its own: scoring must not wait behind it."""

        def logged(request: Any, context: grpc.ServicerContext) -> bytes:
            started = time.monotonic()
            try:
                return behaviour(request, context)
            finally:
                facts = {"call": behaviour.__name__, "seconds": round(time.monotonic() - started, 4)}
                _log.debug("store_call_ended", extra=facts)

        call = self._apart(self._counted(logged), self.store_calls)
        return Method(scope, grpc.unary_unary_rpc_method_handler(call), self.store_calls)

    def _open_call(self, behaviour: Callable[[Any, grpc.ServicerContext], bytes]) -> Method:
        """A call that needs no token, in a small pool of its own: nobody without a token takes a thread of scoring."""
        call = self._apart(behaviour, self.open_calls)
        return Method(OPEN, grpc.unary_unary_rpc_method_handler(call), self.open_calls)

    def _apart(self, behaviour: Callable[..., Any], pool: StreamPool) -> Callable[..., Any]:
        """A unary handler that runs in a pool of its own, as soon as the message has arrived if that is possible."""
        if not self.calls.reads_early:
            return in_pool(behaviour, pool)

        @wraps(behaviour)
        def call(*args: Any, **options: Any) -> Any:
            return behaviour(*args, **options)

        call.pool = pool  # type: ignore[attr-defined]  # `CallPool` reads this attribute
        return call

    def _counted(self, behaviour: Callable[[Any, grpc.ServicerContext], bytes]) -> Callable[..., Any]:
        trailers = (self.worker_header,)

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            self.counts.start_call()
            code = 0
            try:
                context.set_trailing_metadata(trailers)
                return behaviour(request, context)
            except Exception as error:
                code = abort_code(error)
                abort(context, error)
            finally:
                self.counts.end_call(code)

        return call

    def _stream(
        self,
        scope: str,
        behaviour: Callable[..., Iterator[Any]],
        read: Callable[[bytes], Any] | None = None,
        write: Callable[[Any], bytes] | None = None,
    ) -> Method:
        """A stream, which counts among those of its caller and is ended if the caller sends nothing for too long."""

        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self.counts.start_call()
            code = 0
            try:
                with self.streams.share_of(_caller(context)):
                    context.send_initial_metadata((self.worker_header,))
                    yield from behaviour(self.streams.silence.guard(requests, context), context)
            except (OverloadedError, ForbiddenError, RequestError) as error:
                code = abort_code(error)
                abort(context, error)
            finally:
                self.counts.end_call(code)

        handler: Handler = grpc.stream_stream_rpc_method_handler(in_pool(call, self.streams), read, write)
        return Method(scope, handler, self.streams)


def in_pool(behaviour: Callable[..., Any], pool: futures.ThreadPoolExecutor) -> Callable[..., Any]:
    """A handler that runs in a pool of its own."""

    @wraps(behaviour)
    def call(*args: Any, **options: Any) -> Any:
        return behaviour(*args, **options)

    call.experimental_thread_pool = pool  # type: ignore[attr-defined]  # gRPC reads this attribute
    return call


def _model_reader(method: str) -> ModelReader:
    """Reads the model of a request of a method, by its full name."""
    service, _, name = method[1:].partition("/")
    if name in _WITHOUT_MODEL:
        return lambda _: None
    if name == "Score":
        return lambda call: str(call.request().model)
    kind = GetMessageClass(descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type)
    if name == "ScoreStream":
        return lambda data: str(parse(monitor_pb2.ScoreStreamRequest, data).request.model)
    field = next((each for each in _MODEL_FIELDS if each in kind.DESCRIPTOR.fields_by_name), None)
    return _no_model if field is None else lambda data: str(getattr(parse(kind, data), field))


def _caller(context: grpc.ServicerContext) -> str:
    """The token of a call or, without one, the certificate of its connection; empty without both."""
    for name, value in context.invocation_metadata():
        if name == "authorization":
            return str(value)[7:].strip()
    return str(context.auth_context().get("x509_common_name", ""))


def _describe_reflection() -> None:
    """Add the description of reflection v1, which grpc_reflection does not have, to those that clients may read."""
    found = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(found)
    text = text_format.MessageToString(found).replace("v1alpha", "v1")
    described = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(described.SerializeToString())
