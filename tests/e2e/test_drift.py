"""A real Prometheus with the repository's rules watches a real service of two workers: quiet, then drifting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_client import Client
from numpy.typing import NDArray

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.runtime.scorer import Scorer
from tests.support.alertmanager import run_alertmanager
from tests.support.bundles import make_bundle
from tests.support.prometheus import Alert, Prometheus, run_prometheus
from tests.support.servers import Server, running_server, wait_until
from tests.support.tools import needs

pytestmark = needs("prometheus")

CLASSES, ALPHA = 3, 0.01
QUIET_ROWS, BATCH = 20_000, 200
# DarkSightScoreDrift fires only where the evidence is late, as it may be on a busy machine.
LATE = {"DarkSightScoreDrift"}
# Generous, for a machine that does other things, too.
PATIENCE = 300.0

Rows = NDArray[np.float64]
Maker = Callable[[np.random.Generator], Rows]


@dataclass(frozen=True, slots=True)
class Story:
    """What had fired when the quiet part was over and at the end, and the state of the service and of Prometheus."""

    quiet: list[Alert]
    quiet_rows: Mapping[str, int]
    final: list[Alert]
    firing: list[dict[str, Any]]
    page: str
    rule_errors: Mapping[str, str]

    def of(self, model: str) -> set[str]:
        """Names of the alerts of a model."""
        return {alarm.name for alarm in self.final if alarm.model == model}


def usual(rng: np.random.Generator) -> Rows:
    """Rows like those the bundle was calibrated on."""
    return rng.dirichlet(np.full(CLASSES, 0.4), BATCH)


def strange(rng: np.random.Generator) -> Rows:
    """Half of the rows between all classes, where hardly any calibration row was."""
    return np.concatenate([usual(rng)[BATCH // 2 :], rng.dirichlet(np.full(CLASSES, 60.0), BATCH // 2)])


def easy(scorer: Scorer) -> Maker:
    """Makes usual rows of which the rarer third is missing: other traffic than before, with fewer outliers."""

    def make(rng: np.random.Generator) -> Rows:
        rows = rng.dirichlet(np.full(CLASSES, 0.4), 2 * BATCH)
        return rows[scorer.score(rows).p_value > 0.3][:BATCH]

    return make


def send(clients: list[Client], traffic: Mapping[str, Maker], is_over: Callable[[int], bool]) -> None:
    """Send a batch of every model in turn, each over the next connection, until it is over after some rows."""
    rng, turns = np.random.default_rng(7), 0
    while not is_over(turns * BATCH):
        for model, make in traffic.items():
            clients[turns % len(clients)].score(model, make(rng))
        turns += 1
        time.sleep(0.05)


def counted(prometheus: Prometheus) -> dict[str, int]:
    """Rows by model that Prometheus knows of."""
    found = prometheus.get("query", query="sum by (model) (darksight_pvalue_bin_total)")["result"]
    return {series["metric"]["model"]: int(series["value"][1]) for series in found}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Scorer]]:
    """Two workers that serve one bundle under three names, and its scorer."""
    folder = tmp_path_factory.mktemp("drift")
    bundle, path = make_bundle(rows=8_000, classes=CLASSES), folder / "bundle.safetensors"
    write_bundle(path, bundle.with_gate(Gate(outlier=cutoff(len(bundle.calibration), ALPHA))))
    models = dict.fromkeys(("quiet", "strange", "easy"), path)
    with running_server(models, folder / "data", "--workers", "2") as running:
        yield running, Scorer.of(read_bundle(path))


@pytest.fixture(scope="module")
def story(server: tuple[Server, Scorer], tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Three models with quiet traffic; then two of them drift, each in its way, until an alert for each has fired."""
    running, scorer = server
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with run_prometheus(folder / "run", {"drift": running.http_url}) as prometheus:
        # Each connection belongs to one worker; of eight, both get some.
        clients = [Client(running.grpc_target, timeout_seconds=60.0) for _ in range(8)]
        try:
            send(clients, dict.fromkeys(("quiet", "strange", "easy"), usual), lambda rows: rows >= QUIET_ROWS)
            wait_until(lambda: set(counted(prometheus).values()) == {QUIET_ROWS}, PATIENCE, "all quiet rows")
            quiet, quiet_rows = prometheus.alerts(), counted(prometheus)

            end = time.monotonic() + PATIENCE
            fired: set[tuple[str, str]] = set()
            wanted = {
                ("strange", "DarkSightDrift"),
                ("strange", "DarkSightOutlierRateHigh"),
                ("easy", "DarkSightDrift"),
            }

            def is_over(_: int) -> bool:
                fired.update((alarm.model, alarm.name) for alarm in prometheus.alerts())
                return wanted <= fired or time.monotonic() > end

            send(clients, {"quiet": usual, "strange": strange, "easy": easy(scorer)}, is_over)
        finally:
            for client in clients:
                client.close()

        def rules() -> list[dict[str, str]]:
            return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

        # A group is first evaluated at some time within its interval.
        wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), 120.0, "every rule to be evaluated")
        errors = {rule["name"]: rule["lastError"] for rule in rules() if rule["health"] != "ok"}
        firing = [each for each in prometheus.get("alerts")["alerts"] if each["state"] == "firing"]
        return Story(quiet, quiet_rows, prometheus.alerts(), firing, running.get("/metrics")[1], errors)


def test_nothing_fires_while_it_is_quiet(story: Story) -> None:
    """No alert of any kind after 20,000 rows of each model that are like its calibration rows."""
    assert story.quiet_rows == dict.fromkeys(("quiet", "strange", "easy"), QUIET_ROWS)
    assert story.quiet == []


def test_two_workers_serve_and_every_rule_works(story: Story) -> None:
    """The run was what it claims to be: two workers, and no rule that Prometheus could not evaluate."""
    assert "darksight_workers 2" in story.page
    assert story.rule_errors == {}


def test_more_outliers_raise_the_alerts_on_outliers(story: Story) -> None:
    """Evidence and outlier rate fire for the model whose rows became strange, and nothing about the service."""
    assert story.of("strange") - LATE == {"DarkSightDrift", "DarkSightOutlierRateHigh"}


def test_rows_that_move_without_outliers_raise_no_alert_on_outliers(story: Story) -> None:
    """Evidence sees that the rarer rows are missing; a falling outlier rate fires nothing."""
    assert story.of("easy") - LATE == {"DarkSightDrift"}


@needs("prometheus-alertmanager")
def test_one_incident_is_one_page_with_the_right_name(story: Story, tmp_path: Path) -> None:
    """Of all alerts that fire at once, Alertmanager sends one for each model that drifts."""
    with run_alertmanager(tmp_path) as alertmanager:
        alertmanager.post(story.firing)
        expected = {("pages", "DarkSightDrift", "strange"), ("pages", "DarkSightDrift", "easy")}
        wait_until(lambda: alertmanager.notified() >= expected, what="both pages")
        # What is not inhibited by now is sent after as long as the first.
        time.sleep(2.0)

        assert alertmanager.notified() == expected


def test_the_model_that_stays_quiet_has_no_alert_to_the_end(story: Story) -> None:
    """Drift of other models is not put down to this one, and the service itself is well."""
    assert {alarm.model for alarm in story.final} == {"strange", "easy"}


def test_alerts_come_after_the_drift_began(story: Story) -> None:
    """Every alert knew of more rows than the quiet ones."""
    assert all(alarm.rows > QUIET_ROWS for alarm in story.final)
