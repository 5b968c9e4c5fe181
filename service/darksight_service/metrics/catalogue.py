"""All metrics: name, labels, help text and purpose. The documentation shows the same table.

Labels have few values: models are bounded by the number of metric files, classes by `MAX_CLASSES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric", "sample_names"]

Kind = Literal["counter", "gauge", "histogram", "info"]

_VERSION = ("model", "version")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Parameters
    ----------
    name
        Name in Prometheus; for a histogram without `_bucket`.
    kind
        Metric type.
    labels
        Label names.
    help
        What the number is.
    why
        What it is good for.
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
        "Rows by decision and reason of the gate.",
        "How much is rejected and why; the outlier budget is computed from it.",
    ),
    Metric(
        "darksight_pvalue_bin_total",
        "counter",
        (*_VERSION, "bin"),
        "Rows by p-value, in 20 bins of equal width, not cumulative; a bin is named by its upper end.",
        "p-values are uniform without drift: each bin has 5 %, over any number of replicas.",
    ),
    Metric(
        "darksight_predicted_total",
        "counter",
        (*_VERSION, "class"),
        "Rows by predicted class; classes beyond the first 100 are _other.",
        "A class that appears or disappears is drift that no single row shows.",
    ),
    Metric(
        "darksight_predicted_outliers_total",
        "counter",
        (*_VERSION, "class"),
        "Outliers by predicted class; classes beyond the first 100 are _other.",
        "Which classes the outliers are predicted as.",
    ),
    Metric(
        "darksight_log_density",
        "histogram",
        _VERSION,
        "Log density of the map at the rows. OpenMetrics allows no sum of negative values, so there is none.",
        "Quantiles over time: whether all rows move to sparser parts of the map, or only a tail.",
    ),
    Metric(
        "darksight_score_seconds",
        "histogram",
        _VERSION,
        "Time to score one call, without decoding and encoding of messages.",
        "Latency that the service adds to a prediction.",
    ),
    Metric("darksight_batch_rows", "histogram", _VERSION, "Rows per call.", "Context for latency and throughput."),
    Metric(
        "darksight_fail_open_total",
        "counter",
        _VERSION,
        "Rows that could not be scored and were accepted because the model fails open.",
        "Predictions that were accepted without a score; an alert fires at the first.",
    ),
    Metric(
        "darksight_shadow_decisions_total",
        "counter",
        (*_VERSION, "decision", "reason"),
        "Rows by decision and reason of a shadow version.",
        "What activating the version would change.",
    ),
    Metric(
        "darksight_calibration_size",
        "gauge",
        _VERSION,
        "Calibration rows of the bundle.",
        "Noise of the reference, part of the critical value of PSI.",
    ),
    Metric(
        "darksight_outlier_alpha",
        "gauge",
        _VERSION,
        "Level of the active outlier rule; 0 without a rule.",
        "The expected outlier rate without drift, for comparison.",
    ),
    Metric(
        "darksight_outlier_rate_bound",
        "gauge",
        _VERSION,
        "Highest outlier rate that calibration noise explains: 0.25 % of calibration sets exceed it. 0 without a rule.",
        "The budget of outliers is at least 1.5 times this rate.",
    ),
    Metric(
        "darksight_drift_log_evidence",
        "gauge",
        (*_VERSION, "kind"),
        "Natural log of the evidence that outlier scores, confidence or predicted classes of stored rows have changed.",
        "Without drift any kind ever reaches ln 350 = 5.86 with probability 1 %, however often it is read.",
    ),
    Metric(
        "darksight_drift_restarting_log_evidence",
        "gauge",
        (*_VERSION, "kind"),
        "The same, of bets that are opened anew at every row: it forgets a drift that has ended.",
        "Without drift it reaches ln c after at least c rows on average.",
    ),
    Metric(
        "darksight_drift_tested_rows",
        "gauge",
        _VERSION,
        "Rows that the drift evidence of this replica is about.",
        "Few rows are little evidence.",
    ),
    Metric(
        "darksight_drift_verdict",
        "gauge",
        (*_VERSION, "verdict"),
        "1 for the kind of drift of the newest rows, 0 for the others: none, class_mix, new_content, less_sure, surer.",
        "What kind of drift it is, for the text of an alert; the explorer has the reason.",
    ),
    Metric(
        "darksight_segment_log_evidence",
        "gauge",
        (*_VERSION, "segment"),
        "Natural log of the evidence that a segment is unlike the calibration rows; of tags named by the policy.",
        "For a chart of one segment; whether it is found depends on all of them.",
    ),
    Metric(
        "darksight_segment_found",
        "gauge",
        (*_VERSION, "segment"),
        "1 for a segment that has changed, at a level of 5 % of false discoveries, 0 for the others.",
        "At most 5 % of the segments found are so by chance, on average, however often it is read.",
    ),
    Metric(
        "darksight_segment_explains",
        "gauge",
        (*_VERSION, "segment"),
        "1 for the segments, or pairs of them, that explain a drift, 0 for the others.",
        "The name of the cause, for the text of an alert.",
    ),
    Metric(
        "darksight_accuracy_estimate",
        "gauge",
        (*_VERSION, "bound"),
        "Estimated accuracy of the newest rows without labels, and its range: value, low, high; absent while withheld.",
        "What a drift costs before any label is known; an estimate, not a guarantee.",
    ),
    Metric(
        "darksight_accuracy_withheld",
        "gauge",
        _VERSION,
        "1 while the estimated accuracy is withheld because the back-test does not cover the newest rows.",
        "Tells a withheld estimate from a service without traffic.",
    ),
    Metric(
        "darksight_audit_accuracy",
        "gauge",
        (*_VERSION, "bound"),
        "Accuracy of accepted rows from labels of the random audit: value, low, high; absent without enough labels.",
        "95 % interval, time-uniform while rows are added; drawn rows without a label count as wrong, then as right.",
    ),
    Metric(
        "darksight_audit_labels",
        "gauge",
        _VERSION,
        "Labels of the random audit that this accuracy is from.",
        "Few labels are a wide interval.",
    ),
    Metric(
        "darksight_audit_labels_needed",
        "gauge",
        _VERSION,
        "More labels of the audit that would settle whether the certificate holds; 0 if settled or without one.",
        "How much work an answer takes; the review page has the rows.",
    ),
    Metric(
        "darksight_certificate_log_evidence",
        "gauge",
        _VERSION,
        "Natural log of the evidence that accepted rows are less accurate than certified, its highest value so far.",
        "While the certificate holds it ever reaches ln 100 = 4.6 with probability 1 %, whichever rows get labels.",
    ),
    Metric(
        "darksight_bundle_info",
        "info",
        (*_VERSION, "sha256", "classes"),
        "Bundles that were served.",
        "Maps the short version of the other metrics to the bundle file.",
    ),
    Metric(
        "darksight_live_labelled_rows",
        "gauge",
        (*_VERSION, "decision"),
        "Rows with a known outcome in the storage worker's window.",
        "Sample size of the live accuracy.",
    ),
    Metric(
        "darksight_live_correct_rows",
        "gauge",
        (*_VERSION, "decision"),
        "Rows among them that were predicted correctly.",
        "Accuracy of accepted and of rejected rows.",
    ),
    Metric(
        "darksight_certified_accuracy",
        "gauge",
        _VERSION,
        "Accuracy of accepted rows that the bundle's certificate promises; absent without one.",
        "Target for the live accuracy.",
    ),
    Metric("darksight_calls_total", "counter", (), "Calls received.", "Request rate."),
    Metric("darksight_calls_in_flight", "gauge", (), "Calls in progress.", "Saturation."),
    Metric(
        "darksight_call_results_total",
        "counter",
        ("code",),
        "Calls by gRPC status code.",
        "Error rate, split by client and server errors.",
    ),
    Metric(
        "darksight_overload_total",
        "counter",
        (),
        "Calls refused because of too many concurrent calls.",
        "Signal to add replicas.",
    ),
    Metric(
        "darksight_auth_failures_total",
        "counter",
        ("kind",),
        "Calls refused because of a missing, invalid, expired or insufficient token.",
        "An expired token, or an attack.",
    ),
    Metric(
        "darksight_events_total",
        "counter",
        ("result",),
        "Events of inference loggers: scored, unjoined (scored without the tags of a request that is not there), of a "
        "request, or refused. A retry counts again.",
        "Whether a logger still sends, and whether its events are understood.",
    ),
    Metric("darksight_outcomes_total", "counter", (), "Outcomes reported.", "Whether labels still arrive."),
    Metric("darksight_workers", "gauge", (), "Worker processes that have started.", "Whether all workers run."),
    Metric(
        "darksight_worker_starts_total",
        "counter",
        (),
        "Starts of worker processes.",
        "More than one per worker means a crash.",
    ),
    Metric(
        "darksight_spool_bytes",
        "gauge",
        (),
        "Bytes in the spools of all workers.",
        "Grows while the store is unavailable.",
    ),
    Metric(
        "darksight_spool_used_ratio",
        "gauge",
        (),
        "Share of the quota that the fullest spool uses.",
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
        "Rate that the drain must keep up with.",
    ),
    Metric(
        "darksight_spool_dropped_total",
        "counter",
        (),
        "Records dropped because the quota was reached or the disk failed.",
        "Points that are lost to the store.",
    ),
    Metric("darksight_spool_errors_total", "counter", (), "Failed writes to spools.", "A full or failing disk."),
    Metric(
        "darksight_drain_lag_seconds",
        "gauge",
        (),
        "Age of the oldest record that is not in the store yet, seen from the storage worker.",
        "Delay of the explorer and of live accuracy.",
    ),
    Metric(
        "darksight_drain_rows_total",
        "counter",
        ("result",),
        "Rows drained from spools: inserted, duplicate (already stored) or quarantined (damaged).",
        "Progress of the drain, and damaged records.",
    ),
    Metric("darksight_store_up", "gauge", (), "Whether the last store operation succeeded.", "First thing to check."),
    Metric(
        "darksight_store_errors_total", "counter", (), "Failed store operations.", "A store that is up but unreliable."
    ),
    Metric(
        "darksight_store_pruned_rows_total", "counter", (), "Rows deleted by retention.", "Whether retention works."
    ),
    Metric(
        "darksight_tag_values_dropped_total",
        "counter",
        (),
        "Tags stored as _other because their key has `max_tag_values` other values, or the model 64 other keys.",
        "A key with too many values, such as an id, is of no use as a segment.",
    ),
    Metric(
        "darksight_storage_starts_total", "counter", (), "Starts of the storage worker.", "More than one means a crash."
    ),
    Metric(
        "darksight_state_rebuilds_total",
        "counter",
        (),
        "Rebuilds of the state from an audit trail that was not the one before, such as that of a restored database.",
        "Changes made since the backup are lost.",
    ),
    Metric(
        "darksight_audit_trail_broken",
        "gauge",
        (),
        "Whether the last check found an altered entry in the audit trail.",
        "Somebody changed the database past the service.",
    ),
    Metric(
        "darksight_clock_offset_seconds",
        "gauge",
        (),
        "Seconds by which the clock jumped ahead and is not believed yet.",
        "Retention by age waits until the jump is confirmed.",
    ),
    Metric(
        "darksight_token_file_errors",
        "gauge",
        (),
        "Lines of the token file that are refused; 1 if the file cannot be read.",
        "Callers are refused whom the file was meant to permit.",
    ),
    Metric(
        "darksight_versions_not_loaded",
        "gauge",
        (),
        "Active and shadow versions that could not be loaded.",
        "A model answers with its previous version, or not at all.",
    ),
    Metric("darksight_ready", "gauge", (), "Whether every worker takes calls for every model.", "As the health page."),
    Metric(
        "darksight_hung_processes_total",
        "counter",
        (),
        "Processes that stopped reporting to the supervisor and were killed.",
        "A stalled disk, or a bug.",
    ),
    Metric(
        "darksight_metric_files_replaced_total",
        "counter",
        (),
        "Damaged metric files that were replaced.",
        "Counts were lost.",
    ),
    Metric(
        "darksight_metric_files_unreadable",
        "gauge",
        (),
        "Metric files that could not be read for this scrape.",
        "Whether this page is complete.",
    ),
    Metric(
        "darksight_models_refused_total",
        "counter",
        (),
        "Active or shadow versions beyond the limit of metric files (max_models), counted as the model _other.",
        "Why a version has no series of its own.",
    ),
    Metric(
        "darksight_certificate_expiration_timestamp_seconds",
        "gauge",
        (),
        "When the certificate of the server, or the first of its chain, expires; none without TLS.",
        "Calls fail from then on.",
    ),
    Metric(
        "darksight_build_info",
        "info",
        ("version", "python"),
        "Version of DarkSight and of Python.",
        "Which replicas have been updated.",
    ),
)
"""In the order of the page."""


def sample_names() -> set[str]:
    """Names of the series that Prometheus stores: of the metrics, and of the parts of histograms."""
    names = {metric.name for metric in METRICS if metric.kind != "histogram"}
    for metric in METRICS:
        if metric.kind == "histogram":
            # Without a sum prometheus_client also omits the count of a histogram.
            parts = ("_bucket",) if metric.name == "darksight_log_density" else ("_bucket", "_count", "_sum")
            names |= {metric.name + part for part in parts}
    return names
