"""What the service does when it is swapped, stopped, killed or flooded."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from darksight_client import Client, Unavailable
from darksight_client.stubs.inference import grpc_predict_v2_pb2
from darksight_service.store.store import Store
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darksight_core.bundle import read_bundle
from tests.integration.test_service import SCORE, K, gated_bundle, tensor_request
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server, start_server, wait_until, waiting


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of one model."""
    folder = tmp_path_factory.mktemp("bundles")
    return [gated_bundle(folder / f"{seed}.safetensors", seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def plain(bundles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker that accepts 16 calls at a time, for tests that leave it well."""
    limit = {"DARKSIGHT_MAX_CONCURRENT_CALLS": "16"}
    data_dir = tmp_path_factory.mktemp("plain")
    with running_server({"digits": bundles[0]}, data_dir, "--workers", "1", environment=limit) as server:
        yield server


class Load:
    """Calls from a few threads, by default with pauses as short as the calls; remembers what came back."""

    def __init__(self, target: str | list[str], *, pause_seconds: float = 0.003) -> None:
        self.versions: set[str] = set()
        self.names: list[str] = []
        self.failures: list[Exception] = []
        self.calls = 0
        self._stop = threading.Event()
        self._pause_seconds = pause_seconds
        self._client = Client(target, timeout_seconds=60.0)
        self._rows = make_probs(3, K)
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]

    def _run(self) -> None:
        while not self._stop.wait(self._pause_seconds):
            try:
                scored = self._client.score("digits", self._rows)
                self.versions.add(scored.version)
                self.calls += 1
                if scored.recorded:
                    self.names.extend(scored.prediction_ids)
            except Exception as error:
                self.failures.append(error)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """For the time of a block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
            self._client.close()


def stored_names(server: Server, since: float | None = None) -> list[str]:
    """Names of all stored points that came since then, when none waits to be stored."""
    wait_until(lambda: not waiting(server.data_dir), what="the spools to be empty")
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        return [point.prediction_id for point in client.points("digits", since=since, page_size=10_000)]


def test_swaps_under_load_fail_no_call_and_mix_no_versions(bundles: list[Path], tmp_path: Path):
    """Every response has one digest, and every acknowledged point is stored once under it."""
    versions = [read_bundle(bundle).version for bundle in bundles]
    with (
        running_server(
            {"digits": bundles[0]}, tmp_path, "--workers", "2", "--bundle-dir", str(bundles[0].parent)
        ) as server,
        Client(server.grpc_target, timeout_seconds=60.0) as operator,
    ):
        operator.deploy("digits", bundles[1].name)
        load = Load(server.grpc_target)
        with load.running():
            wait_until(lambda: load.versions == {versions[0]}, what="the first version")
            for swap in range(31):
                operator.activate("digits", versions[(swap + 1) % 2])
            # Swaps may be faster than the worker that has the load looks for them; the last one stays.
            wait_until(lambda: load.versions == set(versions), what="the second version")
        names = stored_names(server)

    assert load.failures == []
    assert load.versions == set(versions)
    assert sorted(names) == sorted(load.names)


def test_a_killed_worker_comes_back_and_loses_nothing_and_no_child_outlives_its_supervisor(
    bundles: list[Path], tmp_path: Path
):
    """kill -9 in the middle of traffic: the spool has what was answered, the storage worker brings it to the store.

    Then kill -9 of the supervisor: its children end by themselves.
    """
    with running_server({"digits": bundles[0]}, tmp_path, "--workers", "2") as server:
        load = Load(server.grpc_target)
        with load.running():
            for _ in range(3):
                time.sleep(0.5)
                before = server.children()["worker-0"]
                os.kill(before, signal.SIGKILL)
                wait_until(lambda before=before: server.children()["worker-0"] != before, what="a new worker")
        names = stored_names(server)
        assert server.get("/v2/health/ready")[0] == 200
        counted = server.counted("darksight_decisions_total")
        children = server.children()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children.values()), what="their end")

    assert len(set(children.values())) == 3
    assert len(set(names)) == len(names)
    assert set(load.names) <= set(names)
    assert len(server.events("child_died")) == 3
    assert counted >= len(load.names)


def test_a_stopped_server_finishes_what_it_has_and_exits_with_success(bundles: list[Path], tmp_path: Path):
    """SIGTERM: not ready at once, calls in flight are answered, points are in the store, exit 0."""
    with running_server({"digits": bundles[0]}, tmp_path, "--workers", "1") as server:
        with grpc.insecure_channel(server.grpc_target, options=[("grpc.max_receive_message_length", -1)]) as channel:
            large = tensor_request(make_probs(20_000, K)).SerializeToString()
            calls = [channel.unary_unary(SCORE).future(large, timeout=60) for _ in range(2)]
            wait_until(lambda: server.counted("darksight_calls_total") == 2.0, what="both calls to be there")
            server.process.send_signal(signal.SIGTERM)
            assert all(len(call.result()) > 400_000 for call in calls)
        assert server.process.wait(60) == 0

    with Store.open(f"sqlite:///{tmp_path / 'darksight.db'}") as store:
        assert store.stats().points == 40_000


def test_restarts_fail_no_call_and_keep_versions_regions_and_a_roll_back(
    plain: Server, bundles: list[Path], tmp_path: Path
):
    """Two replicas behind one client, one of them restarted twice.

    What operators changed is not undone by the command line, and the file it names may be gone.
    """
    versions = [read_bundle(bundle).version for bundle in bundles]
    options = ("--workers", "1", "--bundle-dir", str(bundles[0].parent))
    restless = start_server(tmp_path, {"digits": bundles[0]}, *options)
    options += (f"--grpc-port={restless.grpc_target.rpartition(':')[2]}",)
    load = Load([plain.grpc_target, restless.grpc_target], pause_seconds=0.02)
    everywhere = [(-90.0, -90.0), (90.0, -90.0), (90.0, 90.0), (-90.0, 90.0)]
    try:
        with load.running():
            with Client(restless.grpc_target, timeout_seconds=60.0) as client:
                client.deploy("digits", bundles[1].name, activate=True)
                client.save_region("digits", "everywhere", everywhere)
                client.enforce_region("digits", "everywhere")
            time.sleep(0.5)
            assert restless.stop() == 0

            time.sleep(0.5)
            restless = start_server(tmp_path, {"digits": bundles[0]}, *options)
            with Client(restless.grpc_target, timeout_seconds=60.0) as client:
                kept = client.score("digits", make_probs(9, K))
                rolled_back = client.roll_back("digits").active_version
            assert kept.version == versions[1]
            assert not kept.accepted.any()
            assert rolled_back == versions[0]
            assert restless.events("active_version_kept")
            assert restless.stop() == 0

            restless = start_server(tmp_path, {"digits": tmp_path / "gone.safetensors"}, *options)
            with Client(restless.grpc_target, timeout_seconds=60.0) as client:
                assert client.score("digits", make_probs(1, K)).version == versions[0]
            assert restless.events("bundle_missing")
    finally:
        restless.stop()

    assert load.failures == []
    assert load.versions == set(versions)


def test_a_server_without_the_bundle_of_a_model_says_so_until_it_is_back(plain: Server):
    """HTTP, gRPC health and the Open Inference Protocol agree, and calls fail as unavailable."""
    with grpc.insecure_channel(plain.grpc_target) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        def is_ready(method: str, response: Any, **fields: str) -> bool:
            request = getattr(grpc_predict_v2_pb2, f"{method}Request")(**fields).SerializeToString()
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            return bool(response.FromString(call(request, timeout=60, wait_for_ready=True)).ready)

        def answers() -> tuple[object, ...]:
            server_ready = is_ready("ServerReady", grpc_predict_v2_pb2.ServerReadyResponse)
            model_ready = is_ready("ModelReady", grpc_predict_v2_pb2.ModelReadyResponse, name="digits")
            requests = [health_pb2.HealthCheckRequest(service=name) for name in ("", "digits")]
            return (*(health.Check(each, timeout=60).status for each in requests), server_ready, model_ready)

        (plain.data_dir / "bundles").rename(plain.data_dir / "away")
        before = plain.children()["worker-0"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: plain.events("model_reload_failed"), what="the worker to miss the bundle")
        wait_until(lambda: plain.counted("darksight_versions_not_loaded") == 1.0, what="the metric")
        status = plain.get("/v2/health/ready")[0]
        with Client(plain.grpc_target, timeout_seconds=60.0, retries=1) as client:
            missing = answers()
            with pytest.raises(Unavailable, match="model 'digits' is not loaded"):
                client.score("digits", make_probs(1, K))
            (plain.data_dir / "away").rename(plain.data_dir / "bundles")
            wait_until(lambda: plain.get("/v2/health/ready")[0] == 200, what="the service to be ready again")
            client.score("digits", make_probs(1, K))

        assert (status, missing) == (503, (2, 2, False, False))
        wait_until(lambda: answers() == (1, 1, True, True), what="health")


def test_a_flood_is_refused_with_a_hint_and_the_server_stays_well(plain: Server):
    """More calls than the server takes: RESOURCE_EXHAUSTED with when to come back, and answers for the others."""
    data = tensor_request(make_probs(4000, K)).SerializeToString()
    with grpc.insecure_channel(plain.grpc_target) as channel:
        calls = [channel.unary_unary(SCORE).future(data, timeout=60) for _ in range(60)]
        codes = [call.code() for call in calls]
    refused = [call for call in calls if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED]
    hints = {dict(call.trailing_metadata()).get("grpc-retry-pushback-ms") for call in refused}
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert hints == {"50"}
    with Client(plain.grpc_target, timeout_seconds=60.0) as client:
        assert client.score("digits", make_probs(1, K)).recorded
    assert "darksight_" in plain.get("/metrics")[1]


def test_a_call_whose_deadline_passed_is_given_up(plain: Server):
    """Nobody waits for the answer, so nothing of the batch is stored."""
    began = time.time()
    data = tensor_request(make_probs(100_000, K)).SerializeToString()
    with grpc.insecure_channel(plain.grpc_target) as channel, pytest.raises(grpc.RpcError) as failure:
        channel.unary_unary(SCORE)(data, timeout=0.1)

    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with Client(plain.grpc_target, timeout_seconds=60.0) as client:
        client.score("digits", make_probs(1, K), prediction_ids=["after"])
    assert stored_names(plain, began) == ["after"]


def test_two_services_do_not_share_a_port(plain: Server, bundles: list[Path], tmp_path: Path):
    """A second one is refused with the reason, instead of taking half of the calls."""
    port = plain.grpc_target.rpartition(":")[2]

    with pytest.raises(AssertionError, match="cannot listen on"):
        start_server(tmp_path, {"digits": bundles[0]}, f"--grpc-port={port}")
