"""A Prometheus process that scrapes services and evaluates the rules of deploy/prometheus: which alerts fire, and when.

The windows and `for` durations of the rules are minutes to days, and a test takes half a minute. So it uses a copy of
the rules in which windows, intervals and `for` durations are divided by `SPEED`; nothing else changes. The rules about
the service itself keep their durations, because they do not depend on the traffic.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "RULES",
    "SPEED",
    "Alert",
    "Prometheus",
    "run_prometheus",
    "speed_up",
]

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules"
"""The rules of the repository."""

SPEED = 60
"""A second is a minute of the rules."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_INTERVAL = "1s"
_START_SECONDS = 120.0
_SERVICE_RULES = "service.yml"


def speed_up(rules: str, speed: int = SPEED) -> str:
    r"""Rules whose windows, offsets, intervals and durations are divided by `speed`, to at least one second.

    >>> speed_up("for: 5m\\nexpr: increase(rows[1h] offset 1d) > 4 * 3600", 60)
    'for: 5s\\nexpr: increase(rows[60s] offset 1440s) > 4 * 60'
    """

    def divide(match: re.Match[str]) -> str:
        return f"{match[1]}{max(int(match[2]) * _UNITS[match[3]] // speed, 1)}s"

    rules = re.sub(r"(\[|offset |for: |interval: )(\d+)([smhd])\b", divide, rules)
    return rules.replace("4 * 3600", f"4 * {3_600 // speed}")


@dataclass(frozen=True, slots=True)
class Alert:
    """The first time that an alert fired.

    Parameters
    ----------
    name, severity, model
        Labels of the alert; the model is empty if the alert is about the service.
    rows
        Rows of the model that Prometheus had counted by then; 0 without a model.
    """

    name: str
    severity: str
    model: str
    rows: int


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def get(self, path: str, **parameters: str | float) -> Any:
        """Data of an answer of its HTTP API."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            error.add_note(f"{parameters}: {error.read().decode()}")
            raise

    def samples(self, selector: str) -> list[Mapping[str, Any]]:
        """Samples of the last hour, by series: labels as `metric`, pairs of time and text as `values`."""
        found: list[Mapping[str, Any]] = self.get("query", query=f"{selector}[1h]")["result"]
        return found

    def alerts(self) -> list[Alert]:
        """First firing of each alert and model since the start, in order."""
        found = []
        for series in self.samples('ALERTS{alertstate="firing"}'):
            labels, at = series["metric"], series["values"][0][0]
            model = labels.get("model", "")
            counter = f"darksight_pvalue_bin_total{{model={json.dumps(model)}}}"
            rows = self.get("query", query=f"sum({counter})", time=at)["result"]
            counted = int(rows[0]["value"][1]) if rows else 0
            found.append((at, Alert(labels["alertname"], labels["severity"], model, counted)))
        return [alert for _, alert in sorted(found, key=lambda pair: (pair[0], pair[1].rows, pair[1].name))]


@contextlib.contextmanager
def run_prometheus(
    folder: Path, services: Mapping[str, str], *, speed_up_service_rules: bool = False, alertmanager: str = ""
) -> Iterator[Prometheus]:
    """Run Prometheus with the fast rules, scraping services every second, until the end of the block.

    Parameters
    ----------
    folder
        Directory for its files. It is emptied.
    services
        Addresses, by the value of the label `instance`.
    speed_up_service_rules
        Divide the durations of the rules about the service too.
    alertmanager
        URL of the Alertmanager that gets the alerts.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rules").mkdir(parents=True)
    for path in RULES.glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        if path.name != _SERVICE_RULES or speed_up_service_rules:
            text = speed_up(text)
        (folder / "rules" / path.name).write_text(text, encoding="utf-8")
    targets = [
        {"targets": [urllib.parse.urlsplit(url).netloc], "labels": {"instance": name}} for name, url in services.items()
    ]
    config: dict[str, Any] = {
        "global": {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": ["rules/*.yml"],
        "scrape_configs": [{"job_name": "darksight", "static_configs": targets}],
    }
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.partition("//")[2]]}]}]}
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=warn"]
    log = folder / "prometheus.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _is_ready(f"http://{address}", len(services)):
            if process.poll() is not None or time.monotonic() > end:
                where = ", ".join(services.values())
                raise RuntimeError(f"prometheus did not start or cannot reach {where}; see {log}")
            time.sleep(0.1)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(url: str, services: int) -> bool:
    """Whether it is ready and has scraped every service at least twice: from then on it misses no row."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            pass
        scrapes = [[value for _, value in series["values"]] for series in Prometheus(url).samples("up")]
    except OSError:
        return False
    return sum(values.count("1") >= 2 for values in scrapes) == services
