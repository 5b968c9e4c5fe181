"""Three replicas as deploy/helm describes them, beside a single server with the same traffic: the same alerts.

Each replica has a data folder of its own; they share PostgreSQL, and clients take turns among them. A real Prometheus
reads all three, another one the single server.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from darksight_client import Client, Policy, Region
from darksight_service.store.store import Store
from numpy.typing import NDArray

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle
from tests.support.faults import clients
from tests.support.faults.checker import NO_FAULTS, Report, check, read_logs
from tests.support.faults.nemesis import Service, send
from tests.support.postgres import Postgres
from tests.support.prometheus import Alert, Prometheus, run_prometheus
from tests.support.replicas import REPLICAS, running_services, services_of_manifest
from tests.support.servers import wait_until
from tests.support.tools import needs

pytestmark = needs("prometheus")

CLASSES, ALPHA, BATCH = 3, 0.01, 300
QUIET_TURNS = 21
DRIFT_ALERTS = {"DarkSightDrift", "DarkSightOutlierRateHigh"}
MODELS = ("quiet", "strange")
# Generous, for a machine that does other things, too.
PATIENCE = 120.0

Rows = NDArray[np.float32]
Counted = dict[tuple[str, ...], float]


@dataclass(slots=True, eq=False)
class Side:
    """A Prometheus, a client of what it reads, and what was seen there."""

    prometheus: Prometheus
    client: Client
    quiet: list[Alert] = field(default_factory=list)
    final: list[Alert] = field(default_factory=list)
    counts: dict[str, Counted] = field(default_factory=dict)

    def values(self, query: str, *labels: str) -> Counted:
        """What a query gives now, by labels."""
        found = self.prometheus.get("query", query=query)["result"]
        return {tuple(each["metric"][label] for label in labels): float(each["value"][1]) for each in found}

    def rows(self) -> dict[str, float]:
        """Rows by model that Prometheus knows of; -1 if it knows of no such model."""
        found = self.values("sum by (model) (darksight_pvalue_bin_total)", "model")
        return {model: found.get((model,), -1.0) for model in MODELS}

    def alerts(self) -> set[tuple[str, str]]:
        """Models and alerts that have fired."""
        return {(alarm.model, alarm.name) for alarm in self.prometheus.alerts()}

    def read_counts(self) -> None:
        """Everything that must add up."""
        self.counts = {
            "decisions": self.values("sum by (model, decision, reason) (darksight_decisions_total)", *_DECIDED),
            "bins": self.values("sum by (model, bin) (darksight_pvalue_bin_total)", "model", "bin"),
        }


_DECIDED = ("model", "decision", "reason")


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything that runs."""

    replicas: list[Service]
    single: Service
    url: str
    all: Side
    one: Side
    scorer: Scorer
    digits: Path

    @property
    def sides(self) -> tuple[Side, Side]:
        """The replicas together, and the single server."""
        return self.all, self.one

    def score(self, model: str, rows: Rows) -> None:
        """The same rows to both sides."""
        for side in self.sides:
            side.client.score(model, rows)


def usual(rng: np.random.Generator, rows: int = BATCH) -> Rows:
    """Rows like those the bundle was calibrated on."""
    return rng.dirichlet(np.full(CLASSES, 0.4), rows).astype(np.float32)


def strange(rng: np.random.Generator) -> Rows:
    """Most rows between all classes, where hardly any calibration row was."""
    middle = rng.dirichlet(np.full(CLASSES, 60.0), BATCH * 4 // 5).astype(np.float32)
    return np.concatenate([usual(rng, BATCH // 5), middle])


def instances(services: list[Service]) -> dict[str, str]:
    """What a Prometheus reads."""
    found = {}
    for service in services:
        assert service.server is not None
        found[service.data_dir.name] = service.server.http_url
    return found


@pytest.fixture(scope="module")
def world(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The replicas and the single server, all started at once from bundles that are not in their folders."""
    folder = tmp_path_factory.mktemp("replicas")
    made, path, digits = make_bundle(8_000, CLASSES), folder / "map.safetensors", folder / "digits.safetensors"
    write_bundle(path, made.with_gate(Gate(outlier=cutoff(len(made.calibration), ALPHA))))
    other = make_bundle(rows=900, classes=clients.CLASSES)
    write_bundle(digits, other.with_gate(Gate(outlier=cutoff(len(other.calibration), 0.05))))
    models, url = dict.fromkeys(MODELS, path), postgres.migrated_database()
    replicas = services_of_manifest(folder, digits, url, models)
    # Its connections are made anew all the time, which no caller may notice.
    settings = {**replicas[0].environment, "DARKSIGHT_CONNECTION_SECONDS": "1"}
    single = Service(folder / "single", digits, postgres.migrated_database(), settings, others=models, workers=1)
    with ExitStack() as stack:
        stack.enter_context(running_services([*replicas, single]))

        def watched(services: list[Service]) -> Side:
            name = services[0].data_dir.name
            server = stack.enter_context(run_prometheus(folder / f"prometheus-{name}", instances(services)))
            targets = [service.target for service in services]
            return Side(server, stack.enter_context(Client(targets, timeout_seconds=60.0)))

        with ThreadPoolExecutor(2) as pool:
            sides = list(pool.map(watched, (replicas, [single])))
        yield World(replicas, single, url, *sides, Scorer.of(read_bundle(path)), digits)


def settled(world: World, sent: Mapping[str, int]) -> None:
    """Wait until both Prometheus know of all rows, and have evaluated all rules since."""
    for side in world.sides:
        wait_until(lambda side=side: side.rows() == sent, PATIENCE, f"{sent}")
        now = time.time()

        def is_evaluated(side: Side = side, now: float = now) -> bool:
            return min(side.values("timestamp(model:darksight_psi:1d)", "model").values(), default=0.0) > now

        wait_until(is_evaluated, PATIENCE, "another evaluation")


@pytest.fixture(scope="module")
def story(world: World) -> World:
    """Quiet traffic; then strange rows until all alerts have fired."""
    rng = np.random.default_rng(5)
    sent = dict.fromkeys(MODELS, 0)

    def score(model: str, rows: Rows) -> None:
        world.score(model, rows)
        sent[model] += len(rows)

    for _ in range(QUIET_TURNS):
        score("quiet", usual(rng))
        score("strange", usual(rng))
    settled(world, sent)
    for side in world.sides:
        side.quiet = side.prometheus.alerts()
    wanted = {("strange", name) for name in DRIFT_ALERTS}
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not all(wanted <= side.alerts() for side in world.sides):
        score("strange", strange(rng))
        score("quiet", usual(rng))
        time.sleep(0.2)
    settled(world, sent)
    for side in world.sides:
        side.final = side.prometheus.alerts()
        side.read_counts()
    return world


def test_three_replicas_as_in_the_manifest_have_the_same_state(world: World) -> None:
    """All were started at once with the same --model names: one trail, which each of them folded to the same state."""
    states = []
    for service in world.replicas:
        with Client(service.target, timeout_seconds=60.0) as client:
            states.append({model.name: (model.active_version, model.previous_version) for model in client.models()})

    assert len(world.replicas) == REPLICAS == 3
    assert states == [states[0]] * REPLICAS
    assert set(states[0]) == {*MODELS, clients.MODEL}


def test_counts_of_the_replicas_add_up_to_those_of_a_single_server(story: World) -> None:
    """Decisions and p-values by PromQL, to the last row; and each replica had its share."""
    shares = story.all.values('sum by (instance) (darksight_pvalue_bin_total{model="strange"})', "instance")

    assert story.all.counts == story.one.counts
    assert len(shares) == REPLICAS
    assert max(shares.values()) - min(shares.values()) <= 2 * BATCH


def test_the_alerts_are_those_of_a_single_server(story: World) -> None:
    """None while it is quiet, those on drift for the model that drifts, and no other."""
    # Which fires only where the evidence is late, as it may be on a busy machine.
    slow = {("strange", "DarkSightScoreDrift")}
    fired = [{(alarm.model, alarm.name) for alarm in side.final} - slow for side in story.sides]

    assert [side.quiet for side in story.sides] == [[], []]
    assert fired == [{("strange", name) for name in DRIFT_ALERTS}] * 2


def test_one_name_with_all_addresses_reaches_all_replicas(world: World) -> None:
    """What the headless service's name stands for: the client's connection takes turns among the addresses."""
    target = "ipv4:" + ",".join(service.target for service in world.replicas)

    def calls(service: Service) -> float:
        assert service.server is not None
        return service.server.counted("darksight_calls_total")

    before = [calls(service) for service in world.replicas]
    with Client(target, timeout_seconds=60.0) as client:
        for _ in range(60):
            client.models()

    assert all(calls(service) > count for service, count in zip(world.replicas, before, strict=True))


def test_a_connection_is_made_anew_when_it_is_old(world: World) -> None:
    """So that a name is resolved again, and replicas that were added get calls."""
    seen: list[Any] = []
    with grpc.insecure_channel(world.single.target) as channel:
        channel.subscribe(seen.append, try_to_connect=True)
        wait_until(lambda: grpc.ChannelConnectivity.READY in seen, what="a connection")
        wait_until(lambda: seen[-1] is not grpc.ChannelConnectivity.READY, what="its end")


def test_a_policy_set_at_one_replica_is_in_force_at_all(story: World) -> None:
    """Within seconds."""
    with ExitStack() as stack:
        each = [stack.enter_context(Client(service.target, timeout_seconds=60.0)) for service in story.replicas]
        each[0].set_policy("quiet", Policy(alpha=0.05), author="test")

        for client in each:
            wait_until(lambda client=client: client.policy("quiet").effective.alpha == 0.05, what="the policy")


@pytest.fixture(scope="module")
def region(story: World) -> Region:
    """A polygon around the whole map, drawn and enforced at the last replica."""
    corners = [(-90.0, -90.0), (90.0, -90.0), (90.0, 90.0), (-90.0, 90.0)]
    with ExitStack() as stack:
        each = [stack.enter_context(Client(service.target, timeout_seconds=60.0)) for service in story.replicas]
        assert all(client.score("quiet", usual(np.random.default_rng(1))).accepted.any() for client in each)
        region = each[-1].save_region("quiet", "everything", corners, author="test")
        each[-1].enforce_region("quiet", "everything", author="test")
    return region


def test_a_region_enforced_at_one_replica_is_in_force_at_all(story: World, region: Region) -> None:
    """Soon every replica refuses every row."""
    rows = usual(np.random.default_rng(1))
    with ExitStack() as stack:
        each = [stack.enter_context(Client(service.target, timeout_seconds=60.0)) for service in story.replicas]
        for client in each:
            wait_until(lambda client=client: not client.score("quiet", rows).accepted.any(), what="the region")
            assert [found.polygon for found in client.regions("quiet")] == [region.polygon]
        wait_until(
            lambda: each[0].preview_region("quiet", name="everything").inside_rejected > 0, what="refused points"
        )


@pytest.fixture(scope="module")
def survived(story: World, region: Region, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, int]:
    """Clients call all the while one replica is killed and comes back; and rows that were in its spool alone."""
    logs, victim = tmp_path_factory.mktemp("logs"), story.replicas[1]
    targets = ",".join(service.target for service in story.replicas)
    with clients.running_clients(targets, logs, rate=120.0):
        # Points that it has promised to keep, and that nobody else has.
        send(signal.SIGSTOP, *victim.child("darksight_service.processes.storage_worker"))
        wait_until(lambda: victim.waiting_bytes() > 10_000, what="points that wait")
        victim.kill()
        waiting = victim.waiting_bytes()
        time.sleep(1.0)
        victim.start()
        time.sleep(0.5)
    for service in story.replicas:
        service.settle()
    version = read_bundle(story.digits.with_name("map.safetensors")).version
    return check(read_logs(logs), story.url, story.digits, others=[version]), waiting


def test_a_killed_replica_loses_nothing_and_fails_no_call(survived: tuple[Report, int]) -> None:
    """kill -9 of all its processes: callers go on at the others, and its points come when it is back."""
    report, waiting = survived

    assert waiting > 0
    assert report.faults() == NO_FAULTS
    assert (report.failures, report.answered_calls, report.unrecorded) == ({}, report.calls, 0)
    assert report.stored == report.recorded > 0


def test_a_killed_replica_keeps_its_part_in_the_evidence(survived: tuple[Report, int], story: World) -> None:
    """Its counters go on where they were, and so the sums are again those of all rows."""
    wait_until(lambda: story.all.rows()["strange"] == story.one.rows()["strange"], PATIENCE, "the sums")


def test_a_killed_replica_enforces_the_region_when_it_is_back(
    survived: tuple[Report, int], region: Region, story: World
) -> None:
    """From its first call on, as it did before."""
    with Client(story.replicas[1].target, timeout_seconds=60.0) as client:
        scored = client.score("quiet", usual(np.random.default_rng(1)))

        assert not scored.accepted.any()
        assert [found.polygon for found in client.regions("quiet")] == [region.polygon]


def test_the_trail_of_all_changes_is_whole(survived: tuple[Report, int], story: World) -> None:
    """Each replica appended to it, and no entry was altered or lost."""
    with Store.open(story.url) as store:
        entries, _ = store.check()

    assert entries >= len(MODELS) + 1
