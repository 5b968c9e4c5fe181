"""The two dashboards as code: python -m deploy.grafana.dashboards writes dashboards/*.json.

Panels use the recording rules where there is one, so that a panel agrees with the alerts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DASHBOARDS", "FOLDER", "Dashboard", "Panel", "dashboard_files", "write"]

FOLDER = Path(__file__).with_name("dashboards")
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24

# Selectors by the variables of a dashboard.
_M = 'model=~"$model",version=~"$version"'
_I = 'instance=~"$instance"'
# Other targets have metrics of these names without this label.
_P = 'process!=""'


def _rate(name: str, selector: str) -> str:
    return f"rate({name}{{{selector}}}[$__rate_interval])"


def _quantile(q: float, histogram: str, selector: str) -> str:
    return f"histogram_quantile({q}, sum by (le) ({_rate(histogram, selector)}))"


_SHADOW_ACCEPTS = _rate("darksight_shadow_decisions_total", 'model=~"$model",decision="accept"')


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Parameters
    ----------
    title
        Title of the panel.
    queries
        PromQL by legend; a legend may contain labels as {{label}}.
    unit
        Grafana's name of the unit.
    help
        Description of the panel.
    kind
        timeseries, stat, bargauge, table or state-timeline.
    width, height
        Size in the grid, which has 24 columns.
    limits
        Values of horizontal lines.
    """

    title: str
    queries: Mapping[str, str]
    unit: str
    help: str
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    limits: tuple[float, ...] = ()

    @property
    def is_instant(self) -> bool:
        """Whether the panel shows the latest values only."""
        return self.kind in ("stat", "bargauge", "table")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Panels and the variables that select what they show."""

    uid: str
    title: str
    variables: Mapping[str, str]
    panels: Sequence[Panel]


MODEL = Dashboard(
    uid="darksight-model",
    title="DarkSight: model health",
    variables={
        "model": "label_values(darksight_calibration_size, model)",
        "version": 'label_values(darksight_calibration_size{model=~"$model"}, version)',
    },
    panels=(
        Panel(
            "Outliers, 1 h",
            {"{{model}} {{version}}": f"model:darksight_outlier:ratio_rate1h{{{_M}}}"},
            "percentunit",
            "Share of outliers among rows with a p-value. It is alpha without drift.",
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "PSI, 1 h",
            {"{{model}} {{version}}": f"model:darksight_psi:1h{{{_M}}}"},
            "none",
            "Distance of the p-values from uniform. An alert fires above 0.1 and above the critical value.",
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Evidence of a changed outlier rate",
            {"{{model}} {{version}}": f"model:darksight_drift_evidence{{{_M}}}"},
            "none",
            "Natural logarithm, since the outlier rule took effect. Reaches 4.6 with probability 1 % without drift.",
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Accuracy of accepted rows",
            {"{{model}} {{version}}": f'model:darksight_live:accuracy{{{_M},decision="accept"}}'},
            "percentunit",
            "Among rows with a known outcome.",
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Rows",
            {"{{model}} {{version}}": f"sum by (model, version) ({_rate('darksight_decisions_total', _M)})"},
            "cps",
            "Rows per second.",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Outlier ratio",
            {
                "5 m, {{version}}": f"model:darksight_outlier:ratio_rate5m{{{_M}}}",
                "1 h, {{version}}": f"model:darksight_outlier:ratio_rate1h{{{_M}}}",
                "6 h, {{version}}": f"model:darksight_outlier:ratio_rate6h{{{_M}}}",
                "alpha, {{version}}": f"max by (model, version) (darksight_outlier_alpha{{{_M}}})",
                "budget, {{version}}": f"model:darksight_outlier:budget{{{_M}}}",
            },
            "percentunit",
            "Alpha is the calibrated rate; burn-rate alerts use the budget.",
        ),
        Panel(
            "PSI of p-values",
            {
                "PSI 1 h, {{version}}": f"model:darksight_psi:1h{{{_M}}}",
                "critical 1 h, {{version}}": f"model:darksight_psi_critical:1h{{{_M}}}",
                "PSI 1 d, {{version}}": f"model:darksight_psi:1d{{{_M}}}",
                "critical 1 d, {{version}}": f"model:darksight_psi_critical:1d{{{_M}}}",
            },
            "none",
            "Without drift 1 in 10,000 windows is above the critical value. Alerts also need PSI > 0.1 and 1,000 rows.",
            limits=(0.1,),
        ),
        Panel(
            "Drift evidence (natural logarithm)",
            {
                "{{kind}}, {{version}}": f"model:darksight_drift:log_evidence{{{_M}}}",
                "{{kind}}, restarting, {{version}}": f"model:darksight_drift:restarting_log_evidence{{{_M}}}",
            },
            "none",
            "Since the version was deployed; an alert fires at 5.86 (1 false alarm in 100 versions). Restarting "
            "evidence forgets a drift that has ended: ln c once in c rows without drift.",
            limits=(5.858,),
        ),
        Panel(
            "Rows tested for drift",
            {"{{version}}": f"sum by (version) (darksight_drift_tested_rows{{{_M}}})"},
            "short",
            "Stored rows that the drift evidence is about, over all replicas.",
        ),
        Panel(
            "Evidence (natural logarithm)",
            {
                "since the rule took effect, {{version}}": f"model:darksight_drift_evidence{{{_M}}}",
                "last hour, {{version}}": f"model:darksight_window_evidence:1h{{{_M}}}",
                "last day, {{version}}": f"model:darksight_window_evidence:1d{{{_M}}}",
            },
            "none",
            "Alerts fire at 4.6 (since the rule: 1 false alarm in 100 rules) and 13.2 (windows: 1 a year).",
            limits=(4.605, 13.2),
        ),
        Panel(
            "Decisions by reason",
            {"{{decision}}: {{reason}}": f"sum by (decision, reason) ({_rate('darksight_decisions_total', _M)}) > 0"},
            "cps",
            "Rows per second.",
        ),
        Panel(
            "Log density, quantiles",
            {
                name: _quantile(q, "darksight_log_density_bucket", _M)
                for name, q in (("99 %", 0.99), ("50 %", 0.5), ("10 %", 0.1), ("1 %", 0.01))
            },
            "none",
            "All lines fall: all traffic moved to sparser parts of the map. Only the lowest falls: a new kind of row.",
        ),
        Panel(
            "p-values by bin, share of 1 h",
            {"{{bin}}": f"model:darksight_pvalue_bin:share1h{{{_M}}}"},
            "percentunit",
            "Without drift each of the 20 bins has 5 %. Bin 0 has the most unusual rows.",
        ),
        Panel(
            "Outliers by predicted class",
            {
                "{{class}}": f"topk(10, sum by (class) ({_rate('darksight_predicted_outliers_total', _M)})"
                f" / (sum by (class) ({_rate('darksight_predicted_total', _M)}) > 0))"
            },
            "percentunit",
            "Share of outliers among the rows of a predicted class, the ten highest.",
        ),
        Panel(
            "Predicted classes",
            {
                "{{class}}": f"topk(10, sum by (class) ({_rate('darksight_predicted_total', _M)})"
                f" / ignoring (class) group_left () (sum({_rate('darksight_predicted_total', _M)}) > 0))"
            },
            "percentunit",
            "Share of each class, the ten largest.",
        ),
        Panel(
            "Accuracy of rows with a known outcome",
            {
                "{{decision}}, {{version}}": f"model:darksight_live:accuracy{{{_M}}}",
                "certified, {{version}}": f"max by (model, version) (darksight_certified_accuracy{{{_M}}})",
            },
            "percentunit",
            "The accuracy of accepted rows should be above the certified accuracy, that of rejected rows below it.",
        ),
        Panel(
            "Rows with a known outcome",
            {"{{decision}}, {{version}}": f"max by (model, version, decision) (darksight_live_labelled_rows{{{_M}}})"},
            "none",
            "In the window of the storage worker. With few rows the accuracy is uncertain.",
        ),
        Panel(
            "Firing alerts",
            {"{{alertname}}": f'max by (alertname) (ALERTS{{alertname=~"DarkSight.*",alertstate="firing",{_M}}})'},
            "none",
            "Firing alerts of the model.",
            kind="state-timeline",
        ),
        Panel(
            "Accepted by the shadow version; accepted without a score",
            {
                "{{version}} would accept": f"sum by (model, version) ({_SHADOW_ACCEPTS}) > 0",
                "{{version}} accepted unscored": f"sum by (model, version) ({_rate('darksight_fail_open_total', _M)})",
            },
            "cps",
            "Rows per second. Rows accepted without a score must be 0.",
        ),
        Panel(
            "Bundles",
            {"": f"max by (model, version, sha256, classes) (darksight_bundle_info{{{_M}}})"},
            "none",
            "Served versions and the sha256 of their files.",
            kind="table",
            width=24,
            height=5,
        ),
    ),
)

SERVICE = Dashboard(
    uid="darksight-service",
    title="DarkSight: service health",
    variables={"instance": "label_values(darksight_calls_total, instance)"},
    panels=(
        Panel(
            "Calls",
            {"calls": f"sum({_rate('darksight_calls_total', _I)})"},
            "reqps",
            "Calls per second.",
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Errors, 5 m",
            {"{{instance}}": f"instance:darksight_call_errors:ratio_rate5m{{{_I}}}"},
            "percentunit",
            "Share of calls that failed, without errors caused by the caller.",
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Latency, 99 %",
            {"{{instance}}": f"instance:darksight_score_seconds:p99_5m{{{_I}}}"},
            "s",
            "Time to score one call of any size.",
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Spool used",
            {"{{instance}}": f"darksight_spool_used_ratio{{{_I}}}"},
            "percentunit",
            "Of the fullest spool. At 100 % points are dropped.",
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Calls by result",
            {"{{code}}": f"sum by (code) ({_rate('darksight_call_results_total', _I)}) > 0"},
            "reqps",
            "gRPC status codes.",
        ),
        Panel(
            "Latency of scoring",
            {
                name: _quantile(q, "darksight_score_seconds_bucket", _I)
                for name, q in (("99 %", 0.99), ("90 %", 0.9), ("50 %", 0.5))
            }
            | {
                "mean": f"sum({_rate('darksight_score_seconds_sum', _I)})"
                f" / (sum({_rate('darksight_score_seconds_count', _I)}) > 0)"
            },
            "s",
            "Time to score one call.",
        ),
        Panel(
            "Rows in a call",
            {
                "mean": f"sum({_rate('darksight_batch_rows_sum', _I)})"
                f" / (sum({_rate('darksight_batch_rows_count', _I)}) > 0)",
                "95 %": _quantile(0.95, "darksight_batch_rows_bucket", _I),
            },
            "none",
            "Latency depends on it.",
        ),
        Panel(
            "Saturation",
            {
                "in flight": f"sum(darksight_calls_in_flight{{{_I}}})",
                "rejected per second": f"sum({_rate('darksight_overload_total', _I)})",
            },
            "none",
            "Add replicas when calls are rejected.",
        ),
        Panel(
            "Processes",
            {
                "workers": f"sum(darksight_workers{{{_I}}})",
                "worker starts, 15 m": f"sum(increase(darksight_worker_starts_total{{{_I}}}[15m]))",
                "storage worker starts, 15 m": f"sum(increase(darksight_storage_starts_total{{{_I}}}[15m]))",
            },
            "none",
            "More than one start per process means crashes.",
        ),
        Panel(
            "Rejected callers and outcomes",
            {
                "rejected: {{kind}}": f"sum by (kind) ({_rate('darksight_auth_failures_total', _I)})",
                "outcomes": f"sum({_rate('darksight_outcomes_total', _I)})",
            },
            "cps",
            "Per second.",
        ),
        Panel(
            "Spool",
            {"{{instance}}": f"darksight_spool_bytes{{{_I}}}"},
            "bytes",
            "Grows while the store is unavailable.",
        ),
        Panel(
            "Spool: records",
            {
                "written": f"sum({_rate('darksight_spool_appended_total', _I)})",
                "dropped": f"sum({_rate('darksight_spool_dropped_total', _I)})",
                "errors": f"sum({_rate('darksight_spool_errors_total', _I)})",
            },
            "cps",
            "Per second. Dropped and errors must be 0.",
        ),
        Panel(
            "Drain: age of the oldest record",
            {
                "storage worker {{instance}}": f"darksight_drain_lag_seconds{{{_I}}}",
                "spool {{instance}}": f"darksight_spool_oldest_seconds{{{_I}}}",
            },
            "s",
            "How far the explorer is behind.",
        ),
        Panel(
            "Drain: rows",
            {"{{result}}": f"sum by (result) ({_rate('darksight_drain_rows_total', _I)})"},
            "cps",
            "Rows per second that were inserted, were already stored, or were damaged.",
        ),
        Panel(
            "Store",
            {
                "up": f"min(darksight_store_up{{{_I}}})",
                "errors per second": f"sum({_rate('darksight_store_errors_total', _I)})",
                "rows pruned per second": f"sum({_rate('darksight_store_pruned_rows_total', _I)})",
            },
            "none",
            "Up is 1 or 0.",
        ),
        Panel(
            "Counters",
            {
                "files replaced": f"sum(darksight_metric_files_replaced_total{{{_I}}})",
                "files unreadable": f"sum(darksight_metric_files_unreadable{{{_I}}})",
                "versions without a file": f"sum(darksight_models_refused_total{{{_I}}})",
            },
            "none",
            "Whether the metrics are complete.",
        ),
        Panel(
            "CPU",
            {"{{instance}} {{process}}": _rate("process_cpu_seconds_total", f"{_P},{_I}")},
            "none",
            "Cores in use, by process. A worker has one.",
        ),
        Panel(
            "Memory",
            {"{{instance}} {{process}}": f"process_resident_memory_bytes{{{_P},{_I}}}"},
            "bytes",
            "Resident memory, by process.",
        ),
        Panel(
            "Firing alerts",
            {
                "{{alertname}} {{instance}}": "max by (alertname, instance) "
                f'(ALERTS{{alertname=~"DarkSight.*",alertstate="firing",instance!="",{_I}}})'
            },
            "none",
            "Firing alerts of the instances.",
            kind="state-timeline",
        ),
        Panel(
            "Builds",
            {"": f"max by (instance, version, python) (darksight_build_info{{{_I}}})"},
            "none",
            "Versions of the instances.",
            kind="table",
        ),
    ),
)

DASHBOARDS = (MODEL, SERVICE)


def _panel(number: int, panel: Panel, x: int, y: int, *, is_model: bool) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, *({"color": "red", "value": limit} for limit in panel.limits)]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        style = "line" if panel.limits else "off"
        defaults["custom"] = {"fillOpacity": 0, "showPoints": "never", "thresholdsStyle": {"mode": style}}
    link = {"title": "Points in the explorer", "url": "${explorer}/models/${model}", "targetBlank": True}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "links": [link] if is_model else [],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
                "instant": panel.is_instant,
                "range": not panel.is_instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for i, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": name != "model",
        "multi": False,
        "allValue": ".*",
        "current": {} if name == "model" else {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _json(dashboard: Dashboard) -> dict[str, Any]:
    is_model = "model" in dashboard.variables
    panels, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(dashboard.panels, 1):
        if x + panel.width > _WIDTH:
            x, y, row = 0, y + row, 0
        panels.append(_panel(number, panel, x, y, is_model=is_model))
        x, row = x + panel.width, max(row, panel.height)
    explorer = "http://localhost:8082"
    address = {"text": explorer, "value": explorer}
    other = next(each for each in DASHBOARDS if each is not dashboard)
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["darksight"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                *(_variable(name, query) for name, query in dashboard.variables.items()),
                {"name": "explorer", "type": "textbox", "query": explorer, "current": address, "options": [address]},
            ]
        },
        "annotations": {"list": []},
        "links": [
            {"type": "link", "title": other.title, "url": f"/d/{other.uid}", "keepTime": True, "icon": "dashboard"},
            {
                "type": "link",
                "title": "Explorer",
                "url": "${explorer}/models/${model}" if is_model else "${explorer}",
                "targetBlank": True,
                "icon": "external link",
            },
        ],
        "panels": panels,
    }


def dashboard_files() -> dict[Path, str]:
    """Contents of each file."""
    return {FOLDER / f"{dashboard.uid}.json": json.dumps(_json(dashboard), indent=2) + "\n" for dashboard in DASHBOARDS}


def write() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in dashboard_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
