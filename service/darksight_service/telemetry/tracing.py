"""Spans of calls, of appends to the spool and of inserts, by OpenTelemetry, if it is installed and configured.

The usual variables configure it: `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_TRACES_EXPORTER=otlp` turns it on,
`OTEL_TRACES_EXPORTER=none` or `OTEL_SDK_DISABLED=true` off; the SDK reads the others. Without them nothing is imported,
and the functions of this module return what they are given, so that a call runs no line of it.

    score | infer     a call, part of the trace that the caller names in `traceparent`
    spool append      in it: the record is on disk
    drain             the storage worker inserts records of many calls; a trace of its own
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from darksight_service.telemetry.traceparent import HEADER

__all__ = [
    "set_up_tracing",
    "stop_tracing",
    "traced_call",
    "traced_recorder",
    "traced_store",
    "use_processor",
]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="_Recorder")
S = TypeVar("S", bound="_Store")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SERVICE = "darksight"

_log = logging.getLogger("darksight.tracing")
# Like logging, one for the whole process.
_provider: Any = None
_tracer: Any = None


class _Recorder(Protocol):
    def append(self, payload: bytes) -> bool: ...


class _Store(Protocol):
    def insert(self, batches: Sequence[Any]) -> Any: ...


class _Call(Protocol):
    @property
    def traceparent(self) -> str: ...


def _is_configured(environment: Mapping[str, str]) -> bool:
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter not in ("", "otlp"):
        return False
    return exporter == "otlp" or any(environment.get(name) for name in _ENDPOINTS)


def set_up_tracing(process: str) -> None:
    """Send the spans of this process to a collector, if the environment configures one.

    Parameters
    ----------
    process
        Name of the process, an attribute of every span.
    """
    if not _is_configured(os.environ):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        _log.warning("tracing_unavailable", extra={"missing": error.name, "install": "darksight[otel]"})
        return
    use_processor(BatchSpanProcessor(OTLPSpanExporter()), process)
    _log.info("tracing_started")


def use_processor(processor: Any, process: str) -> None:
    """Give all spans to a processor of the SDK."""
    global _provider, _tracer
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    # The environment overrides the name.
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": _SERVICE}
    _provider = TracerProvider(resource=Resource.create({**name, "process.name": process}))
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("darksight_service")


def stop_tracing() -> None:
    """Send what is left, and stop."""
    global _provider, _tracer
    if _provider is not None:
        _provider.shutdown()
    _provider = _tracer = None


def traced_call(
    name: str,
    call: Callable[[Any, Any], T],
    describe: Callable[[T], Mapping[str, str | int | bool]] = lambda result: {},
) -> Callable[[Any, Any], T]:
    """A handler of requests with a span for each, whose parent is the span that the caller names.

    Parameters
    ----------
    name
        Of the span.
    call
        Takes a request and the context of its call.
    describe
        Attributes of the span from the result.
    """
    if _tracer is None:
        return call
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer, read = _tracer, TraceContextTextMapPropagator().extract

    def traced(request: Any, context: _Call) -> T:
        with tracer.start_as_current_span(name, read({HEADER: context.traceparent}), kind=SpanKind.SERVER) as span:
            result = call(request, context)
            if span.is_recording():
                span.set_attributes(describe(result))
            return result

    return traced


class _TracedRecorder:
    def __init__(self, recorder: _Recorder, tracer: Any) -> None:
        from opentelemetry.trace import get_current_span

        self._recorder, self._tracer, self._current = recorder, tracer, get_current_span

    def append(self, payload: bytes) -> bool:
        if not self._current().is_recording():
            return self._recorder.append(payload)
        with self._tracer.start_as_current_span("spool append", attributes={"bytes": len(payload)}) as span:
            recorded = self._recorder.append(payload)
            span.set_attribute("recorded", recorded)
            return recorded


def traced_recorder(recorder: R) -> R | _TracedRecorder:
    """A recorder whose appends are spans, within those of calls."""
    return recorder if _tracer is None else _TracedRecorder(recorder, _tracer)


class _TracedStore:
    def __init__(self, store: _Store, tracer: Any) -> None:
        self._store, self._tracer = store, tracer

    def insert(self, batches: Sequence[Any]) -> Any:
        with self._tracer.start_as_current_span("drain", attributes={"records": len(batches)}) as span:
            inserted = self._store.insert(batches)
            span.set_attributes({"rows": inserted.inserted, "duplicates": inserted.duplicates})
            return inserted


def traced_store(store: S) -> S | _TracedStore:
    """A store whose inserts are spans."""
    return store if _tracer is None else _TracedStore(store, _tracer)
