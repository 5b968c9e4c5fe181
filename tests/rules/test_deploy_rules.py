"""Prometheus rules: they parse, their formulas are ours, and what alerts promise can be recomputed."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from darksight_service.metrics.catalogue import sample_names
from darksight_service.metrics.counts import Counts
from darksight_service.metrics.exposition import make_registry
from scipy.stats import beta, binom, chi2

from tests.support.alertmanager import run_alertmanager
from tests.support.prometheus import speed_up
from tests.support.psi import psi, psi_critical
from tests.support.servers import wait_until
from tests.support.tools import find_tool, needs

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
needs_promtool = needs("promtool")

DURATIONS = re.compile(r"(?:\[|offset |for: |interval: )(\d+[smhd])\b")
KEY = 'model="m",version="abababababab"'
BINS = [f"{(number + 1) / 20:.2f}" for number in range(20)]


def rules() -> list[dict[str, Any]]:
    """All rules of all groups."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """The alerts among them."""
    return [rule for rule in rules() if "alert" in rule]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool where the rules lie."""
    return subprocess.run(["promtool", *map(str, arguments)], cwd=DEPLOY / "prometheus", capture_output=True, text=True)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rows per minute of one replica."""

    bins: Sequence[float]
    outliers: float
    resets: bool = False

    def series(self, instance: str, gauges: Mapping[str, float]) -> list[dict[str, str]]:
        """Input of promtool for two hours, a sample a minute."""
        counters = {
            f'darksight_pvalue_bin_total{{instance="{instance}",{KEY},bin="{name}"}}': n
            for name, n in zip(BINS, self.bins, strict=True)
        }
        labels = f'instance="{instance}",{KEY},decision="reject",reason="outlier"'
        counters[f"darksight_decisions_total{{{labels}}}"] = self.outliers
        found = []
        for name, slope in counters.items():
            # A counter that starts again shows what came since.
            values = f"0+{slope}x80 {slope}+{slope}x59" if self.resets else f"0+{slope}x140"
            found.append({"series": name, "values": values})
        for name, value in gauges.items():
            found.append({"series": f'{name}{{instance="{instance}",{KEY}}}', "values": f"{value!r}x140"})
        return found


def assert_rules(
    folder: Path, series: list[dict[str, str]], expected: Mapping[str, float | None], *, slack: float
) -> None:
    """After two hours expressions have these values, or no value."""
    checks = []
    for expr, value in expected.items():
        # promtool compares exactly, so the comparison with a tolerance is in the expression.
        wanted = expr if value is None else f"abs({expr} - ({value!r})) < bool {slack!r}"
        samples = [] if value is None else [{"labels": "{" + KEY + "}", "value": 1}]
        checks.append({"expr": wanted, "eval_time": "2h", "exp_samples": samples})
    assert_checks(folder, series, checks, evaluated_every="20m")


def assert_checks(
    folder: Path,
    series: list[dict[str, str]],
    checks: list[dict[str, Any]],
    *,
    evaluated_every: str,
    scraped_every: str = "1m",
) -> None:
    """promtool finds what is expected of the rules on series."""
    scraped = {"series": 'up{job="darksight",instance="a"}', "values": "1x10000"}
    content = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": evaluated_every,
        "tests": [{"interval": scraped_every, "input_series": [*series, scraped], "promql_expr_test": checks}],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")

    done = promtool("test", "rules", path)

    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_rules_and_configuration_are_valid() -> None:
    """promtool accepts both."""
    for arguments in (["check", "rules", *RULES], ["check", "config", "prometheus.yml"]):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("path", sorted((DEPLOY / "prometheus" / "tests").glob("*.yml")), ids=lambda path: path.stem)
def test_alerts_fire_when_they_should(path: Path) -> None:
    """The tests beside the rules pass."""
    done = promtool("test", "rules", path)

    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("replicas", [1, 5], ids=["one replica", "five replicas"])
@pytest.mark.parametrize("resets", [False, True], ids=["steady", "counters reset"])
def test_formulas_equal_ours(tmp_path: Path, replicas: int, resets: bool) -> None:
    """PSI and its critical value are those of `darksight_core.drift`, to 1e-9.

    However many replicas the rows come from, and though counters start again in the middle.
    """
    rng = np.random.default_rng(7)
    total, outliers, size, rank = rng.integers(5, 60, 20).astype(float) * 5.0, 35.0, 4_999, 50
    bound = float(beta.ppf(0.9975, rank, size + 1 - rank))
    gauges = {"darksight_calibration_size": float(size), "darksight_outlier_alpha": 0.01}
    gauges |= {"darksight_outlier_rate_bound": bound}
    series: list[dict[str, str]] = []
    for i in range(replicas):
        part = Traffic([n / replicas for n in total], outliers / replicas, resets and i == 0)
        series += part.series(str(i), gauges)

    counts = 120.0 * total
    rows = float(counts.sum())
    expected = {
        "model:darksight_psi:1d": float(psi(counts)),
        "model:darksight_psi_critical:1d": psi_critical(rows, size, bins=20, level=1e-4),
        "model:darksight_outlier:ratio_rate1h": outliers / float(total.sum()),
        "model:darksight_outlier:budget": max(0.02, 1.5 * bound),
    }
    assert_rules(tmp_path, series, expected, slack=1e-9)


@needs_promtool
@pytest.mark.parametrize("ruled", [True, False], ids=["rule", "no rule"])
def test_no_traffic_gives_no_nan(tmp_path: Path, ruled: bool) -> None:
    """Of a model without rows no rule makes a number that is none, and ratios have no series."""
    gauges = {"darksight_calibration_size": 999.0, "darksight_certificate_log_evidence": 0.0}
    gauges |= {"darksight_outlier_alpha": 0.01 * ruled, "darksight_outlier_rate_bound": 0.021 * ruled}
    series = Traffic([0.0] * 20, 0.0).series("a", gauges)
    for decision in ("accept", "reject"):
        labels = f'instance="a",{KEY},decision="{decision}"'
        for name in ("darksight_live_labelled_rows", "darksight_live_correct_rows"):
            series.append({"series": f"{name}{{{labels}}}", "values": "0x140"})
    names = [rule["record"] for rule in rules() if "record" in rule]

    # NaN alone differs from itself.
    expected: dict[str, float | None] = {f"{name} != {name}": None for name in names}
    expected |= {"model:darksight_psi:1d": None, "model:darksight_outlier:ratio_rate1h": None, "ALERTS": None}
    assert_rules(tmp_path, series, expected, slack=0.0)


def fired_by(minute: int, *alerts: str) -> dict[str, Any]:
    """What promtool is to find: these alerts have fired up to a minute, and no others."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    expr = f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{minute}m]))'
    return {"expr": expr, "eval_time": f"{minute}m", "exp_samples": samples}


def with_tightened_rule(before: int, after: int, rate: float) -> list[dict[str, str]]:
    """Series of a model whose alpha falls from 10 % to 0.1 % after some minutes, and its outlier rate to `rate`.

    A replica counts 1,000 rows a minute. Another one, which follows a minute later, has no rows.
    """
    size, rows, ranks = 9_999, 1_000, (1_000, 10)
    bounds = [float(beta.ppf(0.9975, rank, size + 1 - rank)) for rank in ranks]
    outliers = rows * 0.1, rows * rate
    key = f'instance="a",{KEY}'
    counters = {f'darksight_pvalue_bin_total{{{key},bin="{name}"}}': (rows / 20, rows / 20) for name in BINS}
    counters[f'darksight_decisions_total{{{key},decision="reject",reason="outlier"}}'] = outliers
    values = {name: f"0+{old}x{before} {before * old + new}+{new}x{after}" for name, (old, new) in counters.items()}
    for instance, late in (("a", 0), ("b", 1)):
        for name, (loose, tight) in {"alpha": (0.1, 0.001), "rate_bound": bounds}.items():
            labels = f'instance="{instance}",{KEY}'
            values[f"darksight_outlier_{name}{{{labels}}}"] = f"{loose!r}x{before + late} {tight!r}x{after - late}"
    values[f"darksight_calibration_size{{{key}}}"] = f"{size}x{before + after + 1}"
    return [{"series": name, "values": text} for name, text in values.items()]


@needs_promtool
def test_a_lower_alpha_raises_no_alarm(tmp_path: Path) -> None:
    """Windows that still hold the outliers of a looser rule are held against what that rule explains."""
    before, after = 70, 130

    assert_checks(
        tmp_path,
        with_tightened_rule(before, after, rate=0.001),
        [fired_by(before + after)],
        evaluated_every="2m",
    )


@needs_promtool
def test_drift_after_a_lower_alpha_is_found_by_the_new_rule(tmp_path: Path) -> None:
    """When the old rule has left the hour."""
    before, after = 70, 80

    assert_checks(
        tmp_path,
        # Half of what the old rule allows, fifty times what the new one does.
        with_tightened_rule(before, after, rate=0.05),
        [fired_by(before + 56), fired_by(before + 70, "DarkSightOutlierRateHigh")],
        evaluated_every="2m",
    )


@needs_promtool
def test_the_first_scrapes_of_a_new_target_raise_no_alarm(tmp_path: Path) -> None:
    """`increase` makes up to 2.6 times as much of them, but of rows and outliers alike: an explained rate stays one."""
    size, rank, rows = 9_999, 1_000, 2_000.0
    bound = float(beta.ppf(0.9975, rank, size + 1 - rank))
    key = f'instance="new",{KEY}'
    slopes = {f'darksight_pvalue_bin_total{{{key},bin="{name}"}}': rows / 20 for name in BINS}
    # As many outliers as calibration can explain, which is more than quiet traffic has.
    slopes[f'darksight_decisions_total{{{key},decision="reject",reason="outlier"}}'] = rows * bound
    # It has counted before it was scraped.
    values = {name: f"{slope}+{slope}x12" for name, slope in slopes.items()}
    gauges = {"calibration_size": size, "outlier_alpha": 0.1, "outlier_rate_bound": bound}
    values |= {f"darksight_{name}{{{key}}}": f"{value!r}x12" for name, value in gauges.items()}
    series = [{"series": name, "values": text} for name, text in values.items()]
    assert_checks(tmp_path, series, [fired_by(9)], evaluated_every="99s", scraped_every="50s")


@needs_promtool
def test_an_upgrade_raises_no_alert(tmp_path: Path) -> None:
    """Two replicas are upgraded ten minutes apart, to a release that names the bins of p-values otherwise.

    Rows that were counted under the old names were part of the shares for a day: PSI was 2.9 instead of 0.014.
    """
    rng = np.random.default_rng(3)
    usual, end = 500.0 + rng.integers(-20, 20, 20), 200
    values = {}
    for instance, minute in (("a", 60), ("b", 70)):
        key, left = f'job="darksight",instance="{instance}"', end - minute
        for number, (name, rows) in enumerate(zip(BINS, usual, strict=True)):
            counter = f"darksight_pvalue_bin_total{{{key},{KEY},bin="
            values[f'{counter}"{number}"}}'] = f"0+{rows}x{minute} stale"
            # Counters go on where they were.
            values[f'{counter}"{name}"}}'] = f"_x{minute + 1} {rows * minute}+{rows}x{left}"
        values[f"darksight_calibration_size{{{key},{KEY}}}"] = f"5000x{end}"
        values[f"darksight_metric_files_replaced_total{{{key}}}"] = f"0x{end}"
        values[f"darksight_metric_files_unreadable{{{key}}}"] = f"0x{end}"
        values[f"darksight_workers{{{key}}}"] = f"2x{end}"
        values[f"darksight_worker_starts_total{{{key}}}"] = f"2x{minute} 4x{left}"
        values[f"darksight_storage_starts_total{{{key}}}"] = f"1x{minute} 2x{left}"
        values[f'process_start_time_seconds{{{key},process="supervisor"}}'] = f"1x{minute} {60 * minute}x{left}"
    series = [{"series": name, "values": text} for name, text in values.items()]
    # Pending alerts too: with the minutes of the rules they could fire.
    none = {"expr": f"count_over_time(ALERTS[{end}m])", "eval_time": f"{end}m", "exp_samples": []}
    expected = {"expr": "model:darksight_psi:1d < bool 0.05", "eval_time": f"{end}m"}
    small = {**expected, "exp_samples": [{"labels": "{" + KEY + "}", "value": 1}]}
    assert_checks(tmp_path, series, [none, small], evaluated_every="1m")


def test_rules_add_up_the_bins_that_the_page_has(tmp_path: Path) -> None:
    """By name, so that a release that names them otherwise has other rules as well."""
    Counts(tmp_path, 0).model("m", "a" * 64, classes=3, calibration_rows=99)
    families = {family.name: family for family in make_registry(tmp_path).collect()}
    (named,) = [rule["expr"] for rule in rules() if rule.get("record") == "model:darksight_pvalue_bin:increase1d"]
    found = re.search(r'bin=~"([^"]+)"', named)

    assert found is not None
    assert [each.labels["bin"] for each in families["darksight_pvalue_bin"].samples] == found[1].split("|") == BINS


def test_constants_in_rules_are_ours() -> None:
    """Numbers that a rule cannot compute are those that our functions give."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in RULES)

    found = {float(number) for number in re.findall(r"\d+\.\d{6,}", text)}
    expected = [chi2.isf(1e-4, 19), math.log(450), math.log(100)]

    assert sorted(found) == pytest.approx(sorted(expected), rel=1e-12)


@pytest.mark.parametrize("size", [99, 499, 999, 2_499, 9_999])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_a_high_outlier_rate_is_as_unlikely_as_its_alert_says(size: int, alpha: float) -> None:
    """On the least rows that count, an undrifted rate reaches the limit less than once in 1,000,000."""
    rank = int(alpha * (size + 1) + 1e-9)
    bound = float(beta.ppf(0.9975, rank, size + 1 - rank))
    budget = max(2 * alpha, 1.5 * bound)

    rows, limit = math.ceil(4 / bound), min(6 * budget, 0.75)
    assert max(binom.sf(math.floor(limit * n), n, bound) for n in (rows, 2 * rows, 10 * rows)) < 1e-6


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_each_alert_has_a_summary_a_false_alarm_rate_and_a_runbook_entry(alert: dict[str, Any]) -> None:
    """And alerts of a model link to its points."""
    runbook = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
    notes, name = alert["annotations"], alert["alert"]

    assert {"summary", "description", "false_alarms", "runbook_url"} <= set(notes)
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert notes["runbook_url"] == f"{{{{ $externalLabels.runbook }}}}#{name.lower()}"
    entry = re.search(rf"(?ms)^### {name}\n(.*?)(?=^##|\Z)", runbook)
    assert entry is not None
    for heading in ("**Meaning.**", "**False alarms.**", "**Check.**", "**Action.**"):
        assert heading in entry[1]
    assert "{{ $labels.model }}" not in notes["summary"] or notes["explorer_url"].endswith(
        "/models/{{ $labels.model }}"
    )


def incidents(*files: str) -> dict[str, set[str]]:
    """Alerts that each case of promtool expects to fire, by case and by model where a case has several."""
    found: dict[str, set[str]] = {}
    for name in files:
        content = yaml.safe_load((DEPLOY / "prometheus" / "tests" / f"{name}.yml").read_text(encoding="utf-8"))
        for case in content["tests"]:
            for check in case.get("promql_expr_test", ()):
                for sample in check["exp_samples"]:
                    text = check["expr"] + sample["labels"]
                    model = re.search(r'model="(\w+)"', sample["labels"])
                    subject = f"{case['name']}{'' if model is None else f' ({model[1]})'}"
                    found.setdefault(subject, set()).update(re.findall(r'alertname="(\w+)"', text))
    return found


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_numbers_of_things_are_whole(alert: dict[str, Any]) -> None:
    """`increase` extrapolates, so that 3 rows are 3.07: only rates, evidence and PSI have decimals."""
    for text in alert["annotations"].values():
        for start in [found.start() for found in re.finditer(r"\| humanize }}", text)]:
            before, after = text[:start].rpartition("{{")[0].rstrip().lower(), text[start:].partition("}}")[2]
            assert before.endswith(("evidence", "psi")) or after.startswith(" calls per second"), text


def test_each_alert_is_tested_firing() -> None:
    """Beside the rules there is a case for every alert."""
    files = [path.stem for path in (DEPLOY / "prometheus" / "tests").glob("*.yml")]

    assert set().union(*incidents(*files).values()) == {alert["alert"] for alert in alerts()}


@needs("prometheus-alertmanager")
def test_each_incident_is_one_page(tmp_path: Path) -> None:
    """Of all alerts that a fault or a drift raises, a real Alertmanager sends one page: the others are its effects."""
    severities = {alert["alert"]: alert["labels"]["severity"] for alert in alerts()}
    cases = {subject: names for subject, names in incidents("causes", "processes", "drift").items() if names}
    labels = [
        {"alertname": name, "severity": severities[name], "instance": subject, "model": subject, "version": "v"}
        for subject, names in cases.items()
        for name in names
    ]
    with run_alertmanager(tmp_path) as alertmanager:
        alertmanager.post([{"labels": each, "annotations": {}} for each in labels])
        wait_until(lambda: len(alertmanager.notified()) >= len(cases), what="notifications")
        # What is not inhibited by now is sent after as long as the first.
        time.sleep(2.0)

        pages: dict[str, list[str]] = {}
        for receiver, name, subject in alertmanager.notified():
            if receiver == "pages":
                pages.setdefault(subject, []).append(name)

    assert {subject: names for subject, names in pages.items() if len(names) > 1} == {}
    expected = {
        "the database is away until the spool is full": "DarkSightSpoolDropping",
        "a worker dies at every start, and the instance is never ready": "DarkSightCrashLoop",
        "no version of a model is loaded, and its calls fail": "DarkSightModelNotLoaded",
    }
    drift = "a fifth of the rows are outliers: one page with evidence, one without the store, none if that is usual"
    expected |= {f"{drift} (stored)": "DarkSightDrift", f"{drift} (away)": "DarkSightOutlierRateHigh"}
    assert {subject: pages[subject] for subject in expected} == {key: [name] for key, name in expected.items()}


def test_alertmanager_accepts_its_configuration_and_routes_pages() -> None:
    """Amtool checks the file; an alert goes to the receiver of its severity."""
    amtool, path = find_tool("amtool"), DEPLOY / "alertmanager" / "alertmanager.yml"
    routes = [amtool, "config", "routes", "test", f"--config.file={path}"]

    assert subprocess.run([amtool, "check-config", path], capture_output=True).returncode == 0
    for severity, receiver in (("page", "pages"), ("ticket", "tickets")):
        done = subprocess.run([*routes, f"severity={severity}", "model=m"], capture_output=True, text=True)
        assert done.stdout.strip() == receiver


def names_in(expr: str) -> set[str]:
    """Metrics and recorded series that an expression reads."""
    return set(re.findall(r"\b[a-z]+:darksight_[a-z0-9_:]+|(?<![:\w])darksight_\w+", re.sub(r'"[^"]*"', "", expr)))


def test_rules_use_metrics_that_exist() -> None:
    """Every name in a rule is exported by the service or recorded by a rule."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    # Texts of alerts have queries in quotes.
    texts = [text.replace('"', "") for alert in alerts() for text in alert["annotations"].values()]
    used = {name for text in (*texts, *(rule["expr"] for rule in rules())) for name in names_in(text)}

    assert used - recorded - sample_names() == set()
    assert recorded & sample_names() == set()


def test_fast_rules_divide_times_and_change_nothing_else() -> None:
    """Windows, offsets, intervals and waiting times are divided; names of series, limits and texts stay."""
    rules = "interval: 1m\nfor: 5m\nexpr: rows:increase1h - increase(rows[1h] offset 1d) > 13.2\nsummary: for days, 5m"

    assert speed_up(rules, 60) == (
        "interval: 1s\nfor: 5s\nexpr: rows:increase1h - increase(rows[60s] offset 1440s) > 13.2\nsummary: for days, 5m"
    )


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_fast_rules_divide_every_time_of_the_repository(path: Path) -> None:
    """Every duration of the rules becomes its sixtieth, but no less than a second."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    text = path.read_text(encoding="utf-8")
    before = [int(found[:-1]) * units[found[-1]] for found in DURATIONS.findall(text)]
    after = [int(found[:-1]) * units[found[-1]] for found in DURATIONS.findall(speed_up(text, 60))]

    assert len(before) > 0
    assert after == [max(seconds // 60, 1) for seconds in before]
