"""The trace of a caller: in spans, in the stored point, in log lines and in exemplars of a real service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import httpx
import pytest
from darksight_client import Client
from darksight_client.stubs.darksight.v1 import monitor_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.events.wire import read_wire
from tests.support.servers import Server, running_server, wait_until

# One for each test.
TRACES = [f"4bf92f3577b34da6a3ce929d0e0e473{number}" for number in range(3)]
PARENT = "00f067aa0ba902b7"
SCORE = "/darksight.v1.MonitorService/Score"


class Collector(ThreadingHTTPServer):
    """An OTLP receiver that keeps the spans, by name."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def named(self, name: str) -> list[Any]:
        """Spans received so far."""
        return [span for span in self.spans if span.name == name]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["content-length"]))
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            collector: Any = self.server
            collector.services |= {
                each.value.string_value for each in part.resource.attributes if each.key == "service.name"
            }
            collector.spans += [span for scope in part.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector."""
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker that sends spans."""
    folder = tmp_path_factory.mktemp("tracing")
    bundle = gated_bundle(folder / "digits.safetensors")
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_SERVICE_NAME": "monitor",
        "DARKSIGHT_LOG_LEVEL": "debug",
    }
    options = ("--workers", "1", "--api-port", "0")
    with running_server({"digits": bundle}, folder / "data", *options, environment=variables) as server:
        yield server


def header_of(trace: str) -> str:
    """The header `traceparent`."""
    return f"00-{trace}-{PARENT}-01"


def children(collector: Collector, trace: str) -> dict[str, Any]:
    """Spans that are children of the caller's, by name."""
    found = (span for span in list(collector.spans) if span.trace_id.hex() == trace)
    return {span.name: span for span in found if span.parent_span_id.hex() == PARENT}


def test_grpc(server: Server, collector: Collector) -> None:
    """Spans of the call, of the append and of the drain; the trace id is stored with the point and in an exemplar."""
    # Enough for some outliers, and for the bulk thread.
    rows = make_probs(800, K, seed=11)
    request = monitor_pb2.ScoreRequest(model="digits", tensor=monitor_pb2.Tensor(shape=rows.shape, data=rows.tobytes()))
    with grpc.insecure_channel(server.grpc_target) as channel:
        metadata = (("traceparent", header_of(TRACES[0])),)
        channel.unary_unary(SCORE)(request.SerializeToString(), metadata=metadata, timeout=60)

    wait_until(lambda: children(collector, TRACES[0]) and collector.named("drain"), what="spans")
    score = children(collector, TRACES[0])["score"]
    attributes = {each.key: each.value for each in score.attributes}
    assert attributes["darksight.rows"].int_value == 800
    assert attributes["darksight.model"].string_value == "digits"
    assert attributes["darksight.recorded"].bool_value
    wait_until(
        lambda: score.span_id in [span.parent_span_id for span in collector.named("spool append")], what="the append"
    )
    assert collector.services == {"monitor"}

    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        wait_until(lambda: any(point.trace_id == TRACES[0] for point in client.points("digits")), what="the points")
    page = server.get("/metrics", accept="application/openmetrics-text; version=1.0.0")[1]
    assert f'trace_id="{TRACES[0]}"' in page


def test_http_and_events(server: Server, collector: Collector) -> None:
    """The header of a call, and the attribute of an event, which names the trace of the prediction."""
    row, header = make_probs(1, K), header_of(TRACES[1])
    tensor = {"name": "probs", "datatype": "FP32", "shape": [1, K], "data": row[0].tolist()}
    url = f"{server.api_url}/v2/models/digits/infer"
    httpx.post(url, json={"inputs": [tensor]}, headers={"traceparent": header}, timeout=60).raise_for_status()
    headers, _ = read_wire("kserve_v1_response", ce_traceparent=header, traceparent=header_of("1" * 32))
    event = httpx.post(
        f"{server.api_url}/v1/models/digits/events", json={"predictions": row.tolist()}, headers=headers, timeout=60
    )

    assert event.status_code == 202
    wait_until(lambda: {"infer", "score"} <= set(children(collector, TRACES[1])), what="spans")


def test_log_lines_have_the_trace(server: Server) -> None:
    """Of a call that failed, over gRPC and HTTP, and of an event that was refused."""
    header = {"traceparent": header_of(TRACES[2])}
    with grpc.insecure_channel(server.grpc_target) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(SCORE)(b"\xff", metadata=tuple(header.items()), timeout=60)
    httpx.post(f"{server.api_url}/v1/models/none/score", json={"rows": [[1.0]]}, headers=header, timeout=60)
    httpx.post(f"{server.api_url}/v1/events", json={}, headers=header, timeout=60)

    def traced(event: str) -> int:
        return sum(line.get("trace_id") == TRACES[2] for line in server.events(event))

    wait_until(lambda: traced("call_refused") >= 2 and traced("event_refused") == 1, what="log lines")
