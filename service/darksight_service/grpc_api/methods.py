"""The table of all methods: the scope that each needs, its handler and its pool.

A method that is not in the table cannot be called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from darksight_service.control.tokens import OPEN
from darksight_service.grpc_api.admin import Admin
from darksight_service.grpc_api.inference import InferenceServicer
from darksight_service.grpc_api.pools import CallPool, StreamPool
from darksight_service.grpc_api.scoring import ScoreCall, Scoring
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts

__all__ = ["Method", "MethodTable", "in_pool"]

MONITOR, ADMIN, INFERENCE = "darksight.v1.MonitorService", "darksight.v1.AdminService", "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
# The messages of both are encoded alike. Older clients know v1alpha only, newer ones ask for v1 first.
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

_log = logging.getLogger("darksight.rpc")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class Method:
    """A method: the scope it needs, its handler, and the pool that the handler runs in."""

    scope: str
    handler: Handler
    pool: CallPool | StreamPool


@dataclass(frozen=True, slots=True)
class MethodTable:
    """Builds the methods of each service, by full name.

    Parameters
    ----------
    calls, streams, store_calls
        The pools: of calls that never wait for the database, of streams, and of calls that may.
    counts
        Counters of the process.
    worker_header
        Metadata that tells clients which worker responded.
    """

    calls: CallPool
    streams: StreamPool
    store_calls: StreamPool
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
            f"/{ADMIN}/ListRegions": store("read", regions.list_regions),
            f"/{ADMIN}/PreviewRegion": store("read", regions.preview_region),
            f"/{ADMIN}/SaveRegion": store("admin", regions.save_region),
            f"/{ADMIN}/SetRegionMode": store("admin", regions.set_region_mode),
            f"/{ADMIN}/RemoveRegion": store("admin", regions.remove_region),
            f"/{ADMIN}/CarryOverRegion": store("admin", regions.carry_over_region),
        }
        for name, (scope, behaviour) in inference.methods().items():
            table[f"/{INFERENCE}/{name}"] = unary(scope, behaviour, scores=name == "ModelInfer")
        return table

    def health(self, servicer: health.HealthServicer) -> dict[str, Method]:
        """The standard health service."""
        read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString

        def check(data: bytes, context: grpc.ServicerContext) -> Any:
            try:
                request = read(data)
            except Exception:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a HealthCheckRequest")
            return servicer.Check(request, context)

        checked: Handler = grpc.unary_unary_rpc_method_handler(check, None, write)
        watched = grpc.unary_stream_rpc_method_handler(servicer.Watch, read, write)
        return {
            f"/{HEALTH}/Check": Method(OPEN, checked, self.calls),
            f"/{HEALTH}/Watch": Method(OPEN, watched, self.calls),
        }

    def reflection(self) -> dict[str, Method]:
        """The standard reflection service, in both of its versions."""
        _describe_reflection()
        servicer = reflection.ReflectionServicer((MONITOR, ADMIN, INFERENCE, HEALTH, *REFLECTIONS))
        handler = grpc.stream_stream_rpc_method_handler(
            in_pool(servicer.ServerReflectionInfo, self.streams),
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return {f"/{name}/ServerReflectionInfo": Method("read", handler, self.streams) for name in REFLECTIONS}

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

        call = in_pool(self._counted(logged), self.store_calls)
        return Method(scope, grpc.unary_unary_rpc_method_handler(call), self.store_calls)

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

    def _stream(self, scope: str, behaviour: Callable[..., Iterator[bytes]]) -> Method:
        def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            self.counts.start_call()
            try:
                context.send_initial_metadata((self.worker_header,))
                yield from behaviour(requests, context)
            finally:
                self.counts.end_call(0)

        return Method(scope, grpc.stream_stream_rpc_method_handler(in_pool(call, self.streams)), self.streams)


def in_pool(behaviour: Callable[..., Any], pool: futures.ThreadPoolExecutor) -> Callable[..., Any]:
    """A handler that runs in a pool of its own."""

    def call(requests: Any, context: grpc.ServicerContext) -> Any:
        return behaviour(requests, context)

    call.experimental_thread_pool = pool  # type: ignore[attr-defined]  # gRPC reads this attribute
    return call


def _describe_reflection() -> None:
    """Add the description of reflection v1, which grpc_reflection does not have, to those that clients may read."""
    found = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(found)
    text = text_format.MessageToString(found).replace("v1alpha", "v1")
    described = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(described.SerializeToString())
