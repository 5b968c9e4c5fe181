"""Spans with the real SDK in memory, and nothing at all without a configuration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from darksight_service.telemetry import tracing
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Caller:
    """The context of a call."""

    def __init__(self, traceparent: str = f"00-{TRACE}-{PARENT}-01") -> None:
        self.traceparent = traceparent


class Spool:
    """A recorder."""

    def append(self, payload: bytes) -> bool:
        """Recorded."""
        return True


class Store:
    """A store."""

    def insert(self, batches: Sequence[Any]) -> Any:
        """One new row for each batch."""
        return SimpleNamespace(inserted=len(batches), duplicates=0, conflicts=0)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Where the spans of a test go."""
    exporter = InMemorySpanExporter()
    tracing.use_processor(SimpleSpanProcessor(exporter), "worker-0")
    yield exporter
    tracing.stop_tracing()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """The finished spans."""
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_call_is_part_of_the_trace_of_its_caller(spans: InMemorySpanExporter) -> None:
    """The append is part of the call."""
    recorder = tracing.traced_recorder(Spool())

    def score(request: int, context: Any) -> int:
        recorder.append(b"abc")
        return request

    handle = tracing.traced_call("score", score, lambda result: {"darksight.rows": result})

    assert handle(1 << 20, Caller()) == 1 << 20
    found = by_name(spans)
    assert f"{found['score'].context.trace_id:032x}" == TRACE
    assert f"{found['score'].parent.span_id:016x}" == PARENT
    assert found["score"].attributes == {"darksight.rows": 1 << 20}
    assert found["spool append"].parent.span_id == found["score"].context.span_id
    assert found["spool append"].attributes == {"bytes": 3, "recorded": True}
    assert found["score"].resource.attributes["service.name"] == "darksight"
    assert found["score"].resource.attributes["process.name"] == "worker-0"


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01"])
def test_without_a_valid_parent_a_call_starts_a_trace(spans: InMemorySpanExporter, header: str) -> None:
    """As the standard asks."""
    tracing.traced_call("score", lambda request, context: request)(1, Caller(header))

    assert by_name(spans)["score"].parent is None


def test_a_parent_that_is_not_sampled_gets_no_spans(spans: InMemorySpanExporter) -> None:
    """The caller decides, by the flag of the header."""
    recorder = tracing.traced_recorder(Spool())
    handle = tracing.traced_call("score", lambda request, context: recorder.append(b""))

    assert handle(1, Caller(f"00-{TRACE}-{PARENT}-00"))
    assert recorder.append(b"outside of a call")
    assert spans.get_finished_spans() == ()


def test_a_failure_is_in_the_span(spans: InMemorySpanExporter) -> None:
    """With its exception, which is raised all the same."""

    def fail(request: Any, context: Any) -> None:
        raise ValueError("not a row")

    with pytest.raises(ValueError, match="not a row"):
        tracing.traced_call("score", fail)(1, Caller())

    span = by_name(spans)["score"]
    assert not span.status.is_ok
    assert span.events[0].attributes["exception.message"] == "not a row"


def test_inserts_of_the_drain_are_spans(spans: InMemorySpanExporter) -> None:
    """With what was stored."""
    assert tracing.traced_store(Store()).insert([1, 2, 3]).inserted == 3

    assert by_name(spans)["drain"].attributes == {"records": 3, "rows": 3, "duplicates": 0}


def test_without_a_configuration_nothing_is_wrapped_and_nothing_imported() -> None:
    """The functions return what they get: a call runs no line of this module."""
    code = """
import sys
from darksight_service.telemetry import tracing
tracing.set_up_tracing("worker-0")
def call(request, context): ...
assert tracing.traced_call("score", call) is call
assert tracing.traced_recorder(call) is call
assert tracing.traced_store(call) is call
tracing.stop_tracing()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={}, timeout=60)


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_usual_variables_turn_it_on_and_off(variables: dict[str, str], is_on: bool) -> None:
    """As the specification of OpenTelemetry names them."""
    assert tracing._is_configured(variables) is is_on


def test_missing_packages_are_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The service runs without spans, and the log says what to install."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    tracing.set_up_tracing("worker-0")

    assert [record.getMessage() for record in caplog.records] == ["tracing_unavailable"]
    assert tracing._tracer is None
