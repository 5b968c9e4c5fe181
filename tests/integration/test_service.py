"""The service over a real socket: what each request gets."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from darksight_client import (
    AccuracyReport,
    AsyncClient,
    CertificateVerdict,
    Client,
    Conflict,
    InvalidRequest,
    MessageTooLarge,
    Policy,
    Reason,
    UnknownModel,
)
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from darksight_service.metrics.exposition import render
from darksight_service.settings import Settings
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.guarantees.prediction_sets import PredictionSets
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from tests.support.builders import make_probs
from tests.support.bundles import CERTIFICATE, make_bundle
from tests.support.servers import Server, running_server, wait_until, waiting

K = 5
# Of a model whose rows are long: few of them are more than a message may have.
WIDE = 500
ROW = make_probs(1, K)
# Until a client has found both workers: the kernel misses one 30 times with probability 2^-30.
SEARCH = 32
SCORE = "/darksight.v1.MonitorService/Score"


def gated_bundle(path: Path, *, seed: int = 0, classes: int = K, threshold: float = 1.0) -> Path:
    """A bundle with both rules."""
    bundle = make_bundle(rows=900, classes=classes, seed=seed)
    sets = PredictionSets(0.9, limit=0.9, penalty=0.0, n=50)
    gate = Gate(outlier=cutoff(len(bundle.calibration), 0.05), reject_score="msp", threshold=threshold, sets=sets)
    write_bundle(path, bundle.with_gate(gate, CERTIFICATE))
    return path


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three bundles: two for one model, one of other classes."""
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "first": gated_bundle(folder / "first.safetensors"),
        "second": gated_bundle(folder / "second.safetensors", seed=1, threshold=2.0),
        "other": gated_bundle(folder / "other.safetensors", classes=K + 1),
    }


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of two workers, with a second model."""
    data_dir = tmp_path_factory.mktemp("data")
    options = ("--workers", "2", "--bundle-dir", str(bundles["first"].parent))
    variables = {"DARKSIGHT_REFLECTION": "true"}
    wide = gated_bundle(tmp_path_factory.mktemp("wide") / "wide.safetensors", classes=WIDE)
    models = {"digits": bundles["first"], "wide": wide}
    with running_server(models, data_dir, *options, environment=variables, is_compiled=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of it."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    """A bare channel, for requests that no client would make."""
    with grpc.insecure_channel(server.grpc_target, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def call(channel: grpc.Channel, method: str, data: bytes, **options: object) -> bytes:
    """A call with bytes as they are."""
    answer: bytes = channel.unary_unary(method)(data, timeout=60, **options)
    return answer


def status(channel: grpc.Channel, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    """What a call fails with, and its text."""
    with pytest.raises(grpc.RpcError) as failure:
        call(channel, method, data)
    return failure.value.code(), failure.value.details()


def tensor_request(values: np.ndarray, **fields: object) -> monitor_pb2.ScoreRequest:
    """A request with these values as its tensor."""
    data = np.asarray(values, "<f4")
    return monitor_pb2.ScoreRequest(
        model="digits", tensor=monitor_pb2.Tensor(shape=data.shape, data=data.tobytes()), **fields
    )


@pytest.mark.parametrize("rows", [1, 7, 8, 300, 3000])
def test_the_service_says_what_the_bundle_says(client: Client, bundles: dict[str, Path], rows: int):
    """Decisions and p-values over the wire are those of the core, scores to rounding: one side may still use numpy."""
    bundle = read_bundle(bundles["first"])
    probs = make_probs(rows, K, seed=rows)
    assert bundle.gate is not None
    expected = ScoringPolicy(Scorer.of(bundle), bundle.gate).score(probs)

    scored = client.score("digits", probs)

    assert scored.version == bundle.version
    assert scored.recorded
    np.testing.assert_array_equal(scored.decision, expected.decision)
    np.testing.assert_array_equal(scored.reason, expected.reason)
    np.testing.assert_array_equal(scored.p_value, expected.p_value)
    order = np.argsort(-probs, axis=1, kind="stable").tolist()
    sets = [tuple(row[:size]) for row, size in zip(order, expected.set_size.tolist(), strict=True)]
    assert list(scored.prediction_sets) == [row.prediction_set for row in scored] == sets
    assert [len(each) > 0 for each in sets] == (~expected.accepted).tolist()
    for name in ("log_density", "log_kde", "points"):
        np.testing.assert_allclose(getattr(scored, name), getattr(expected, name), rtol=1e-9, atol=1e-9)


def test_rows_tensors_and_logits_say_the_same(client: Client, channel: grpc.Channel):
    """Three ways to send the same predictions."""
    probs = make_probs(3, K)
    rows = monitor_pb2.Rows(rows=[monitor_pb2.Row(values=row.tolist()) for row in probs])
    by_rows = call(channel, SCORE, monitor_pb2.ScoreRequest(model="digits", rows=rows).SerializeToString())
    by_tensor = client.score("digits", probs)
    by_logits = client.score("digits", np.log(probs) + 3.0, logits=True)

    assert list(monitor_pb2.ScoreResponse.FromString(by_rows).p_value) == by_tensor.p_value.tolist()
    np.testing.assert_allclose(by_logits.log_density, by_tensor.log_density, rtol=1e-4)


def test_an_empty_batch_gets_empty_columns(client: Client, channel: grpc.Channel):
    """It is no error to have nothing to ask."""
    assert len(client.score("digits", np.empty((0, K), dtype=np.float32)).decision) == 0
    empty = monitor_pb2.ScoreRequest(model="digits", rows=monitor_pb2.Rows())
    assert not monitor_pb2.ScoreResponse.FromString(call(channel, SCORE, empty.SerializeToString())).decision


def tensor_bytes(shape: list[int], size: int) -> bytes:
    """A request whose tensor has this shape and so many bytes."""
    request = monitor_pb2.ScoreRequest(model="digits", tensor=monitor_pb2.Tensor(shape=shape, data=b"\0" * size))
    return request.SerializeToString()


def row_bytes(*rows: list[float], **fields: object) -> bytes:
    """A request with these rows in its tensor; by default one that is good."""
    return tensor_request(np.array(rows or [[1 / K] * K]), **fields).SerializeToString()


UNEVEN = monitor_pb2.Rows(rows=[monitor_pb2.Row(values=[0.2] * K), monitor_pb2.Row(values=[1.0])])
EVEN = [1 / K] * K
LONG_AGO = bytes.fromhex("00000000000070008000000000000000")

BAD = {
    "wrong K": (row_bytes([0.25] * 4), "INVALID_ARGUMENT", "5 classes"),
    "wrong byte length": (tensor_bytes([2, K], 41), "INVALID_ARGUMENT", "41 bytes"),
    "shape overflow": (tensor_bytes([2**62, 4], 40), "INVALID_ARGUMENT", "40 bytes"),
    "negative shape": (tensor_bytes([-1, -40], 40), "INVALID_ARGUMENT", "tensor.shape"),
    "no rows of too many classes": (tensor_bytes([0, 2**62], 0), "INVALID_ARGUMENT", "5 classes"),
    "rows of no class": (tensor_bytes([2**62, 0], 0), "INVALID_ARGUMENT", "rows of no classes"),
    "three dimensions": (tensor_bytes([1, 2, K], 40), "INVALID_ARGUMENT", "tensor.shape"),
    "no predictions": (monitor_pb2.ScoreRequest(model="digits").SerializeToString(), "INVALID_ARGUMENT", "neither"),
    "not finite": (row_bytes(EVEN, [np.nan, *EVEN[1:]]), "INVALID_ARGUMENT", "row 1 has nan at class 0"),
    "infinite": (row_bytes([np.inf, 0, 0, 0, 0]), "INVALID_ARGUMENT", "row 0 has inf"),
    "negative": (row_bytes([1.2, -0.2, 0, 0, 0]), "INVALID_ARGUMENT", "negative"),
    "not normalised": (row_bytes([0.5, 0.2, 0, 0, 0]), "INVALID_ARGUMENT", "sum of 0.7"),
    "unknown model": (row_bytes().replace(b"digits", b"nobody"), "NOT_FOUND", "model 'nobody' does not exist"),
    "unknown version": (row_bytes(version="f" * 64), "NOT_FOUND", "no version"),
    "short version": (row_bytes(version="f"), "INVALID_ARGUMENT", "12 digits"),
    "ids twice": (
        row_bytes(EVEN, EVEN, EVEN, prediction_ids=["a", "b", "a"]),
        "INVALID_ARGUMENT",
        r"prediction_ids\[2\]: 'a' is not unique",
    ),
    "too few ids": (row_bytes(EVEN, EVEN, prediction_ids=["a"]), "INVALID_ARGUMENT", "1 ids for 2 rows"),
    "empty id": (row_bytes(prediction_ids=[""]), "INVALID_ARGUMENT", r"prediction_ids\[0\]"),
    "bad batch id": (row_bytes(batch_id=b"x" * 15), "INVALID_ARGUMENT", "15 bytes, and not 16"),
    "two keys": (row_bytes(batch_id=b"x" * 16, idempotency_key="x"), "INVALID_ARGUMENT", "beside an idempotency_key"),
    "long key": (row_bytes(idempotency_key="x" * 65), "INVALID_ARGUMENT", "idempotency_key: must have at most 64"),
    "old batch id": (row_bytes(batch_id=LONG_AGO), "INVALID_ARGUMENT", "seven days"),
    "garbage": (b"\xff\xff\xff\xff garbage", "INVALID_ARGUMENT", "is not a darksight.v1.ScoreRequest"),
    "a row of another length": (
        monitor_pb2.ScoreRequest(model="digits", rows=UNEVEN).SerializeToString(),
        "INVALID_ARGUMENT",
        r"rows\[1\]: has 1 values",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(channel: grpc.Channel, case: str):
    """What is wrong, where it is, and never INTERNAL."""
    data, code, words = BAD[case]

    found, text = status(channel, SCORE, data)

    assert found.name == code
    assert re.search(words, text), text


def test_a_bad_row_can_be_a_result_and_leaves_the_others_alone(client: Client):
    """With partial_ok the batch is answered, and its good rows as if alone."""
    probs = make_probs(4, K)
    bad = probs.copy()
    bad[2] = np.nan

    scored = client.score("digits", bad, partial_ok=True)

    assert scored.reason[2] == Reason.INVALID
    assert not scored.accepted[2]
    assert np.isnan(scored.p_value[2])
    good = [0, 1, 3]
    np.testing.assert_array_equal(scored.p_value[good], client.score("digits", probs[good]).p_value)


def test_a_message_of_100_mb_is_refused_and_so_is_one_that_unpacks_to_it(channel: grpc.Channel, client: Client):
    """The limit is on what arrives and on what it becomes."""
    large = tensor_bytes([5_000_000, K], 100_000_000)

    with pytest.raises(grpc.RpcError) as plain:
        call(channel, SCORE, large)
    with pytest.raises(grpc.RpcError) as packed:
        call(channel, SCORE, large, compression=grpc.Compression.Gzip)

    assert plain.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert packed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(gzip.compress(large)) < 200_000
    assert client.score("digits", make_probs(1, K)).recorded


def test_the_client_splits_what_is_too_large_for_one_message(client: Client):
    """Nobody has to know the limit."""
    probs = np.tile(make_probs(100, WIDE), (25, 1))
    assert probs.nbytes > 1.1 * Settings().max_message_bytes

    scored = client.score("wide", probs, timeout_seconds=120.0)

    assert len(scored.decision) == len(probs)
    np.testing.assert_array_equal(scored.p_value[:100], scored.p_value[-100:])
    with pytest.raises(MessageTooLarge):
        client.score("digits", np.zeros((1, 5_000_000), dtype=np.float32))


def test_compressed_requests_are_accepted(server: Server):
    """gzip, for clients far away."""
    with Client(server.grpc_target, compression="gzip", timeout_seconds=60.0) as client:
        assert client.score("digits", make_probs(50, K)).recorded


def test_a_stream_answers_in_order_and_goes_on_after_a_bad_request(
    server: Server, channel: grpc.Channel, client: Client
):
    """Many batches on one call."""
    batches = [make_probs(n, K, seed=n) for n in (1, 5, 200, 2)]
    expected = [client.score("digits", batch).p_value.tolist() for batch in batches]
    assert [scored.p_value.tolist() for scored in client.stream("digits", batches)] == expected

    requests = [monitor_pb2.ScoreStreamRequest(request=tensor_request(batch)).SerializeToString() for batch in batches]
    requests[1:1] = [
        b"\xff\xff",
        monitor_pb2.ScoreStreamRequest(request=tensor_request([[np.nan] * K])).SerializeToString(),
    ]
    answers = [
        monitor_pb2.ScoreStreamResponse.FromString(data)
        for data in channel.stream_stream("/darksight.v1.MonitorService/ScoreStream")(iter(requests), timeout=60)
    ]

    kinds = [answer.WhichOneof("result") for answer in answers]
    assert kinds == ["response", "error", "error", "response", "response", "response"]
    assert (answers[2].error.code, answers[2].error.field) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "predictions")
    assert [list(answer.response.p_value) for answer in answers if answer.response.p_value] == expected


def test_points_are_in_the_store_soon_and_outcomes_find_them(client: Client):
    """From the call to SQL in about a second, with the caller's name and the right class."""
    name, since = f"order-{uuid.uuid4()}", time.time()
    client.score("digits", make_probs(2, K), prediction_ids=[name, name + "-b"])
    client.report("digits", [name, name + "-b"], [3, "class 4"])

    def labels() -> list[int | None]:
        found = client.points("digits", since=since, page_size=1)
        return [point.label for point in found if point.prediction_id.startswith(name)]

    wait_until(lambda: sorted(label for label in labels() if label is not None) == [3, 4], what="labels in the store")
    point = next(point for point in client.points("digits", since=since) if point.prediction_id == name)
    assert point.decision in (1, 2)
    np.testing.assert_allclose(point.probabilities, make_probs(2, K)[0], atol=1e-3)


def test_the_prediction_set_of_a_point_is_stored(client: Client):
    """As it was in the response, and not if the point was accepted."""
    name, since = f"set-{uuid.uuid4()}", time.time()
    scored = client.score("digits", make_probs(40, K, seed=4), prediction_ids=[f"{name}-{row}" for row in range(40)])

    def stored() -> dict[str, tuple[int, ...]]:
        found = client.points("digits", since=since)
        return {point.prediction_id: point.prediction_set for point in found if point.prediction_id.startswith(name)}

    wait_until(lambda: len(stored()) == 40, what="points in the store")
    assert any(scored.prediction_sets)
    assert {name: set(classes) for name, classes in stored().items()} == {
        row.prediction_id: set(row.prediction_set) for row in scored
    }


def test_the_answer_to_outcomes_has_the_accuracy_of_the_active_version(client: Client):
    """Computed before: without labels of the audit nothing is known about accepted rows."""

    def accuracy() -> AccuracyReport | None:
        return client.report("digits", [f"order-{uuid.uuid4()}"], [3]).accuracy

    wait_until(lambda: accuracy() is not None, what="an accuracy")
    found = accuracy()

    assert found is not None
    assert found.version == client.model("digits").active_version
    assert (found.audited, found.audit_labels) == (None, 0)
    assert found.certificate in (CertificateVerdict.NONE, CertificateVerdict.OPEN)


def test_a_call_that_is_repeated_with_its_batch_id_is_stored_once(
    server: Server, channel: grpc.Channel, client: Client
):
    """So that retries are safe; it was received when it arrived, whatever the caller's clock says."""
    now = time.time()
    batch = bytearray(uuid.uuid4().bytes)
    batch[:6] = int((now - 7200.0) * 1000).to_bytes(6, "big")
    batch[6], batch[8], batch[13], batch[14:] = 0x70, 0x80, 0, b"\0\0"
    name = f"once-{batch.hex()}"
    request = tensor_request(make_probs(1, K), batch_id=bytes(batch), prediction_ids=[name])

    answers = {call(channel, SCORE, request.SerializeToString()) for _ in range(3)}

    assert len(answers) == 1
    wait_until(lambda: not waiting(server.data_dir), what="the spools to be empty")
    found = [point for point in client.points("digits") if point.prediction_id == name]
    assert len(found) == 1
    assert now - 1.0 <= found[0].received_at.timestamp() <= time.time() + 1.0


def test_wrong_outcomes_are_refused_by_row(client: Client):
    """Nothing of such a report is recorded."""
    with pytest.raises(InvalidRequest, match=r"outcomes\[1\].*no class"):
        client.report("digits", ["a", "b"], [0, K])
    with pytest.raises(InvalidRequest, match="no class"):
        client.report("digits", ["a"], ["no such class"])


def test_versions_are_deployed_activated_shadowed_and_rolled_back(client: Client, bundles: dict[str, Path]):
    """The whole life of a version, on both workers."""
    first, second = read_bundle(bundles["first"]).version, read_bundle(bundles["second"]).version
    probs = make_probs(64, K)
    before = client.score("digits", probs)

    model = client.deploy("digits", "second.safetensors", author="me")
    assert (model.active_version, {each.version for each in model.versions}) == (first, {first, second})
    assert client.score("digits", probs, version=second[:12]).version == second
    with pytest.raises(Conflict, match="classes of the bundle"):
        client.deploy("digits", "other.safetensors")

    assert client.shadow("digits", second).shadow_version == second
    wait_until(lambda: all(client.score("digits", probs).version == first for _ in range(4)))
    wait_until(lambda: any(True for _ in client.points("digits", is_shadow=True)), what="points of the shadow")

    assert client.activate("digits", second).active_version == second
    wait_until(lambda: all(client.score("digits", probs).version == second for _ in range(8)))
    model = client.roll_back("digits")
    assert (model.active_version, model.previous_version) == (first, "")
    wait_until(lambda: all(client.score("digits", probs).version == first for _ in range(8)))
    np.testing.assert_array_equal(client.score("digits", probs).decision, before.decision)
    with pytest.raises(Conflict, match="no previous version"):
        client.roll_back("digits")


@pytest.mark.parametrize("path", ["nothing.safetensors", "../secret", "/etc/passwd", "", "broken.safetensors"])
def test_a_bundle_that_cannot_be_trusted_is_refused_and_the_old_one_serves_on(
    client: Client, bundles: dict[str, Path], path: str
):
    """Not there, out of the folder, or damaged."""
    if path == "broken.safetensors":
        data = bytearray(bundles["second"].read_bytes())
        data[-100] ^= 1
        (bundles["second"].parent / path).write_bytes(data)
    before = client.score("digits", make_probs(1, K)).version

    with pytest.raises((InvalidRequest, Conflict, UnknownModel)):
        client.deploy("digits", path, activate=True)

    assert client.score("digits", make_probs(1, K)).version == before


def test_a_policy_overrides_the_gate_and_can_be_tried_first(client: Client):
    """Dry-run on stored points, set, and take back."""
    probs, since = make_probs(400, K, seed=9), time.time()
    wanted = client.score("digits", probs).accepted.mean()
    wait_until(lambda: len(list(client.points("digits", since=since))) >= 400)
    state = client.policy("digits")
    assert state.is_certified
    assert state.reject_score == "msp"

    strict = Policy(alpha=0.0, threshold=0.993)
    dry = client.dry_run_policy("digits", strict)
    assert dry.after.outliers == 0
    assert dry.after.accepted < dry.before.accepted
    assert dry.before.points == dry.after.points >= 400

    changed = client.set_policy("digits", strict, author="me", comment="too many complaints")
    assert not changed.is_certified
    assert changed.policy.log_odds == pytest.approx(np.log(0.993 / 0.007))
    # The outlier rule is gone, and says so; the threshold is higher.
    assert changed.loosened == ("alpha 0.05 -> 0",)
    wait_until(lambda: all(client.score("digits", probs).accepted.mean() < wanted for _ in range(6)))
    assert client.policy("digits").history[0].comment == "too many complaints"
    # Sets are valid for what the gate of the bundle rejects, and it is another gate now.
    assert not any(client.score("digits", probs).prediction_sets)

    looser = client.set_policy("digits", replace(strict, threshold=0.5), author="me").loosened
    assert looser == ("threshold 0.993 -> 0.5",)
    assert client.policy("digits").history[0].loosened == looser
    client.set_policy("digits", Policy(), author="me")
    wait_until(lambda: all(client.score("digits", probs).accepted.mean() == wanted for _ in range(6)))
    # 1.7451 is the log-odds of 0.851, which nobody means by a probability.
    wrong = (Policy(threshold=float("nan")), Policy(threshold=1.7451), Policy(threshold=0.5, log_odds=1.0))
    for policy in (Policy(alpha=1.5), Policy(alpha=1e-9), *wrong):
        with pytest.raises(InvalidRequest, match="policy"):
            client.set_policy("digits", policy)


def test_health_is_told_by_server_and_by_model(channel: grpc.Channel, server: Server):
    """As orchestrators ask, over gRPC and over HTTP."""
    stub = health_pb2_grpc.HealthStub(channel)

    assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    assert stub.Check(health_pb2.HealthCheckRequest(service="digits")).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as unknown:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert server.get("/v2/health/live")[0] == 200
    assert server.get("/v2/health/ready")[0] == 200
    assert server.get("/nothing")[0] == 404


def test_reflection_lists_the_services_where_it_is_set(channel: grpc.Channel):
    """For grpcurl and its like."""
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    found = ProtoReflectionDescriptorDatabase(channel).get_services()

    assert {"darksight.v1.MonitorService", "darksight.v1.AdminService", "inference.GRPCInferenceService"} <= set(found)


def test_the_page_has_the_standard_metrics_of_each_process(server: Server):
    """Told apart by the label `process`."""
    page = server.get("/metrics")[1]

    found = set(re.findall(r'(?m)^process_resident_memory_bytes\{process="([^"]+)"\} ', page))
    assert found == {"supervisor", "worker-0", "worker-1", "storage"}


def test_reflection_v1_describes_every_service_it_lists(channel: grpc.Channel):
    """Newer clients ask for it first; it describes itself, too."""
    from grpc_reflection.v1alpha import reflection_pb2

    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    ask = reflection_pb2.ServerReflectionRequest

    def answers(*requests: Any) -> list[Any]:
        sent = iter([request.SerializeToString() for request in requests])
        found = channel.stream_stream(path)(sent, timeout=60)
        return [reflection_pb2.ServerReflectionResponse.FromString(each) for each in found]

    (listed,) = answers(ask(list_services=""))
    names = [service.name for service in listed.list_services_response.service]
    described = answers(*(ask(file_containing_symbol=name) for name in names))

    assert {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} <= set(names)
    assert all(each.HasField("file_descriptor_response") for each in described)


def test_every_method_of_the_protos_is_served(channel: grpc.Channel):
    """A method without a handler would be UNIMPLEMENTED; ours refuse an unreadable message instead."""
    for file in (monitor_pb2, admin_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                if method.client_streaming:
                    assert list(channel.stream_stream(path)(iter([]), timeout=60)) == []
                else:
                    assert status(channel, path, b"\xff")[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel):
    """And not a hang or an error of ours."""
    assert status(channel, "/darksight.v1.MonitorService/Erase", b"")[0] is grpc.StatusCode.UNIMPLEMENTED


def test_callers_that_send_no_message_hold_no_thread(channel: grpc.Channel):
    """More of them than a worker has threads; one that ends without a message is told so."""
    is_over = threading.Event()

    def nothing() -> Iterator[bytes]:
        is_over.wait(60)
        yield from ()

    score = channel.stream_unary("/darksight.v1.MonitorService/Score")
    silent = [score.future(nothing(), timeout=60) for _ in range(12)]
    try:
        data = tensor_request(make_probs(1, K)).SerializeToString()
        assert call(channel, "/darksight.v1.MonitorService/Score", data)
        assert not any(each.done() for each in silent)
    finally:
        is_over.set()
    assert {each.code() for each in silent} == {grpc.StatusCode.UNIMPLEMENTED}


def test_metrics_of_all_workers_are_one_page(server: Server, client: Client):
    """Counts add up over workers."""
    before = server.counted("darksight_decisions_total")
    for target in range(6):
        with Client(server.grpc_target, timeout_seconds=60.0) as another:
            another.score("digits", make_probs(10, K, seed=target))

    assert server.counted("darksight_decisions_total") == before + 60


def test_metrics_name_a_recent_outlier(server: Server, client: Client):
    """An alarm about outliers leads to one of them, by the name that its caller gave it."""
    probs = make_probs(300, K, seed=11)
    row = int(np.flatnonzero(client.score("digits", probs).reason == Reason.OUTLIER)[0])
    name = f"order-{uuid.uuid4()}"

    def shown() -> tuple[list[float], list[float]]:
        # Of the many in a second one is shown, so that this one may need to come again.
        scored = client.score("digits", probs[[row]], prediction_ids=[name])
        page = server.get("/metrics", "application/openmetrics-text; version=1.0.0")[1]
        (family,) = (each for each in text_string_to_metric_families(page) if each.name == "darksight_decisions")
        found = [each for each in family.samples if each.exemplar]
        assert {each.labels["reason"] for each in found} == {"outlier"}
        named = [each.exemplar.value for each in found if each.exemplar.labels == {"prediction_id": name}]
        return named, scored.p_value.tolist()

    wait_until(lambda: shown()[0], what="the exemplar")
    named, expected = shown()
    assert named == expected


def test_logs_have_no_probabilities_and_one_json_object_per_line(server: Server):
    """What is said about a prediction stays between caller and store."""
    assert server.events("child_ready")
    # A time such as 05:23:40.217 has those digits, too.
    assert not any("0.2" in re.sub(r'"time": "[^"]+"', "", line) for line in server.lines)


messages = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda model, shape, data, ids, partial, logits, version: monitor_pb2.ScoreRequest(
            model=model,
            version=version,
            tensor=monitor_pb2.Tensor(shape=shape, data=data),
            prediction_ids=ids,
            partial_ok=partial,
            is_logits=logits,
        ).SerializeToString(),
        st.sampled_from(["digits", "", "x"]),
        st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([1, 2, K]), max_size=3),
        st.binary(max_size=100)
        | st.lists(st.floats(width=32), max_size=2 * K).map(lambda x: np.array(x, "<f4").tobytes()),
        st.lists(st.text(max_size=5), max_size=3),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "f" * 12, "x"]),
    ),
    st.lists(st.lists(st.floats(width=32), min_size=K, max_size=K), min_size=1, max_size=4).map(
        lambda rows: tensor_request(np.array(rows), partial_ok=True).SerializeToString()
    ),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=messages)
def test_no_request_whatever_is_an_internal_error(channel: grpc.Channel, data: bytes):
    """A result without NaN in an accepted row, or a status that names the caller's mistake."""
    code, response = outcome(channel, data)

    assert code in ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
    valid = [reason != monitor_pb2.REASON_INVALID for reason in response.reason]
    assert np.isfinite(np.array(response.p_value)[valid]).all()
    assert np.isfinite(np.array(response.log_density)[valid]).all()


def outcome(channel: grpc.Channel, data: bytes) -> tuple[str, monitor_pb2.ScoreResponse]:
    """Name of the status of a Score call, and its response or an empty one."""
    try:
        return "OK", monitor_pb2.ScoreResponse.FromString(call(channel, SCORE, data))
    except grpc.RpcError as error:
        return error.code().name, monitor_pb2.ScoreResponse()


def calls_by_worker(server: Server) -> list[int]:
    """Calls that each worker has counted."""
    found = []
    for number in range(2):
        with tempfile.TemporaryDirectory() as folder:
            for path in (server.data_dir / "counts").glob(f"process-{number}.*"):
                shutil.copy(path, folder)
            lines = render(Path(folder))[0].decode().splitlines()
        found += [int(float(line.split()[-1])) for line in lines if line.startswith("darksight_calls_total ")]
    return found


def new_calls(server: Server, before: list[int]) -> list[int]:
    """Calls of each worker since then."""
    return [now - then for now, then in zip(calls_by_worker(server), before, strict=True)]


def test_calls_are_spread_over_all_workers(server: Server) -> None:
    """Evenly, once both are found."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        for _ in range(SEARCH):
            client.score("digits", ROW)
        before = calls_by_worker(server)
        for _ in range(40):
            client.score("digits", ROW)

        assert new_calls(server, before) == [20, 20]


def test_the_asynchronous_client_does_the_same(server: Server) -> None:
    """One after the other, and at the same time."""

    async def use() -> list[int]:
        async with AsyncClient(server.grpc_target, timeout_seconds=60.0) as client:
            for _ in range(SEARCH):
                await client.score("digits", ROW)
            before = calls_by_worker(server)
            await asyncio.gather(*(client.score("digits", ROW) for _ in range(40)))
            return new_calls(server, before)

    assert asyncio.run(use()) == [20, 20]


def test_streams_are_spread_too(server: Server) -> None:
    """A stream stays on one connection; open streams count as calls in flight."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        for _ in range(SEARCH):
            list(client.stream("digits", [ROW]))
        before = calls_by_worker(server)
        streams = [client.stream("digits", [ROW] * 3) for _ in range(8)]
        for stream in streams:
            next(stream)

        assert new_calls(server, before) == [4, 4]
        assert [len(list(stream)) for stream in streams] == [2] * 8


def test_one_connection_uses_one_worker(server: Server) -> None:
    """A caller may ask for that."""
    with Client(server.grpc_target, timeout_seconds=60.0, max_connections=1) as client:
        before = calls_by_worker(server)
        for _ in range(20):
            client.score("digits", ROW)

        assert sorted(new_calls(server, before)) == [0, 20]


def test_a_worker_that_was_killed_gets_calls_again(server: Server) -> None:
    """No call fails meanwhile."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        for _ in range(SEARCH):
            client.score("digits", ROW)
        killed = server.children()["worker-1"]
        os.kill(killed, signal.SIGKILL)
        for _ in range(SEARCH):
            client.score("digits", ROW)
        wait_until(lambda: server.children()["worker-1"] != killed, what="a new worker")

        def has_both() -> bool:
            before = calls_by_worker(server)
            for _ in range(10):
                client.score("digits", ROW)
            return new_calls(server, before) == [5, 5]

        wait_until(has_both, what="calls at both workers")
