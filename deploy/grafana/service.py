"""The dashboard of the service, by the same questions as that of a model."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Row

from deploy.grafana.panels import lines, number, rows, spans

__all__ = ["PANELS", "VARIABLES"]

_I = 'instance=~"$instance"'
# Other targets have metrics of these names without this label.
_P = 'process!=""'

VARIABLES = {"instance": "label_values(darksight_calls_total, instance)"}


def _rate(name: str, selector: str = _I) -> str:
    return f"rate({name}{{{selector}}}[$__rate_interval])"


def _mean(histogram: str) -> str:
    return f"sum({_rate(f'{histogram}_sum')}) / (sum({_rate(f'{histogram}_count')}) > 0)"


def _quantile(q: float, histogram: str) -> str:
    return f"histogram_quantile({q}, sum by (le) ({_rate(f'{histogram}_bucket')}))"


PANELS = (
    Row("Is something wrong?"),
    number(
        "Errors, 5 m",
        {"{{instance}}": f"instance:darksight_call_errors:ratio_rate5m{{{_I}}}"},
        "Share of calls that failed, without errors caused by the caller.",
        unit="percentunit",
        limits=(0.01,),
    ),
    number(
        "Latency, 99 %",
        {"{{instance}}": f"instance:darksight_score_seconds:p99_5m{{{_I}}}"},
        "Time to score one call of any size.",
        unit="s",
    ),
    number(
        "Spool used",
        {"{{instance}}": f"darksight_spool_used_ratio{{{_I}}}"},
        "Of the fullest spool. At 100 % points are dropped.",
        unit="percentunit",
        limits=(0.8,),
    ),
    number(
        "Workers",
        {"{{instance}}": f"darksight_workers{{{_I}}}"},
        "Worker processes that have started.",
    ),
    Row("Since when?"),
    spans(
        "Alerts",
        {
            "{{alertname}} {{instance}}": "max by (alertname, instance) "
            f'(ALERTS{{alertname=~"DarkSight.*",alertstate="firing",instance!="",{_I}}})'
        },
        "Times at which an alert fired.",
    ),
    lines(
        "Calls by result",
        {
            "{{code}}": f"sum by (code) ({_rate('darksight_call_results_total')}) > 0",
            "refused caller: {{kind}}": f"sum by (kind) ({_rate('darksight_auth_failures_total')}) > 0",
            "event: {{result}}": f"sum by (result) ({_rate('darksight_events_total')}) > 0",
            "all": f"sum({_rate('darksight_calls_total')})",
        },
        "gRPC status codes, callers without a valid token, and events of inference loggers.",
        unit="reqps",
    ),
    Row("What kind of fault?"),
    lines(
        "Latency of scoring",
        {
            "99 %": _quantile(0.99, "darksight_score_seconds"),
            "50 %": _quantile(0.5, "darksight_score_seconds"),
            "mean": _mean("darksight_score_seconds"),
        },
        "Time to score one call.",
        unit="s",
        width=8,
    ),
    lines(
        "Saturation",
        {
            "in flight": f"sum(darksight_calls_in_flight{{{_I}}})",
            "rejected per second": f"sum({_rate('darksight_overload_total')})",
            "rows in a call": _mean("darksight_batch_rows"),
        },
        "Add replicas when calls are rejected. Latency depends on the rows in a call.",
        width=8,
    ),
    lines(
        "Store",
        {
            "up": f"min(darksight_store_up{{{_I}}})",
            "errors per second": f"sum({_rate('darksight_store_errors_total')})",
            "rows pruned per second": f"sum({_rate('darksight_store_pruned_rows_total')})",
            "tags stored as _other per second": f"sum({_rate('darksight_tag_values_dropped_total')})",
        },
        "Up is 1 or 0. A tag is stored as _other if its key has too many values.",
        width=8,
    ),
    lines(
        "Size of the store",
        {
            "size": f"max(darksight_store_bytes{{{_I}}})",
            "growth per day": f"max(darksight_store_growth_bytes_per_day{{{_I}}})",
        },
        "Bound it with retention_days or keep_accepted.",
        unit="bytes",
        width=8,
    ),
    Row("Where?"),
    lines(
        "CPU",
        {"{{instance}} {{process}}": _rate("process_cpu_seconds_total", f"{_P},{_I}")},
        "Cores in use, by process. A worker has one.",
        width=8,
    ),
    lines(
        "Memory",
        {"{{instance}} {{process}}": f"process_resident_memory_bytes{{{_P},{_I}}}"},
        "Resident memory, by process.",
        unit="bytes",
        width=8,
    ),
    lines(
        "Starts of processes, 15 m",
        {
            "worker {{instance}}": f"increase(darksight_worker_starts_total{{{_I}}}[15m])",
            "storage worker {{instance}}": f"increase(darksight_storage_starts_total{{{_I}}}[15m])",
        },
        "More than one start per process means crashes.",
        width=8,
    ),
    Row("What does it cost?"),
    lines(
        "Age of the oldest point that is not stored",
        {
            "storage worker {{instance}}": f"darksight_drain_lag_seconds{{{_I}}}",
            "spool {{instance}}": f"darksight_spool_oldest_seconds{{{_I}}}",
        },
        "How far the explorer and the drift evidence are behind.",
        unit="s",
        width=8,
    ),
    lines(
        "Spool",
        {"{{instance}}": f"darksight_spool_bytes{{{_I}}}"},
        "Grows while the store is unavailable.",
        unit="bytes",
        width=8,
    ),
    lines(
        "Records",
        {
            "to the spool": f"sum({_rate('darksight_spool_appended_total')})",
            "dropped": f"sum({_rate('darksight_spool_dropped_total')})",
            "spool errors": f"sum({_rate('darksight_spool_errors_total')})",
            "damaged": f"sum({_rate('darksight_spool_damaged_records_total')})",
            "rows {{result}}": f"sum by (result) ({_rate('darksight_drain_rows_total')})",
            "outcomes": f"sum({_rate('darksight_outcomes_total')})",
        },
        "Per second. Dropped, errors, damaged and quarantined must be 0.",
        unit="cps",
        width=8,
    ),
    Row("What runs?"),
    rows(
        "Builds",
        f"max by (instance, version, python) (darksight_build_info{{{_I}}})",
        "Versions of the instances.",
        width=24,
        height=4,
    ),
)
