"""Thresholds of segments in a running service, and its page of segments."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from darksight_client import Client, Policy

from darksight_core.bundle import write_bundle
from darksight_core.gate import Gate, SegmentThresholds
from tests.support.bundles import CERTIFICATE, make_bundle
from tests.support.servers import Server, running_server, wait_until

CLASSES = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service whose model rejects every row of camera 7, with an explorer."""
    folder = tmp_path_factory.mktemp("segment-service")
    table = SegmentThresholds("camera", {"7": 1e6})
    gate = Gate(reject_score="msp", threshold=-1e6, segments=table)
    write_bundle(folder / "digits.safetensors", make_bundle(2_000, CLASSES).with_gate(gate, CERTIFICATE))
    options = ("--workers", "1", "--explorer-port", "0")
    with running_server({"digits": folder / "digits.safetensors"}, folder / "data", *options) as found:
        yield found


def test_a_call_is_decided_by_the_thresholds_of_its_tags_and_named_on_the_page(server: Server) -> None:
    """One row, many rows, rows with their own tags, and rows without; then camera 7 turns bad and the page names it."""
    rng = np.random.default_rng(0)

    def usual(rows: int) -> Any:
        return rng.dirichlet(np.full(CLASSES, 0.4), rows).astype(np.float32)

    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        one = client.score("digits", usual(1), tags={"camera": "7"})
        many = client.score("digits", usual(5), tags={"camera": "8"})
        mixed = client.score("digits", usual(3), tags=[{"camera": "7"}, {}, {"city": "7"}])
        large = client.score("digits", usual(1_500), tags=[{"camera": str(row % 2 + 7)} for row in range(1_500)])
        for _ in range(10):
            camera = rng.integers(7, 17, 200)
            probs = usual(200)
            probs[camera == 7] = rng.dirichlet(np.full(CLASSES, 8.0), int((camera == 7).sum()))
            client.score("digits", probs, tags=[{"camera": str(each)} for each in camera.tolist()])
    wait_until(lambda: "explorer" in server.children(), 120, "the explorer")

    def page() -> dict[str, Any]:
        with urllib.request.urlopen(f"{server.explorer_url}/api/drift/segments?model=digits") as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    wait_until(lambda: page()["explanation"] == ["camera=7"], 60, "the explanation")
    assert "darksight_segment_explains{" not in server.get("/metrics")[1]
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        client.set_policy("digits", Policy(metric_tags=("camera",)), comment="watch cameras")
        kept = client.policy("digits").policy.metric_tags
    wait_until(lambda: server.counted("darksight_segment_explains") == 1.0, 60, "the gauge")
    first = page()["segments"][0]

    assert kept == ("camera",)
    lines = [line for line in server.get("/metrics")[1].splitlines() if line.startswith("darksight_segment_explains{")]
    assert [float(line.rpartition(" ")[2]) for line in lines if 'segment="camera=7"' in line] == [1.0]
    assert not one.accepted.any()
    assert many.accepted.all()
    assert mixed.accepted.tolist() == [False, True, True]
    assert large.accepted.tolist() == [row % 2 == 1 for row in range(1_500)]
    assert (first["key"], first["value"], first["is_changed"], first["accepted"]) == ("camera", "7", True, 0.0)
    assert page()["look"][0]["tags"] == {"camera": "7"}
