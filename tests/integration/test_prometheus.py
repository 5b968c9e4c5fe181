"""A real Prometheus scrapes real counters, and every panel of every dashboard has data."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboards import DASHBOARDS, queries
from tests.support.prometheus import Prometheus
from tests.support.simulated_replicas import panel_series, run, story
from tests.support.tools import needs

pytestmark = needs("prometheus")

SECONDS = 30.0
PANELS = [(board.uid, panel) for board in DASHBOARDS for panel in board.panels or () if queries(panel)]


@pytest.fixture(scope="module")
def story_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float, float]]:
    """Half a minute of two replicas, in which the store is away for a while and then the traffic drifts."""
    with run(tmp_path_factory.mktemp("run"), story(SECONDS)) as ran:
        yield ran


@pytest.mark.parametrize(("uid", "panel"), PANELS, ids=[f"{uid}: {panel.title}" for uid, panel in PANELS])
def test_every_panel_has_data(story_run: tuple[Prometheus, float, float], uid: str, panel: Panel) -> None:
    """Every query gives at least one series, and all values are finite."""
    server, start, end = story_run

    found = panel_series(server, panel, start=start, end=end)

    assert {legend: bool(series) for legend, series in found.items()} == dict.fromkeys(queries(panel), True)
    values = [float(value) for series in found.values() for _, points in series for _, value in points]
    assert all(math.isfinite(value) for value in values)


def test_rules_and_targets_are_healthy(story_run: tuple[Prometheus, float, float]) -> None:
    """Prometheus reads the page of both replicas and evaluates every rule."""
    server, _, _ = story_run

    targets = server.get("targets")["activeTargets"]
    rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]

    assert [target["health"] for target in targets] == ["up", "up"], targets
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}


def test_drift_alerts_fire_after_the_drift(story_run: tuple[Prometheus, float, float]) -> None:
    """Evidence and outliers raise alerts once the traffic has drifted, and none before."""
    server, start, end = story_run

    query = 'min by (alertname) (timestamp(ALERTS{model="vision",alertstate="firing"}))'
    found = server.get("query_range", query=query, start=start, end=end, step=1)["result"]

    first = {each["metric"]["alertname"]: float(each["values"][0][1]) - start for each in found}
    assert {"DarkSightDrift"} <= set(first) <= {"DarkSightDrift", "DarkSightOutlierRateHigh"}
    assert min(first.values()) > 0.4 * SECONDS
