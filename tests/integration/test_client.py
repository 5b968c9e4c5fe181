"""The client against real gRPC servers, which answer what a test wants."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from darksight_client import (
    AsyncClient,
    Batcher,
    Cancelled,
    Client,
    DarkSightClientError,
    DeadlineExceeded,
    Decision,
    InvalidRequest,
    MessageTooLarge,
    Overloaded,
    Policy,
    Reason,
    ServerError,
    Unauthenticated,
    Unavailable,
    UnknownModel,
    Unsupported,
)
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from tests.support.tools import find_tool

VERSION = "5" * 64


class Fake:
    """A server that remembers what it was asked; a row is accepted if its first value is at least one half.

    Parameters
    ----------
    version
        What it says it scored with.
    """

    def __init__(self, version: str = VERSION) -> None:
        self.version = version
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.before: Callable[[Any, grpc.ServicerContext], None] = lambda request, context: None

    def score(self, request: monitor_pb2.ScoreRequest, context: grpc.ServicerContext) -> monitor_pb2.ScoreResponse:
        """Score."""
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.before(request, context)
        values = np.frombuffer(request.tensor.data, "<f4").reshape(tuple(request.tensor.shape))
        bad = ~np.isfinite(values).all(axis=1) if len(values) else np.zeros(0, bool)
        if bad.any() and not request.partial_ok:
            refuse_row(context, int(bad.argmax()))
        if len(set(request.prediction_ids)) != len(request.prediction_ids):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an id is there twice")
        if values.shape[1:] == (3,):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no model with 3 classes")
        good = (values[:, 0] >= 0.5) if len(values) else np.zeros(0, bool)
        return monitor_pb2.ScoreResponse(
            model=request.model,
            version=self.version,
            batch_id=request.batch_id,
            decision=np.where(good, 1, 2),
            reason=np.where(bad, 5, np.where(good, 1, 2)),
            p_value=np.nan_to_num(values[:, 0]) if len(values) else [],
            log_density=np.zeros(len(values)),
            log_kde=np.ones(len(values)),
            points=np.arange(2.0 * len(values)),
            recorded=True,
        )

    def score_stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """ScoreStream."""
        for request in requests:
            if request.request.model == "unknown":
                error = monitor_pb2.StreamError(code=5, message="no such model")
                yield monitor_pb2.ScoreStreamResponse(error=error)
            else:
                yield monitor_pb2.ScoreStreamResponse(response=self.score(request.request, context))

    def report(self, request: Any, context: grpc.ServicerContext) -> Any:
        """ReportOutcomes."""
        self.requests.append(request)
        return monitor_pb2.ReportOutcomesResponse(recorded=len(request.outcomes))

    def list_points(self, request: Any, context: grpc.ServicerContext) -> Any:
        """ListPoints: 5 points, in pages of 2."""
        self.requests.append(request)
        start = int(request.page_token or 0)
        points = [monitor_pb2.Point(id=str(number)) for number in range(start, min(start + 2, 5))]
        return monitor_pb2.ListPointsResponse(points=points, next_page_token=str(start + 2) if start + 2 < 5 else "")


def refuse_row(context: grpc.ServicerContext, row: int) -> None:
    """The way DarkSight refuses a row."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=f"predictions[{row}]")
    refuse(
        context, grpc.StatusCode.INVALID_ARGUMENT, "bad row", error_details_pb2.BadRequest(field_violations=[violation])
    )


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str, *details: Any) -> None:
    """Ends a call with details."""
    status = status_pb2.Status(code=code.value[0], message=text)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, text)


def write(message: Any) -> bytes:
    """The bytes of a message of any kind."""
    data: bytes = message.SerializeToString()
    return data


def unary(behaviour: Callable[..., Any], request: Any) -> grpc.RpcMethodHandler:
    """A handler for one message each way."""
    return grpc.unary_unary_rpc_method_handler(
        behaviour, request.FromString, lambda message: message.SerializeToString()
    )


def start(
    fake: Fake, *, port: int = 0, more: dict[str, dict[str, Any]] | None = None, credentials: Any = None
) -> tuple[grpc.Server, int]:
    """A server for a Fake, with other services too if there are more, and TLS if there are credentials."""
    stream = grpc.stream_stream_rpc_method_handler(fake.score_stream, monitor_pb2.ScoreStreamRequest.FromString, write)
    monitor = {
        "Score": unary(fake.score, monitor_pb2.ScoreRequest),
        "ScoreStream": stream,
        "ReportOutcomes": unary(fake.report, monitor_pb2.ReportOutcomesRequest),
        "ListPoints": unary(fake.list_points, monitor_pb2.ListPointsRequest),
    }
    server = grpc.server(futures.ThreadPoolExecutor(8))
    for service, methods in {"darksight.v1.MonitorService": monitor, **(more or {})}.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    address = f"127.0.0.1:{port}"
    bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    return server, bound


@contextmanager
def serving(fake: Fake, **options: Any) -> Iterator[str]:
    """Address of a server for a Fake."""
    server, port = start(fake, **options)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.fixture
def fake() -> Fake:
    """A server's mind."""
    return Fake()


@pytest.fixture
def address(fake: Fake) -> Iterator[str]:
    """Where it is."""
    with serving(fake) as target:
        yield target


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """A client of it."""
    with Client(address, timeout_seconds=30.0, gate_timeout_seconds=30.0) as client:
        yield client


@contextmanager
def dead_address() -> Iterator[str]:
    """An address that refuses connections for as long as the block lasts: bound, but nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_columns_for_a_batch(client: Client, fake: Fake) -> None:
    """Arrays in, arrays out; the request is what the proto says."""
    event = datetime(2026, 1, 1, tzinfo=UTC)

    scored = client.score(
        "digits", [[0.75, 0.25], [0.25, 0.75]], prediction_ids=["a", "b"], event_time=event, version="5" * 12
    )

    assert scored.accepted.tolist() == [True, False]
    assert scored.decision.dtype == scored.reason.dtype == np.int8
    assert scored.p_value.tolist() == [0.75, 0.25]
    assert scored.points.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert (scored.model, scored.version, scored.prediction_ids) == ("digits", VERSION, ("a", "b"))
    assert scored.recorded
    request = fake.requests[0]
    assert (request.model, request.version, list(request.prediction_ids)) == ("digits", "5" * 12, ["a", "b"])
    assert request.event_time.ToDatetime(UTC) == event
    assert scored.batch_id.bytes == request.batch_id


def test_an_empty_batch(client: Client) -> None:
    """Has empty columns."""
    scored = client.score("digits", np.empty((0, 10)))

    assert len(scored) == 0
    assert scored.points.shape == (0, 2)


def test_a_gate_for_one_row(client: Client) -> None:
    """A bad row is a result, and not accepted."""
    good, bad = client.gate("digits", [0.75, 0.25], prediction_id="a"), client.gate("digits", [np.nan, 0.5])

    assert (good.accepted, good.decision, good.reason, good.prediction_id) == (True, Decision.ACCEPT, Reason.NONE, "a")
    assert (bad.accepted, bad.reason) == (False, Reason.INVALID)
    with pytest.raises(InvalidRequest, match="one"):
        client.gate("digits", [[0.5, 0.5], [0.5, 0.5]])


def test_a_large_batch_goes_in_parts(address: str, fake: Fake) -> None:
    """All rows in order, all from the version that answered first, each part stored under an id of its own."""
    values = np.linspace(0.0, 1.0, 2000).reshape(1000, 2)
    with Client(address, max_message_bytes=5000) as client:
        scored = client.score("digits", values)

    assert len(fake.requests) == len(scored.batches) > 10
    assert scored.p_value.tolist() == values[:, 0].astype(np.float32).tolist()
    assert [request.version for request in fake.requests] == ["", *[VERSION] * (len(fake.requests) - 1)]
    assert len(set(scored.prediction_ids)) == 1000


def test_a_bad_row_in_a_later_part_is_named_by_its_place_in_the_batch(address: str) -> None:
    """And not in the part."""
    values = np.full((1000, 2), 0.5)
    values[777, 1] = np.nan
    with Client(address, max_message_bytes=5000) as client, pytest.raises(InvalidRequest) as caught:
        client.score("digits", values)

    assert caught.value.row == 777


def test_bad_rows_are_named(client: Client) -> None:
    """Row and field."""
    with pytest.raises(InvalidRequest, match="bad row") as caught:
        client.score("digits", [[0.5, 0.5], [np.nan, 0.5]])

    assert (caught.value.row, caught.value.field, caught.value.code) == (1, "predictions[1]", "invalid_request")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, UnknownModel),
        (grpc.StatusCode.UNAUTHENTICATED, Unauthenticated),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.CANCELLED, Cancelled),
    ],
)
def test_statuses_are_typed_and_not_retried(
    client: Client, fake: Fake, status: grpc.StatusCode, kind: type[DarkSightClientError]
) -> None:
    """One call, one error."""
    fake.before = lambda request, context: context.abort(status, "no")

    with pytest.raises(kind):
        client.score("digits", [0.5, 0.5])

    assert len(fake.requests) == 1


def test_an_overloaded_server_is_asked_again_when_it_says(client: Client, fake: Fake) -> None:
    """Not before its retry delay has passed, and with the same batch id."""
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=200_000_000))
    times: list[float] = []

    def first_two(request: Any, context: grpc.ServicerContext) -> None:
        times.append(time.monotonic())
        if len(times) <= 2:
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", delay)

    fake.before = first_two

    client.score("digits", [0.5, 0.5])

    assert [later - earlier >= 0.2 for earlier, later in itertools.pairwise(times)] == [True, True]
    assert len({request.batch_id for request in fake.requests}) == 1


def test_an_overloaded_server_that_says_no_time_is_not_asked_again(client: Client, fake: Fake) -> None:
    """A delay after the deadline, or none at all, ends the call."""
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=60))
    for details in [(), (delay,)]:
        fake.requests.clear()
        fake.before = partial(_overloaded, details)

        with pytest.raises(Overloaded) as caught:
            client.score("digits", [0.5, 0.5])

        assert caught.value.retry_after_seconds == (60.0 if details else None)
        assert len(fake.requests) == 1


def _overloaded(details: tuple[Any, ...], request: Any, context: grpc.ServicerContext) -> None:
    refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", *details)


def test_a_server_without_the_call(client: Client) -> None:
    """Is told apart."""
    with pytest.raises(Unsupported):
        client.models()


def test_an_answer_for_another_number_of_rows_is_an_error(client: Client, fake: Fake) -> None:
    """Never a wrong column."""

    def shorten(request: Any, context: grpc.ServicerContext) -> None:
        request.tensor.shape[:] = [1, 2]
        request.tensor.data = request.tensor.data[:8]

    fake.before = shorten

    with pytest.raises(ServerError, match="rows"):
        client.score("digits", [[0.5, 0.5], [0.5, 0.5]])


def test_a_message_too_large_for_the_server(fake: Fake) -> None:
    """A client that thinks the limit is higher learns which one to set."""
    with serving(fake) as target, Client(target, max_message_bytes=64 << 20) as client, pytest.raises(MessageTooLarge):
        client.score("digits", np.zeros((1 << 20, 2)))


def test_the_deadline_holds(client: Client, fake: Fake) -> None:
    """A server that hangs does not hold the caller."""
    release = threading.Event()
    fake.before = lambda request, context: release.wait(60.0) and None

    with pytest.raises(DeadlineExceeded):
        client.score("digits", [0.5, 0.5], timeout_seconds=0.2)

    release.set()


def test_a_retry_keeps_the_batch_id(client: Client, fake: Fake) -> None:
    """So that the server stores the batch once, whether or not it had it already."""
    calls = itertools.count()
    fake.before = lambda request, context: (
        context.abort(grpc.StatusCode.UNAVAILABLE, "later") if next(calls) < 2 else None
    )

    client.score("digits", [0.5, 0.5])

    assert len(fake.requests) == 3
    assert len({request.batch_id for request in fake.requests}) == 1


def test_no_server_at_all() -> None:
    """Fails after the retries, as Unavailable."""
    with dead_address() as target, Client(target, timeout_seconds=0.5) as client, pytest.raises(Unavailable):
        client.score("digits", [0.5, 0.5])


def test_replicas_share_the_calls() -> None:
    """Two servers, half each."""
    first, second = Fake(), Fake()
    with serving(first) as one, serving(second) as two, Client([one, two], gate_timeout_seconds=30.0) as client:
        for _ in range(10):
            client.gate("digits", [0.5, 0.5])

    assert len(first.requests) == len(second.requests) == 5


def test_a_dead_replica_costs_no_call(address: str, fake: Fake) -> None:
    """The other one answers."""
    with dead_address() as target, Client([target, address], gate_timeout_seconds=30.0) as client:
        for _ in range(20):
            client.gate("digits", [0.5, 0.5])

    assert len(fake.requests) == 20


def test_restarts_of_a_replica_fail_no_call() -> None:
    """One of two servers goes away and comes back, again and again, while threads call: every call is answered."""
    fakes = Fake(), Fake()
    (steady, one), (server, two) = start(fakes[0]), start(fakes[1])
    is_over = threading.Event()
    failures: list[Exception] = []
    answered = [0] * 3
    with Client([f"127.0.0.1:{one}", f"127.0.0.1:{two}"], timeout_seconds=60.0, gate_timeout_seconds=60.0) as client:

        def call(number: int) -> None:
            while not is_over.is_set():
                try:
                    client.gate("digits", [0.5, 0.5])
                    answered[number] += 1
                except Exception as error:
                    failures.append(error)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            before = len(fakes[1].requests)
            while len(fakes[1].requests) < before + 5 and not failures:
                time.sleep(0.01)
            server.stop(10.0).wait()
            server, _ = start(fakes[1], port=two)
        is_over.set()
        for thread in threads:
            thread.join()
    server.stop(0).wait()
    steady.stop(0).wait()

    assert failures == []
    assert min(answered) > 0


def test_token_and_compression(address: str, fake: Fake) -> None:
    """Travel with the call."""
    with Client(address, token="secret", compression="gzip", gate_timeout_seconds=30.0) as client:
        client.gate("digits", [0.5, 0.5])

    assert fake.metadata[0]["authorization"] == "Bearer secret"


def openssl(folder: Path, *arguments: str) -> None:
    """Runs openssl in a folder."""
    subprocess.run([find_tool("openssl"), *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca.pem) and certificates of a server named "darksight" and of a client."""
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(folder, *new, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("darksight", "client"):
        own = ("-CA", "ca.pem", "-CAkey", "ca.key", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
        openssl(folder, *new, *own, "-keyout", f"{name}.key", "-out", f"{name}.pem")
    return folder


def test_mutual_tls(certificates: Path, fake: Fake) -> None:
    """Both sides show a certificate; without one, or with a server of another name, there is no call."""
    pair = (certificates / "darksight.key").read_bytes(), (certificates / "darksight.pem").read_bytes()
    authority = (certificates / "ca.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([pair], authority, require_client_auth=True)
    trusted = {"tls_ca": certificates / "ca.pem", "server_name": "darksight", "timeout_seconds": 30.0}
    own = {"tls_cert": certificates / "client.pem", "tls_key": certificates / "client.key"}

    with serving(fake, credentials=credentials) as target:
        with Client(target, gate_timeout_seconds=30.0, **trusted, **own) as client:  # type: ignore[arg-type]  # two kinds of values
            assert client.gate("digits", [0.75, 0.25]).accepted
        for options in (trusted, {**trusted, **own, "server_name": "other"}, {"timeout_seconds": 30.0}):
            with Client(target, retries=0, **options) as client, pytest.raises(Unavailable):  # type: ignore[arg-type]
                client.gate("digits", [0.75, 0.25])

    assert len(fake.requests) == 1


def test_threads_share_a_client(client: Client) -> None:
    """Each gets the answer to its own question."""

    def ask(number: int) -> float:
        return float(client.gate("digits", [number / 64, 1 - number / 64]).p_value)

    with futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(64))) == [number / 64 for number in range(64)]


def test_a_stream_answers_in_order(client: Client) -> None:
    """Many batches of different sizes on one call."""
    sizes = [1 + number % 7 for number in range(200)]

    results = list(client.stream("digits", (np.full((size, 2), size / 8) for size in sizes)))

    assert [len(scored) for scored in results] == sizes
    assert [float(scored.p_value[0]) for scored in results] == [size / 8 for size in sizes]


def test_a_stream_answers_before_the_next_batch_exists(client: Client) -> None:
    """The caller may make a batch from the answer to the one before."""
    seen: list[float] = []
    answered = threading.Semaphore(1)

    def batches() -> Iterator[list[float]]:
        for _ in range(5):
            assert answered.acquire(timeout=60.0)
            yield [len(seen) / 8, 0.0]

    for scored in client.stream("digits", batches()):
        seen.append(float(scored.p_value[0]))
        answered.release()

    assert seen == [0.0, 0.125, 0.25, 0.375, 0.5]


def test_a_stream_takes_no_more_than_it_may_have_under_way(client: Client, fake: Fake) -> None:
    """An endless source does not fill memory."""
    taken = itertools.count()
    release = threading.Event()
    fake.before = lambda request, context: release.wait(60.0) and None

    def batches() -> Iterator[list[float]]:
        while True:
            next(taken)
            yield [0.5, 0.5]

    stream = client.stream("digits", batches(), max_in_flight=4)
    release.set()
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # it is a generator

    assert next(taken) < 30


def test_a_stream_goes_on_at_the_next_replica() -> None:
    """What was not answered is sent again under the same id; nothing is lost, doubled or out of order."""
    first, second = Fake(), Fake()
    calls = itertools.count()
    first.before = lambda request, context: (
        context.abort(grpc.StatusCode.UNAVAILABLE, "bye") if next(calls) == 20 else None
    )
    with (
        serving(first) as one,
        serving(second) as two,
        Client([one, two], timeout_seconds=30.0, gate_timeout_seconds=30.0) as client,
    ):
        results = [
            float(scored.p_value[0])
            for scored in itertools.chain.from_iterable(
                client.stream("digits", ([number / 64, 0.0] for number in range(64))) for _ in range(2)
            )
        ]

    assert results == [number / 64 for number in range(64)] * 2
    last = first.requests[20]
    assert last.batch_id in {request.batch_id for request in second.requests}


def test_errors_of_a_stream(client: Client) -> None:
    """Of a request, of the source, and a batch too large: each is raised where answers are read."""

    def broken() -> Iterator[list[float]]:
        yield [0.5, 0.5]
        raise KeyError("mine")

    stream = client.stream("digits", broken())
    assert len(next(stream)) == 1
    with pytest.raises(KeyError, match="mine"):
        next(stream)
    with pytest.raises(UnknownModel):
        list(client.stream("unknown", [[0.5, 0.5]]))
    with pytest.raises(MessageTooLarge, match="rows"):
        list(client.stream("digits", [np.zeros((1 << 20, 2))]))
    assert list(client.stream("digits", [])) == []


def test_outcomes(client: Client, fake: Fake) -> None:
    """By number and by name."""
    assert client.report("digits", ["a", "b"], [3, "seven"], observed_at=1.5).recorded == 2

    outcomes = fake.requests[0].outcomes
    assert [(each.prediction_id, each.WhichOneof("truth")) for each in outcomes] == [
        ("a", "label"),
        ("b", "label_name"),
    ]


def test_points_come_from_all_pages(client: Client, fake: Fake) -> None:
    """One after the other, as they are needed."""
    since = datetime(2026, 1, 1, tzinfo=UTC)

    points = list(client.points("digits", since=since, decisions=[Decision.REJECT], reasons=[Reason.OUTLIER]))

    assert [point.id for point in points] == ["0", "1", "2", "3", "4"]
    assert points[0].label is None
    assert [request.page_token for request in fake.requests] == ["", "2", "4"]
    assert list(fake.requests[0].decisions) == [2]
    assert list(fake.requests[0].reasons) == [2]


def test_health(fake: Fake) -> None:
    """Per model."""

    def check(request: Any, context: grpc.ServicerContext) -> Any:
        if request.service == "unknown":
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown")
        return health_pb2.HealthCheckResponse(status=1 if request.service == "digits" else 2)

    methods = {"grpc.health.v1.Health": {"Check": unary(check, health_pb2.HealthCheckRequest)}}
    with serving(fake, more=methods) as target, Client(target) as client:
        assert client.health("digits")
        assert not client.health()
        with pytest.raises(UnknownModel):
            client.health("unknown")


TRIANGLE = ((0.0, 0.0), (1.0, 0.0), (0.5, 2.5))


class Admin:
    """An AdminService that remembers its requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        stamp = Timestamp(seconds=1_700_000_000)
        version = admin_pb2.Version(version=VERSION, path="d.safetensors", class_names=["a", "b"], deployed_at=stamp)
        self.model = admin_pb2.Model(name="digits", active_version=VERSION, versions=[version])
        self.policy = admin_pb2.Policy(alpha=0.01)
        corners = [admin_pb2.Corner(x=x, y=y) for x, y in TRIANGLE]
        self.region = admin_pb2.Region(name="gap", version=VERSION, polygon=corners, mode=2, expires_at=stamp)

    def answer(self, response: Any) -> Callable[..., Any]:
        """A handler with one answer."""

        def behaviour(request: Any, context: grpc.ServicerContext) -> Any:
            self.requests.append(request)
            return response

        return behaviour

    def methods(self) -> dict[str, Any]:
        """All of the service."""
        change = admin_pb2.PolicyChange(author="me", policy=self.policy, changed_at=Timestamp(seconds=1))
        counts = admin_pb2.DecisionCounts(points=10, accepted=7, rejected_correct=1)
        answers = {
            "ListModels": admin_pb2.ListModelsResponse(models=[self.model]),
            "GetModel": admin_pb2.GetModelResponse(model=self.model),
            "DeployBundle": admin_pb2.DeployBundleResponse(model=self.model, version=VERSION),
            "ActivateVersion": admin_pb2.ActivateVersionResponse(model=self.model),
            "RollBack": admin_pb2.RollBackResponse(model=self.model),
            "SetShadow": admin_pb2.SetShadowResponse(model=self.model),
            "GetPolicy": admin_pb2.GetPolicyResponse(policy=self.policy, reject_score="msp", history=[change]),
            "SetPolicy": admin_pb2.SetPolicyResponse(effective=self.policy, is_certified=True),
            "DryRunPolicy": admin_pb2.DryRunPolicyResponse(before=counts),
            "ResetEvidence": admin_pb2.ResetEvidenceResponse(version=VERSION),
            "ListRegions": admin_pb2.ListRegionsResponse(
                regions=[self.region], history=[admin_pb2.RegionChange(action="save", author="ann")]
            ),
            "PreviewRegion": admin_pb2.PreviewRegionResponse(
                inside=4,
                inside_accepted=3,
                accepted=6,
                accuracy=admin_pb2.Accuracy(rows=4, correct=1, low=0.1, high=0.7),
                examples=[admin_pb2.RegionExample(prediction_id="a", probabilities=[0.25, 0.75])],
            ),
            "SaveRegion": admin_pb2.SaveRegionResponse(region=self.region),
            "SetRegionMode": admin_pb2.SetRegionModeResponse(region=self.region),
            "RemoveRegion": admin_pb2.RemoveRegionResponse(region=self.region),
            "CarryOverRegion": admin_pb2.CarryOverRegionResponse(region=self.region, rows_inside=8, is_saved=True),
        }
        service = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
        assert set(answers) == {method.name for method in service.methods}
        return {name: unary(self.answer(each), getattr(admin_pb2, name + "Request")) for name, each in answers.items()}


def test_administration(fake: Fake) -> None:
    """Every call of an operator, as a dataclass."""
    admin = Admin()
    with serving(fake, more={"darksight.v1.AdminService": admin.methods()}) as target, Client(target) as client:
        (model,) = client.models()
        assert client.model("digits") == model
        assert client.deploy("digits", "d.safetensors", activate=True, author="me") == model
        assert client.activate("digits", VERSION) == model
        assert client.roll_back("digits") == model
        assert client.shadow("digits", VERSION) == model
        policy = client.policy("digits")
        effective = client.set_policy("digits", Policy(threshold=0.5, fail_open=False), comment="try")
        dry = client.dry_run_policy("digits", Policy(alpha=0.05), since=1.0)
        assert client.reset_evidence("digits", author="me", comment="mended") == VERSION

    assert (model.name, model.active_version, model.versions[0].class_names) == ("digits", VERSION, ("a", "b"))
    assert model.versions[0].deployed_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (policy.policy, policy.effective, policy.history[0].author) == (Policy(alpha=0.01), Policy(), "me")
    assert (effective.policy, effective.is_certified) == (Policy(alpha=0.01), True)
    assert (dry.before.points, dry.before.accepted, dry.after.points) == (10, 7, 0)
    deployed, changed = admin.requests[2], admin.requests[7]
    assert (deployed.path, deployed.activate, deployed.author) == ("d.safetensors", True, "me")
    assert (changed.policy.HasField("alpha"), changed.policy.threshold, changed.comment) == (False, 0.5, "try")
    assert changed.policy.HasField("fail_open")


def test_regions(fake: Fake) -> None:
    """Every call of an analyst, as a dataclass."""
    admin = Admin()
    with serving(fake, more={"darksight.v1.AdminService": admin.methods()}) as target, Client(target) as client:
        (region,) = client.regions("digits")
        (change,) = client.region_history("digits")
        preview = client.preview_region("digits", polygon=TRIANGLE, since=1.0)
        assert client.save_region("digits", "gap", TRIANGLE, expires_at=1_700_000_000.0, author="ann") == region
        assert client.enforce_region("digits", "gap") == region
        assert client.shadow_region("digits", "gap") == region
        assert client.remove_region("digits", "gap", comment="healed") == region
        carried = client.carry_over_region("digits", "gap", VERSION, save=True)
        with pytest.raises(InvalidRequest, match="corners"):
            client.preview_region("digits", polygon=[(1.0, 2.0, 3.0)])

    assert (region.name, region.polygon, region.is_enforced, region.saved_at) == ("gap", TRIANGLE, True, None)
    assert region.expires_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (change.action, change.author) == ("save", "ann")
    assert (preview.accuracy.value, preview.new_accuracy.value, preview.accepted_share) == (0.25, None, 0.5)
    assert (preview.examples[0].label, preview.examples[0].probabilities) == (None, (0.25, 0.75))
    assert (carried.region, carried.rows_inside, carried.is_saved) == (region, 8, True)
    assert [request.mode for request in admin.requests[4:6]] == [2, 1]
    assert (admin.requests[0].include_history, admin.requests[1].include_history) == (False, True)


def test_a_change_is_not_repeated(fake: Fake) -> None:
    """A second roll-back would undo the first."""
    asked = []

    def roll_back(request: Any, context: grpc.ServicerContext) -> Any:
        asked.append(request)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the answer got lost")

    methods = {"darksight.v1.AdminService": {"RollBack": unary(roll_back, admin_pb2.RollBackRequest)}}
    with serving(fake, more=methods) as target, Client(target) as client, pytest.raises(Unavailable):
        client.roll_back("digits")

    assert len(asked) == 1


def test_a_batcher_sends_rows_of_many_threads_together(client: Client, fake: Fake) -> None:
    """Each thread gets the answer for its row."""
    with Batcher(client, "digits", max_wait_seconds=0.05) as batcher, futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda number: batcher.gate([number / 128, 0.0]).p_value, range(128)))

    assert answers == [number / 128 for number in range(128)]
    assert len(fake.requests) < 128


def test_rows_of_a_batcher_do_not_harm_each_other(client: Client) -> None:
    """A bad row, one of another length and one with a name that is there twice: each caller gets its own answer."""
    with Batcher(client, "digits", max_wait_seconds=0.2, calls=1) as batcher:
        good = [batcher.submit([0.5, 0.5]) for _ in range(3)]
        bad = batcher.submit([np.nan, 0.5])
        odd = batcher.submit([0.2, 0.3, 0.5])
        named = [batcher.submit([0.5, 0.5], prediction_id=name) for name in ("a", "b", "a")]

        assert all(each.result().accepted for each in good)
        assert bad.result().reason is Reason.INVALID
        with pytest.raises(InvalidRequest, match="3 classes"):
            odd.result()
        assert [each.result().prediction_id for each in named] == ["a", "b", "a"]
        with pytest.raises(InvalidRequest, match="give one row"):
            batcher.submit([[0.5, 0.5], [0.5, 0.5]])


def test_a_batcher_without_a_server() -> None:
    """All waiting threads get an error, each its own; and the batcher lives on."""
    with dead_address() as target, Client(target, retries=0) as client, Batcher(client, "digits", calls=1) as batcher:
        answers = [batcher.submit([0.5, 0.5]) for _ in range(3)]
        errors = [each.exception() for each in answers]

    assert all(isinstance(error, Unavailable) for error in errors)
    assert len({id(error) for error in errors}) == 3


def test_a_closed_batcher_answers_what_waits(client: Client) -> None:
    """And takes no more."""
    batcher = Batcher(client, "digits", max_wait_seconds=60.0)
    answers = [batcher.submit([0.5, 0.5]) for _ in range(5)]

    batcher.close()

    assert all(each.result().accepted for each in answers)
    with pytest.raises(DarkSightClientError, match="closed"):
        batcher.gate([0.5, 0.5])


def test_the_asynchronous_client_does_the_same() -> None:
    """Calls, errors, pages, streams, failover."""
    fake = Fake()
    admin = Admin()

    async def use(targets: list[str]) -> None:
        async with AsyncClient(targets, timeout_seconds=30.0, gate_timeout_seconds=30.0, token="secret") as client:
            results = await asyncio.gather(*(client.gate("digits", [n / 32, 0.0]) for n in range(32)))
            assert [each.p_value for each in results] == [n / 32 for n in range(32)]
            assert (await client.score("digits", [[0.75, 0.25]])).accepted.tolist() == [True]
            with pytest.raises(InvalidRequest) as caught:
                await client.score("digits", [[np.nan, 0.5]])
            assert caught.value.row == 0
            assert (await client.report("digits", ["a"], [1])).recorded == 1
            assert [point.id async for point in client.points("digits")] == ["0", "1", "2", "3", "4"]
            assert (await client.models())[0].name == "digits"
        with pytest.raises(DarkSightClientError, match="closed"):
            await client.gate("digits", [0.5, 0.5])

    with serving(fake, more={"darksight.v1.AdminService": admin.methods()}) as target, dead_address() as dead:
        asyncio.run(use([dead, target]))

    assert fake.metadata[0]["authorization"] == "Bearer secret"


def test_asynchronous_streams() -> None:
    """In order, from both kinds of iterables, over a failure, with the errors of a source."""
    first, second = Fake(), Fake()
    calls = itertools.count()
    first.before = lambda request, context: (
        context.abort(grpc.StatusCode.UNAVAILABLE, "bye") if next(calls) == 20 else None
    )

    async def batches() -> Any:
        for number in range(64):
            await asyncio.sleep(0)
            yield [number / 64, 0.0]

    async def broken() -> Any:
        yield [0.5, 0.5]
        raise KeyError("mine")

    async def use(targets: list[str]) -> None:
        async with AsyncClient(targets, timeout_seconds=30.0, gate_timeout_seconds=30.0) as client:
            for _ in range(2):
                results = [float(scored.p_value[0]) async for scored in client.stream("digits", batches())]
                assert results == [number / 64 for number in range(64)]
            assert len([1 async for _ in client.stream("digits", [[[0.5, 0.5]]] * 3)]) == 3
            with pytest.raises(KeyError, match="mine"):
                [1 async for _ in client.stream("digits", broken())]
            with pytest.raises(UnknownModel):
                [1 async for _ in client.stream("unknown", [[0.5, 0.5]])]

    with serving(first) as one, serving(second) as two:
        asyncio.run(use([one, two]))

    assert first.requests[20].batch_id in {request.batch_id for request in second.requests}


def test_both_clients_have_the_same_methods_with_real_signatures() -> None:
    """Names, parameters and defaults; help() and editors show them with the type of the result."""

    def signatures(kind: type) -> dict[str, inspect.Signature]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(method) for name, method in methods if not name.startswith("_")}

    sync, aio = signatures(Client), signatures(AsyncClient)

    assert sync.keys() == aio.keys()
    for name in sync.keys() - {"close", "stream"}:
        assert sync[name].parameters == aio[name].parameters, name
        results = str(sync[name].return_annotation), str(aio[name].return_annotation).removeprefix("Async")
        assert results[0] == results[1], name
    typed = [each for name, each in sync.items() if name != "score"]
    assert all("Steps" not in str(each) and each.return_annotation != "Any" for each in typed)
    assert "Whether `probs` are logits" in (Client.score.__doc__ or "")
