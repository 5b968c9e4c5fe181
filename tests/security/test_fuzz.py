"""Hostile calls, manifests and files get an answer or a refusal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from darksight_client import Client

from darksight_core.bundle import write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from tests.bench.load import resident_bytes
from tests.support.builders import make_probs
from tests.support.bundles import CERTIFICATE, make_bundle
from tests.support.fuzz.bodies import Bodies, send_noise
from tests.support.fuzz.calls import INFER, SCORE, admin_seeds, hostile_top_requests, infer_seeds, score_seeds
from tests.support.fuzz.files import hostile_bundles, hostile_predictions, use_bundle, use_predictions
from tests.support.fuzz.mutations import Mutations
from tests.support.servers import Server, running_server, wait_until

CLASSES = 4
LEAST_REST = 100 << 20
WRONG = {"INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
# Rows of the most probable classes; HOSTILE_REQUESTS=100000 for a long run.
TOP_REQUESTS = int(os.environ.get("HOSTILE_REQUESTS", "1500"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a gate and a certificate, in a bundle directory."""
    path = tmp_path_factory.mktemp("bundles") / "m.safetensors"
    made = make_bundle(400, CLASSES, top_k=(2,))
    gate = Gate(outlier=cutoff(len(made.calibration), 0.05), reject_score="msp", threshold=1.0)
    write_bundle(path, made.with_gate(gate, CERTIFICATE))
    return path


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker."""
    options = ("--workers", "1", "--api-port", "0", "--bundle-dir", str(bundle.parent))
    with running_server({"m": bundle}, tmp_path_factory.mktemp("data"), *options, is_compiled=True) as running:
        yield running


def statuses(server: Server, seeds: dict[str, list[bytes]], count: int) -> Counter[str]:
    """How calls made from good ones by changed bytes end, by status."""
    found: Counter[str] = Counter()
    with grpc.insecure_channel(server.grpc_target) as channel:
        for number, (method, requests) in enumerate(seeds.items()):
            call = channel.unary_unary(method)
            for _, request in Mutations(requests, count, seed=number):
                try:
                    call(request, timeout=10.0)
                    found["OK"] += 1
                except grpc.RpcError as error:
                    found[error.code().name] += 1
    return found


def test_hostile_calls_are_answered(server: Server, bundle: Path) -> None:
    """No call ends with an internal error or without an answer, and no process takes twice its memory."""
    with Client(server.grpc_target) as client:
        version = client.model("m").active_version
        client.score("m", make_probs(8, CLASSES))
        wait_until(lambda: server.events("kernel_loaded"), what="the compiled code")
        # A process that still starts would look as if it rested with little.
        rest = {name: max(resident_bytes(pid), LEAST_REST) for name, pid in server.children().items()}
        probs = make_probs(3, CLASSES)

        found = statuses(server, {SCORE: score_seeds("m", probs)}, 1_500)
        found += statuses(server, {INFER: infer_seeds("m", probs)}, 400)
        found += statuses(server, admin_seeds("m", version, bundle.name, hostile=10), 20)

        assert found["OK"] > 100
        assert found["INVALID_ARGUMENT"] > 100
        assert not WRONG & found.keys()
        assert len(client.score("m", probs)) == 3
    assert all(resident_bytes(server.children()[name]) < 2 * size for name, size in rest.items())


def test_hostile_rows_of_the_most_probable_classes_are_answered(server: Server) -> None:
    """Repeated and unknown classes, sums above one, NaN and no class at all: none is an internal error."""
    found: Counter[str] = Counter()
    names = [f"class {number}" for number in range(CLASSES)]
    with grpc.insecure_channel(server.grpc_target) as channel:
        call = channel.unary_unary(SCORE)
        for request in hostile_top_requests("m", names, TOP_REQUESTS, seed=33):
            try:
                call(request, timeout=10.0)
                found["OK"] += 1
            except grpc.RpcError as error:
                found[error.code().name] += 1

    assert found["OK"] > TOP_REQUESTS // 20, found
    assert found["INVALID_ARGUMENT"] > TOP_REQUESTS // 5, found
    assert not WRONG & found.keys(), found
    assert server.events("scoring_failed") == []


def test_hostile_bodies_are_answered(server: Server, bundle: Path) -> None:
    """Random and altered requests on every path of the HTTP API: no status 500, and no worker dies."""
    with Client(server.grpc_target) as client:
        version = client.model("m").active_version
    bodies = Bodies(make_probs(2, CLASSES), seed=7, model="m", version=version, bundle=bundle.name)

    found = send_noise(server.api_url, "", bodies, 1_200)

    assert 500 not in found
    assert found[200] > 50
    assert found[400] > 400
    assert server.events("child_died") == []
    assert server.events("call_failed") == []


def test_hostile_manifests_are_refused_or_work(bundle: Path) -> None:
    """A bundle with valid hashes around any manifest is refused as one, or can be shown and served."""
    data = bundle.read_bytes()

    loaded = [use_bundle(each) for each in hostile_bundles(data, 150, seed=1)]

    assert 0 < sum(loaded) < 150


def test_hostile_predictions_files_are_refused_or_read(tmp_path: Path) -> None:
    """A predictions file of any content is refused with its own error, or read."""
    read = [use_predictions(path) for path in hostile_predictions(tmp_path, 120, seed=1)]

    assert 0 < sum(read) < 120
