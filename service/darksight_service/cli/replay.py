"""A real Prometheus beside real services, with the alerts of deploy/prometheus: which of them fire, and when.

Windows and waiting times of the rules are minutes to days, a demo has half a minute. So a copy of the rules is used in
which time runs `SPEED` times as fast: windows, intervals and waiting times are divided by it, nothing else is changed.
Alerts on the service itself keep their times: how long it may be away does not depend on the traffic.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darksight_service.errors import RefusedError

__all__ = ["RULES", "SPEED", "Alarm", "Prometheus", "faster", "first_alarms", "running_prometheus", "why_not"]

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules"
"""Where a checkout has the rules; an installed package has none."""

SPEED = 60
"""A second of the replay is a minute of the rules."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
# A scrape and the evaluations of rules that use it, one after the other.
_EVERY = "1s"
_PATIENCE = 120.0
_SERVICE = "service.yml"


def why_not() -> str | None:
    """Why there can be no Prometheus here, or None if there can."""
    if shutil.which("prometheus") is None:
        return "prometheus is not installed (Debian: apt-get install prometheus)"
    return None if RULES.is_dir() else "the rules of deploy/prometheus are only in a checkout of the repository"


def faster(rules: str, speed: int = SPEED) -> str:
    r"""Rules whose windows, offsets, intervals and waiting times are divided by `speed`, to no less than a second.

    >>> faster("for: 5m\\nexpr: increase(rows[1h] offset 1d) > 4 * 3600", 60)
    'for: 5s\\nexpr: increase(rows[60s] offset 1440s) > 4 * 60'
    """

    def shorter(match: re.Match[str]) -> str:
        return f"{match[1]}{max(int(match[2]) * _UNITS[match[3]] // speed, 1)}s"

    rules = re.sub(r"(\[|offset |for: |interval: )(\d+)([smhd])\b", shorter, rules)
    return rules.replace("4 * 3600", f"4 * {3_600 // speed}")


@dataclass(frozen=True, slots=True)
class Alarm:
    """The first time that an alert fired.

    Parameters
    ----------
    name, severity, model
        Of the alert; the model is empty if it is about the service.
    rows
        Rows of the model that Prometheus knew of then; 0 without a model.
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
        """Answer of its API."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            error.add_note(f"{parameters}: {error.read().decode()}")
            raise

    def samples(self, selector: str) -> list[Mapping[str, Any]]:
        """All samples of series, each with its labels as `metric` and pairs of time and text as `values`."""
        found: list[Mapping[str, Any]] = self.get("query", query=f"{selector}[1h]")["result"]
        return found

    def alarms(self) -> list[Alarm]:
        """Alerts that have fired since the start, in the order of their first time."""
        return first_alarms(self.samples('ALERTS{alertstate="firing"}'), self.samples("model:darksight_drift_rows:sum"))

    def promises(self) -> dict[str, str]:
        """How unlikely each alert is without drift, by name."""
        rules = [rule for group in self.get("rules", type="alert")["groups"] for rule in group["rules"]]
        return {rule["name"]: rule["annotations"].get("unlikely", "") for rule in rules}


def first_alarms(alerts: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Alarm]:
    """First firing of each alert and model, with the rows that had been counted at that time.

    Parameters
    ----------
    alerts, rows
        Series as Prometheus gives them, of ALERTS and of rows by model.
    """
    counted = {series["metric"]["model"]: series["values"] for series in rows}
    found = []
    for series in alerts:
        labels, at = series["metric"], series["values"][0][0]
        model = labels.get("model", "")
        before = [float(value) for when, value in counted.get(model, []) if when <= at]
        found.append((at, Alarm(labels["alertname"], labels["severity"], model, int(before[-1]) if before else 0)))
    return [alarm for _, alarm in sorted(found, key=lambda pair: (pair[0], pair[1].rows, pair[1].name))]


@contextlib.contextmanager
def running_prometheus(
    folder: Path, services: Mapping[str, str], *, is_service_fast: bool = False
) -> Iterator[Prometheus]:
    """Prometheus with the fast rules, reading the metrics of services every second; ends with the block.

    Parameters
    ----------
    folder
        For its files; emptied.
    services
        Addresses by the name that stands for each in the label `instance`.
    is_service_fast
        Whether time runs faster for alerts on the service itself, too.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rules").mkdir(parents=True)
    for path in RULES.glob("*.yml"):
        rules, is_kept = path.read_text(encoding="utf-8"), path.name == _SERVICE and not is_service_fast
        (folder / "rules" / path.name).write_text(rules if is_kept else faster(rules), encoding="utf-8")
    targets = [
        {"targets": [urllib.parse.urlsplit(url).netloc], "labels": {"instance": name}} for name, url in services.items()
    ]
    config = {
        "global": {"scrape_interval": _EVERY, "evaluation_interval": _EVERY},
        "rule_files": ["rules/*.yml"],
        "scrape_configs": [{"job_name": "darksight", "static_configs": targets}],
    }
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
        end = time.monotonic() + _PATIENCE
        while not _is_ready(f"http://{address}", len(services)):
            if process.poll() is not None or time.monotonic() > end:
                where = ", ".join(services.values())
                raise RefusedError(f"prometheus did not start or does not reach {where}; see {log}")
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
    """Whether it serves, and has read every service at least twice: from then on no row is missed."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            pass
        looks = [[value for _, value in series["values"]] for series in Prometheus(url).samples("up")]
    except OSError:
        return False
    return sum(values.count("1") >= 2 for values in looks) == services
