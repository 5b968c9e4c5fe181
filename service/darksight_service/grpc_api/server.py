"""The gRPC server of a worker: one table of all methods, limits, TLS and health.

Who calls is decided when the headers are there and before the message is read: a method that is not in the table, a
caller without the right and a call too many are refused without costing a thread of the pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from darksight_service.errors import ForbiddenError, OverloadedError, UnauthenticatedError
from darksight_service.grpc_api.admin import Admin
from darksight_service.grpc_api.auth import OPEN, TokenFile
from darksight_service.grpc_api.inference import InferenceServicer
from darksight_service.grpc_api.pools import BulkPool, CallPool, CountingPool
from darksight_service.grpc_api.scoring import Scoring
from darksight_service.grpc_api.status import abort, abort_code
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.settings import Settings

__all__ = ["Method", "RpcServer", "method_table"]

MONITOR, ADMIN, INFERENCE = "darksight.v1.MonitorService", "darksight.v1.AdminService", "inference.GRPCInferenceService"
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_THREADS = 4
_REFUSALS = 2
# How long a caller that found the server full is asked to wait: about what it takes to work off a full queue.
_RETRY_SECONDS = 0.05
_NEVER_MS = 2**31 - 1

_log = logging.getLogger("darksight.rpc")


@dataclass(frozen=True, slots=True)
class Method:
    """A method: the scope it needs, what answers, and where that runs."""

    scope: str
    handler: Handler
    pool: CallPool | CountingPool


class RpcServer:
    """A gRPC server that listens.

    Parameters
    ----------
    settings
        Address, limits, certificates, tokens.
    make_methods
        Makes the table of methods by full name, given the pools for calls and for streams.
    counts
        Counters of the process.
    bulk
        Where large calls are answered.
    """

    def __init__(
        self,
        settings: Settings,
        make_methods: Callable[[CallPool, CountingPool], Mapping[str, Method]],
        counts: ProcessCounts,
        bulk: BulkPool,
    ) -> None:
        limit = settings.max_concurrent_calls
        self.calls = CallPool(min(_THREADS, limit), limit, "call", bulk)
        self._streams = CountingPool(settings.max_streams, settings.max_streams, "stream")
        self._refusals = futures.ThreadPoolExecutor(_REFUSALS, thread_name_prefix="refusal")
        self._health = health.HealthServicer()
        self._settings = settings
        tokens = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
        table = dict(make_methods(self.calls, self._streams))
        table |= self._health_methods()
        if settings.reflection:
            table |= self._reflection_methods()
        self._server = grpc.server(
            self.calls,  # type: ignore[arg-type]  # of which submit is all that it needs
            handlers=[_Lookup(table, tokens, counts, self._refusals)],
            options=_options(settings),
            compression=None,
        )
        self.port = self._listen()

    def start(self) -> None:
        """Take calls."""
        self._server.start()

    def set_serving(self, models: Sequence[str]) -> None:
        """Tell that the server and these models are ready."""
        for name in ("", MONITOR, INFERENCE, *models):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING, take no more calls and wait until those in flight have ended."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_seconds).wait()
        self.calls.shutdown()

    def _listen(self) -> int:
        settings = self._settings
        address = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{address}:{settings.grpc_port}"
        if settings.tls_cert is None or settings.tls_key is None:
            port: int = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(
                address, _credentials(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
            )
        return port

    def _health_methods(self) -> dict[str, Method]:
        read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        check: Handler = grpc.unary_unary_rpc_method_handler(_safely(self._health.Check, read), None, write)
        watch = grpc.unary_stream_rpc_method_handler(self._health.Watch, read, write)
        return {
            f"/{HEALTH}/Check": Method(OPEN, check, self.calls),
            f"/{HEALTH}/Watch": Method(OPEN, watch, self.calls),
        }

    def _reflection_methods(self) -> dict[str, Method]:
        servicer = reflection.ReflectionServicer((MONITOR, ADMIN, INFERENCE, HEALTH, REFLECTION))
        handler = grpc.stream_stream_rpc_method_handler(
            _in_pool(servicer.ServerReflectionInfo, self._streams),
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return {f"/{REFLECTION}/ServerReflectionInfo": Method("read", handler, self._streams)}


def method_table(
    scoring: Scoring, admin: Admin, inference: InferenceServicer, counts: ProcessCounts
) -> Callable[[CallPool, CountingPool], Mapping[str, Method]]:
    """What makes the table of all methods of ours; a method of a proto that is missing here fails a test."""

    def make(calls: CallPool, streams: CountingPool) -> Mapping[str, Method]:
        def unary(
            scope: str,
            behaviour: Callable[..., bytes],
            is_short: Callable[[bytes], bool] | None = None,
            *,
            scores: bool = False,
        ) -> Method:
            call = _reporting(behaviour, counts)
            # Where the pool looks for them.
            call.is_short, call.scores = is_short, scores  # type: ignore[attr-defined]
            return Method(scope, grpc.unary_unary_rpc_method_handler(call), calls)

        def stream(scope: str, behaviour: Callable[..., Any]) -> Method:
            behaviour = _in_pool(_reporting(behaviour, counts), streams)
            return Method(scope, grpc.stream_stream_rpc_method_handler(behaviour), streams)

        table = {
            f"/{MONITOR}/Score": unary("score", scoring.score, scoring.is_short, scores=True),
            f"/{MONITOR}/ScoreStream": stream("score", scoring.score_stream),
            f"/{MONITOR}/ReportOutcomes": unary("report", scoring.report_outcomes),
            f"/{MONITOR}/ListPoints": unary("read", scoring.list_points),
            f"/{ADMIN}/ListModels": unary("read", admin.list_models),
            f"/{ADMIN}/GetModel": unary("read", admin.get_model),
            f"/{ADMIN}/DeployBundle": unary("admin", admin.deploy_bundle),
            f"/{ADMIN}/ActivateVersion": unary("admin", admin.activate_version),
            f"/{ADMIN}/RollBack": unary("admin", admin.roll_back),
            f"/{ADMIN}/SetShadow": unary("admin", admin.set_shadow),
            f"/{ADMIN}/GetPolicy": unary("read", admin.get_policy),
            f"/{ADMIN}/SetPolicy": unary("admin", admin.set_policy),
            f"/{ADMIN}/DryRunPolicy": unary("read", admin.dry_run_policy),
            f"/{ADMIN}/ListRegions": unary("read", admin.regions.list_regions),
            f"/{ADMIN}/PreviewRegion": unary("read", admin.regions.preview_region),
            f"/{ADMIN}/SaveRegion": unary("admin", admin.regions.save_region),
            f"/{ADMIN}/SetRegionMode": unary("admin", admin.regions.set_region_mode),
            f"/{ADMIN}/RemoveRegion": unary("admin", admin.regions.remove_region),
            f"/{ADMIN}/CarryOverRegion": unary("admin", admin.regions.carry_over_region),
        }
        for name, (scope, behaviour) in inference.methods().items():
            table[f"/{INFERENCE}/{name}"] = unary(scope, behaviour, scores=name == "ModelInfer")
        return table

    return make


class _Lookup(grpc.GenericRpcHandler):
    """Finds the handler of a call, or one that refuses it."""

    def __init__(
        self,
        table: Mapping[str, Method],
        tokens: TokenFile | None,
        counts: ProcessCounts,
        refusals: futures.ThreadPoolExecutor,
    ) -> None:
        self._table = table
        self._tokens = tokens
        self._counts = counts
        self._refusals = refusals

    def service(self, details: grpc.HandlerCallDetails) -> Handler | None:
        """The handler for a call whose headers are there."""
        method = self._table.get(details.method)
        if method is None:
            return None
        if self._tokens is not None and method.scope != OPEN:
            header = next((str(value) for name, value in details.invocation_metadata if name == "authorization"), None)
            try:
                self._tokens.permit(header, method.scope)
            except (UnauthenticatedError, ForbiddenError) as error:
                self._counts.refuse_caller(str(error.details["kind"]))
                return self._refuse(error)
        if method.pool.is_full:
            self._counts.refuse_overload()
            return self._refuse(
                OverloadedError(
                    f"the server has {method.pool.limit} calls in hand and takes no more just now; try again in "
                    f"{_RETRY_SECONDS:g} s",
                    retry_seconds=_RETRY_SECONDS,
                )
            )
        return method.handler

    def _refuse(self, error: Exception) -> Handler:
        # As a stream, whatever the method is: so the refusal does not wait for the message.
        def refuse(_: object, context: grpc.ServicerContext) -> None:
            self._counts.start_call()
            self._counts.end_call(abort_code(error))
            abort(context, error)

        return grpc.stream_stream_rpc_method_handler(_in_pool(refuse, self._refusals))


def _reporting(behaviour: Callable[..., Any], counts: ProcessCounts) -> Callable[..., Any]:
    """A handler whose errors become statuses."""

    def call(request: Any, context: grpc.ServicerContext) -> Any:
        counts.start_call()
        code = 0
        try:
            return behaviour(request, context)
        except Exception as error:
            code = abort_code(error)
            abort(context, error)
        finally:
            counts.end_call(code)

    return call


def _in_pool(behaviour: Callable[..., Any], pool: futures.ThreadPoolExecutor) -> Callable[..., Any]:
    """A handler that is not run in the pool of calls."""

    def call(requests: Any, context: grpc.ServicerContext) -> Any:
        return behaviour(requests, context)

    call.experimental_thread_pool = pool  # type: ignore[attr-defined]  # where gRPC looks for it
    return call


def _safely(behaviour: Callable[..., Any], read: Callable[[bytes], Any]) -> Callable[..., Any]:
    """A handler from a library, given bytes that may be no message."""

    def call(data: bytes, context: grpc.ServicerContext) -> Any:
        try:
            request = read(data)
        except Exception:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method")
        return behaviour(request, context)

    return call


def _options(settings: Settings) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", 1),
        # Applies to the message after decompression, so that a small message cannot become a large one.
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_connection_streams),
        ("grpc.max_metadata_size", 16 << 10),
        # A client may ask whether we live every 10 s, idle or not; one that asks more often is sent away.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_permit_without_calls", 1),
        # We ask, too: a connection whose other end is gone is closed after 80 s.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # A name is only resolved again when a connection ends. What is under way finishes on the old one.
        ("grpc.max_connection_age_ms", round(1e3 * settings.connection_seconds) or _NEVER_MS),
        # A client that connects and says nothing more holds a socket for this long.
        ("grpc.server_handshake_timeout_ms", 10_000),
    ]


def _credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Certificates that are read again when their files change."""
    seen: list[Any] = [None]

    def stamp() -> tuple[tuple[int, int], ...]:
        files = (cert, key) if client_ca is None else (cert, key, client_ca)
        return tuple((status.st_mtime_ns, status.st_ino) for status in (file.stat() for file in files))

    def load() -> grpc.ServerCertificateConfiguration:
        seen[0] = stamp()
        roots = None if client_ca is None else client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), cert.read_bytes())], roots)

    def changed() -> Any:
        try:
            return None if stamp() == seen[0] else load()
        except OSError as error:
            _log.error("certificates_kept_as_they_were", extra={"error": str(error)})
            return None

    return grpc.dynamic_ssl_server_credentials(load(), changed, require_client_authentication=client_ca is not None)
