"""Every metric: its name, its labels, what it says and why it is there. The table in deploy/README.md is this one.

Labels have small closed sets of values. Models are bounded by the number of counter files, classes by `MAX_CLASSES`;
a request id is never a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric", "sample_names"]

Kind = Literal["counter", "gauge", "histogram", "info"]

_VERSION = ("model", "version")


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of series.

    Parameters
    ----------
    name
        As Prometheus stores it; of a histogram, without `_bucket`.
    kind
        Type.
    labels
        Names of its labels.
    help
        What the number is.
    why
        The question it answers.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    why: str


METRICS = (
    Metric(
        "darksight_decisions_total",
        "counter",
        (*_VERSION, "decision", "reason"),
        "Rows by what the gate decided and why.",
        "How much is refused, and for which reason; the outlier budget is burnt here.",
    ),
    Metric(
        "darksight_pvalue_bin_total",
        "counter",
        (*_VERSION, "bin"),
        "Rows by bin of their p-value, 20 bins of equal width, not cumulative.",
        "p-values are uniform while nothing changes, so PSI needs no reference and adds up across replicas.",
    ),
    Metric(
        "darksight_predicted_total",
        "counter",
        (*_VERSION, "class"),
        "Rows by predicted class; classes beyond the first 100 are _other.",
        "A class that comes or goes is drift that no single row shows.",
    ),
    Metric(
        "darksight_predicted_outliers_total",
        "counter",
        (*_VERSION, "class"),
        "Outliers by predicted class; classes beyond the first 100 are _other.",
        "Which class the strange rows are taken for.",
    ),
    Metric(
        "darksight_log_density",
        "histogram",
        _VERSION,
        "Log density of the map at the rows. Negative values have no sum in OpenMetrics, so there is none.",
        "Quantiles over time: whether all rows move to sparser places, or only a tail.",
    ),
    Metric(
        "darksight_score_seconds",
        "histogram",
        _VERSION,
        "Time to score one call, its reading from and writing to the wire left out.",
        "Latency that this service adds to a prediction.",
    ),
    Metric(
        "darksight_batch_rows",
        "histogram",
        _VERSION,
        "Rows in one call.",
        "Latency and throughput mean nothing without it.",
    ),
    Metric(
        "darksight_fail_open_total",
        "counter",
        _VERSION,
        "Rows that could not be scored and were accepted because the model is set to fail open.",
        "Each of them was acted on unwatched: alarmed at the first.",
    ),
    Metric(
        "darksight_shadow_decisions_total",
        "counter",
        (*_VERSION, "decision", "reason"),
        "Rows by what a shadow version would have decided.",
        "What activating it would change.",
    ),
    Metric(
        "darksight_calibration_size",
        "gauge",
        _VERSION,
        "Calibration rows of the bundle.",
        "The noise of the reference, a part of PSI's critical value.",
    ),
    Metric(
        "darksight_outlier_alpha",
        "gauge",
        _VERSION,
        "Level of the outlier rule in force; 0 without one.",
        "The outlier ratio of quiet traffic, the line to draw beside it.",
    ),
    Metric(
        "darksight_outlier_rank",
        "gauge",
        _VERSION,
        "Rank k of the outlier rule: p-value <= k / (calibration size + 1); 0 without a rule.",
        "The null hypothesis of the evidence below.",
    ),
    Metric(
        "darksight_outlier_rate_bound",
        "gauge",
        _VERSION,
        "Highest outlier rate put down to calibration: 0.25 % of calibration sets have a higher one. 0 without a rule.",
        "The rate that evidence in a time window is measured against.",
    ),
    Metric(
        "darksight_drift_rows",
        "gauge",
        _VERSION,
        "Rows with a p-value since the outlier rule in force came into force.",
        "Counts of replicas add up to the evidence of all of them.",
    ),
    Metric(
        "darksight_drift_outliers",
        "gauge",
        _VERSION,
        "Outliers among them.",
        "As above.",
    ),
    Metric(
        "darksight_drift_evidence",
        "gauge",
        _VERSION,
        "Natural log of the evidence that the outlier rate has left its calibrated value, from this replica's rows.",
        "Reaches ln 100 = 4.6 with probability 1 % ever, however often it is read.",
    ),
    Metric(
        "darksight_bundle_info",
        "info",
        (*_VERSION, "sha256", "classes"),
        "Bundles that were served.",
        "From the short version of the other metrics to the file.",
    ),
    Metric(
        "darksight_live_labelled_rows",
        "gauge",
        (*_VERSION, "decision"),
        "Rows with a known outcome, in the storage worker's window.",
        "How much the accuracy below can be trusted.",
    ),
    Metric(
        "darksight_live_correct_rows",
        "gauge",
        (*_VERSION, "decision"),
        "Those of them that were predicted right.",
        "Accuracy of what was accepted, and of what was refused.",
    ),
    Metric(
        "darksight_certified_accuracy",
        "gauge",
        _VERSION,
        "Accuracy of accepted rows that the bundle's certificate promises; absent without one.",
        "What the live accuracy is held against.",
    ),
    Metric("darksight_calls_total", "counter", (), "Calls that came in.", "Rate of the service."),
    Metric("darksight_calls_in_flight", "gauge", (), "Calls being answered.", "Saturation."),
    Metric(
        "darksight_call_results_total",
        "counter",
        ("code",),
        "Calls by gRPC status code.",
        "Error rate, and whose fault the errors are.",
    ),
    Metric(
        "darksight_overload_total",
        "counter",
        (),
        "Calls refused because too many were in flight.",
        "The signal to add replicas.",
    ),
    Metric(
        "darksight_auth_failures_total",
        "counter",
        ("kind",),
        "Calls refused because of who made them.",
        "A token that ran out, or someone who is trying keys.",
    ),
    Metric("darksight_outcomes_total", "counter", (), "Outcomes reported.", "Whether labels still arrive."),
    Metric(
        "darksight_workers",
        "gauge",
        (),
        "Worker processes that have started.",
        "Whether all of them are there.",
    ),
    Metric(
        "darksight_worker_starts_total",
        "counter",
        (),
        "Starts of worker processes.",
        "More than one for each worker since the start of the service is a crash.",
    ),
    Metric(
        "darksight_spool_bytes",
        "gauge",
        (),
        "Bytes in the spools of all workers.",
        "Grows while the store is away.",
    ),
    Metric(
        "darksight_spool_used_ratio",
        "gauge",
        (),
        "Share of its quota that the fullest spool uses.",
        "At 1 points are dropped.",
    ),
    Metric(
        "darksight_spool_oldest_seconds",
        "gauge",
        (),
        "Age of the oldest record in a spool.",
        "How far the store is behind, seen from the worker.",
    ),
    Metric(
        "darksight_spool_appended_total",
        "counter",
        (),
        "Records written to spools.",
        "What the drain must keep up with.",
    ),
    Metric(
        "darksight_spool_dropped_total",
        "counter",
        (),
        "Records that were not written: quota reached or disk broken.",
        "Points that no report will ever show.",
    ),
    Metric(
        "darksight_spool_errors_total", "counter", (), "Failed writes to spools.", "A disk that is full or failing."
    ),
    Metric(
        "darksight_drain_lag_seconds",
        "gauge",
        (),
        "Age of the oldest record that is not in the store, seen from the storage worker.",
        "How old what the explorer shows is.",
    ),
    Metric(
        "darksight_drain_rows_total",
        "counter",
        ("result",),
        "Rows that the drain took from spools: inserted, duplicate (already in the store), quarantined (damaged).",
        "That the drain moves, and what was damaged on the way.",
    ),
    Metric("darksight_store_up", "gauge", (), "Whether the store answered the last time.", "First thing to look at."),
    Metric(
        "darksight_store_errors_total", "counter", (), "Failed operations on the store.", "A store that is sick but up."
    ),
    Metric(
        "darksight_store_pruned_rows_total",
        "counter",
        (),
        "Rows removed because they were older than is kept.",
        "That retention works.",
    ),
    Metric(
        "darksight_storage_starts_total",
        "counter",
        (),
        "Starts of the storage worker process.",
        "More than one is a crash.",
    ),
    Metric(
        "darksight_counter_files_replaced_total",
        "counter",
        (),
        "Damaged counter files that were begun anew.",
        "The counters themselves lost something.",
    ),
    Metric(
        "darksight_counter_files_unreadable",
        "gauge",
        (),
        "Counter files that could not be read for this scrape.",
        "Whether this page is complete.",
    ),
    Metric(
        "darksight_models_refused_total",
        "counter",
        (),
        "Versions beyond the limit of counter files, which share the model _other.",
        "Why a version has no series of its own.",
    ),
    Metric(
        "darksight_build_info", "info", ("version", "python"), "What is running.", "Which replicas have been updated."
    ),
)
"""In the order in which they are shown."""


def sample_names() -> set[str]:
    """Names under which samples are stored: those of the metrics, and the parts of histograms."""
    names = {metric.name for metric in METRICS if metric.kind != "histogram"}
    for metric in METRICS:
        if metric.kind == "histogram":
            # A histogram of numbers below zero has no sum, and prometheus_client then leaves out its count as well.
            parts = ("_bucket",) if metric.name == "darksight_log_density" else ("_bucket", "_count", "_sum")
            names |= {metric.name + part for part in parts}
    return names
