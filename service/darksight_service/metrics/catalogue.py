"""All metrics: name, labels, help text, purpose, and where their numbers are. The documentation shows the same table.

Labels have few values: models are bounded by the number of metric files, classes by `MAX_CLASSES`.

A metric with a `file` is a section of the metric files of this kind: a process writes the section, and `exposition`
needs to know no more. It computes the others: those of model versions, and those of the supervisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from darksight_core.drift.detectors import KINDS

__all__ = [
    "AUTH_FAILURES",
    "DRIFT_KINDS",
    "EVENT_RESULTS",
    "GRPC_CODES",
    "METRICS",
    "VERDICTS",
    "Metric",
    "sample_names",
]

GRPC_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of the gRPC status codes, by number."""

AUTH_FAILURES = ("missing", "invalid", "expired", "forbidden")
"""Why a caller was refused: no token, unknown token, expired token, token without the scope."""

EVENT_RESULTS = ("scored", "request", "refused")
"""Results of an event of an inference logger: scored and recorded, the same without the tags of its request, an event
of a request, or refused."""

DRIFT_KINDS = tuple(KINDS)
"""Kinds of drift evidence, as in `darksight_core.drift.detectors`."""

VERDICTS = ("none", "class_mix", "new_content", "less_sure", "surer", "mixed")
"""Kinds of drift, as in `darksight_core.drift.verdict`."""

Kind = Literal["counter", "gauge", "histogram", "info"]

_VERSION = ("model", "version")
_DECISIONS = ("accept", "reject")
_BOUNDS = ("value", "low", "high")


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
    file
        Kind of the metric files that have it; empty if it is computed.
    values
        Values of its last label, one number each; empty if the labels of the file are all that it has.
    is_highest
        Whether the page has the highest number of all workers, and not their sum.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    why: str
    file: str = ""
    values: tuple[str, ...] = ()
    is_highest: bool = False

    @property
    def section(self) -> str:
        """Name of its section in metric files."""
        return self.name.removeprefix("darksight_").removesuffix("_total")


def _metric(
    file: str,
    shared: tuple[str, ...],
    name: str,
    help: str,
    why: str,
    *,
    kind: Kind | None = None,
    by: tuple[str, ...] = (),
    values: tuple[str, ...] = (),
    is_highest: bool = False,
) -> Metric:
    """A metric with the labels of its file and those in `by`; its name has the ending of its kind."""
    ending: Kind = "counter" if name.endswith("_total") else "info" if name.endswith("_info") else "gauge"
    return Metric(name, kind or ending, (*shared, *by), help, why, file, values, is_highest)


_instance = partial(_metric, "", ())
_version = partial(_metric, "", _VERSION)
_live, _drift, _figures = (partial(_metric, file, _VERSION) for file in ("live", "drift", "figures"))
_segment = partial(_metric, "segment", (*_VERSION, "segment"))
_process, _storage, _supervisor = (partial(_metric, file, ()) for file in ("process", "storage", "supervisor"))

METRICS = (
    _version(
        "darksight_decisions_total",
        "Rows by decision and reason of the gate.",
        "How much is rejected and why; the outlier budget is computed from it.",
        by=("decision", "reason"),
    ),
    _version(
        "darksight_pvalue_bin_total",
        "Rows by p-value, in 20 bins of equal width, not cumulative; a bin is named by its upper end.",
        "p-values are uniform without drift: each bin has 5 %, over any number of replicas.",
        by=("bin",),
    ),
    _version(
        "darksight_predicted_total",
        "Rows by predicted class; classes beyond the first 100 are _other.",
        "A class that appears or disappears is drift that no single row shows.",
        by=("class",),
    ),
    _version(
        "darksight_predicted_outliers_total",
        "Outliers by predicted class; classes beyond the first 100 are _other.",
        "Which classes the outliers are predicted as.",
        by=("class",),
    ),
    _version(
        "darksight_log_density",
        "Log density of the map at the rows. OpenMetrics allows no sum of negative values, so there is none.",
        "Quantiles over time: whether all rows move to sparser parts of the map, or only a tail.",
        kind="histogram",
    ),
    _version(
        "darksight_score_seconds",
        "Time to score one call, without decoding and encoding of messages.",
        "Latency that the service adds to a prediction.",
        kind="histogram",
    ),
    _version("darksight_batch_rows", "Rows per call.", "Context for latency and throughput.", kind="histogram"),
    _version(
        "darksight_fail_open_total",
        "Rows that could not be scored and were accepted because the model fails open.",
        "Predictions that were accepted without a score; an alert fires at the first.",
    ),
    _version(
        "darksight_shadow_decisions_total",
        "Rows by decision and reason of a shadow version.",
        "What activating the version would change.",
        by=("decision", "reason"),
    ),
    _version(
        "darksight_calibration_size",
        "Calibration rows of the bundle.",
        "Noise of the reference, part of the critical value of PSI.",
    ),
    _version(
        "darksight_outlier_alpha",
        "Level of the active outlier rule; 0 without a rule.",
        "The expected outlier rate without drift, for comparison.",
    ),
    _version(
        "darksight_outlier_rate_bound",
        "Highest outlier rate that calibration noise explains: 0.25 % of calibration sets exceed it. 0 without a rule.",
        "The budget of outliers is at least 1.5 times this rate.",
    ),
    _drift(
        "darksight_drift_log_evidence",
        "Natural log of the evidence that outlier scores, confidence or predicted classes of stored rows have changed.",
        "Without drift any kind ever reaches ln 450 = 6.11 with probability 1 %, however often it is read.",
        by=("kind",),
        values=DRIFT_KINDS,
    ),
    _drift(
        "darksight_drift_restarting_log_evidence",
        "The same, restarted at every row: it forgets a drift that has ended.",
        "Without drift it reaches ln c after at least c rows on average.",
        by=("kind",),
        values=DRIFT_KINDS,
    ),
    _drift(
        "darksight_drift_tested_rows",
        "Rows that the drift evidence of this replica is about.",
        "Few rows are little evidence.",
    ),
    _figures(
        "darksight_drift_verdict",
        "1 for the kind of drift of the newest rows, 0 for the others: none, class_mix, new_content, less_sure, surer, "
        "mixed.",
        "What kind of drift it is, for the text of an alert; the explorer has the reason.",
        by=("verdict",),
        values=VERDICTS,
    ),
    _segment(
        "darksight_segment_log_evidence",
        "Natural log of the evidence that a segment has changed; of tags named by the policy.",
        "For a chart of one segment; whether it is found depends on all of them.",
    ),
    _segment(
        "darksight_segment_found",
        "1 for a segment that has changed, at a level of 5 % of false discoveries, 0 for the others.",
        "At most 5 % of the segments found are so by chance, on average, however often it is read.",
    ),
    _segment(
        "darksight_segment_explains",
        "1 for the segments, or pairs of them, that explain a drift, 0 for the others.",
        "The name of the cause, for the text of an alert.",
    ),
    _figures(
        "darksight_accuracy_estimate",
        "Estimated accuracy of the newest rows without labels, and its range: value, low, high; absent while withheld.",
        "What a drift costs before any label is known; an estimate, not a guarantee.",
        by=("bound",),
        values=_BOUNDS,
    ),
    _figures(
        "darksight_accuracy_withheld",
        "1 while the estimated accuracy is withheld because the back-test does not cover the newest rows.",
        "Tells a withheld estimate from a service without traffic.",
    ),
    _figures(
        "darksight_audit_accuracy",
        "Accuracy of accepted rows from labels of the random audit: value, low, high; absent without enough labels.",
        "95 % interval, time-uniform while rows are added; drawn rows without a label count as wrong, then as right.",
        by=("bound",),
        values=_BOUNDS,
    ),
    _figures(
        "darksight_audit_labels",
        "Labels of the random audit that this accuracy is from.",
        "Few labels are a wide interval.",
    ),
    _figures(
        "darksight_audit_labels_needed",
        "More labels of the audit that would show an accuracy 3 points below the certificate; 0 if settled.",
        "Found with 80 %; without a certificate, for an interval of 4 points. Absent if no number of labels is enough.",
    ),
    _figures(
        "darksight_certificate_log_evidence",
        "Natural log of the evidence that accepted rows are less accurate than certified, its highest value so far.",
        "While the certificate holds it ever reaches ln 100 = 4.6 with probability 1 %, whichever rows get labels.",
    ),
    _version(
        "darksight_bundle_info",
        "Bundles that were served.",
        "Maps the short version of the other metrics to the bundle file.",
        by=("sha256", "classes"),
    ),
    _live(
        "darksight_live_labelled_rows",
        "Rows with a known outcome in the storage worker's window.",
        "Sample size of the live accuracy.",
        by=("decision",),
        values=_DECISIONS,
    ),
    _live(
        "darksight_live_correct_rows",
        "Rows among them that were predicted correctly.",
        "Accuracy of accepted and of rejected rows.",
        by=("decision",),
        values=_DECISIONS,
    ),
    _live(
        "darksight_certified_accuracy",
        "Accuracy of accepted rows that the bundle's certificate promises; absent without one.",
        "Target for the live accuracy.",
    ),
    _process("darksight_calls_total", "Calls received.", "Request rate."),
    _process("darksight_calls_in_flight", "Calls in progress.", "Saturation."),
    _process(
        "darksight_call_results_total",
        "Calls by gRPC status code.",
        "Error rate, split by client and server errors.",
        by=("code",),
        values=GRPC_CODES,
    ),
    _process(
        "darksight_overload_total", "Calls refused because of too many concurrent calls.", "Signal to add replicas."
    ),
    _process(
        "darksight_auth_failures_total",
        "Calls refused because of a missing, invalid, expired or insufficient token.",
        "An expired token, or an attack.",
        by=("kind",),
        values=AUTH_FAILURES,
    ),
    _process(
        "darksight_events_total",
        "Events of inference loggers: scored, of a request, or refused. A retry counts again.",
        "Whether a logger still sends, and whether its events are understood.",
        by=("result",),
        values=EVENT_RESULTS,
    ),
    _process("darksight_outcomes_total", "Outcomes reported.", "Whether labels still arrive."),
    _process("darksight_workers", "Worker processes that have started.", "Whether all workers run."),
    _process("darksight_worker_starts_total", "Starts of worker processes.", "More than one per worker means a crash."),
    _process("darksight_spool_bytes", "Bytes in the spools of all workers.", "Grows while the store is unavailable."),
    _process(
        "darksight_spool_used_ratio",
        "Share of the quota that the fullest spool uses.",
        "At 1 points are dropped.",
        is_highest=True,
    ),
    _process(
        "darksight_spool_oldest_seconds",
        "Age of the oldest record in a spool.",
        "How far the store is behind, seen from the worker.",
        is_highest=True,
    ),
    _process("darksight_spool_appended_total", "Records written to spools.", "Rate that the drain must keep up with."),
    _process(
        "darksight_spool_dropped_total",
        "Records dropped because the quota was reached or the disk failed.",
        "Points that are lost to the store.",
    ),
    _process("darksight_spool_errors_total", "Failed writes to spools.", "A full or failing disk."),
    _storage(
        "darksight_drain_lag_seconds",
        "Age of the oldest record that is not in the store yet, seen from the storage worker.",
        "Delay of the explorer and of live accuracy.",
    ),
    _storage(
        "darksight_drain_rows_total",
        "Rows drained from spools: inserted, duplicate (already stored), quarantined (the store refuses them) or "
        "conflict (not stored: its id has a stored row of another prediction or model).",
        "Progress of the drain; quarantined rows wait in files.",
        by=("result",),
        values=("inserted", "duplicate", "quarantined", "conflict"),
    ),
    _storage(
        "darksight_spool_damaged_records_total",
        "Records of spools that were damaged on disk, at least one for each damaged part of a file.",
        "Rows that callers got an answer for, and that are lost to the store.",
    ),
    _storage(
        "darksight_spool_lost_bytes_total",
        "Bytes of damaged parts of spools, and of refused records that could not be kept.",
        "How much is lost: a row of ten classes takes about 80 bytes.",
    ),
    _storage(
        "darksight_spool_files_aside",
        "Files of damaged segments and of refused records in the spools.",
        "Until an operator has looked at them and moved them away.",
    ),
    _storage("darksight_store_up", "Whether the last store operation succeeded.", "First thing to check."),
    _storage("darksight_store_errors_total", "Failed store operations.", "A store that is up but unreliable."),
    _storage("darksight_store_bytes", "Size of the stored points on disk.", "What retention has to bound."),
    _storage(
        "darksight_store_growth_bytes_per_day",
        "Growth of the store during the last day, or since the start; 0 until it is known.",
        "The disk that a day takes.",
    ),
    _storage(
        "darksight_store_seconds_left",
        "Time until the disk of the data directory is full at this growth; +Inf without growth, and on PostgreSQL.",
        "A full disk ends storing.",
    ),
    _storage("darksight_store_pruned_rows_total", "Rows deleted by retention.", "Whether retention works."),
    _storage(
        "darksight_tag_values_dropped_total",
        "Tags stored as _other because their key has `max_tag_values` other values, or the model 64 other keys.",
        "A key with too many values, such as an id, is of no use as a segment.",
    ),
    _storage("darksight_storage_starts_total", "Starts of the storage worker.", "More than one means a crash."),
    _storage(
        "darksight_state_rebuilds_total",
        "Rebuilds of the state from an audit trail that was not the one before, such as that of a restored database.",
        "Changes made since the backup are lost.",
    ),
    _storage(
        "darksight_audit_trail_broken",
        "Whether the last check found an altered entry in the audit trail.",
        "Somebody changed the database past the service.",
    ),
    _storage(
        "darksight_clock_offset_seconds",
        "Seconds by which the clock jumped, negative for back, and is not believed yet.",
        "Retention by age waits until the jump is confirmed; points have the time from before it.",
    ),
    _process(
        "darksight_token_file_errors",
        "Lines of the token file that are refused; 1 if the file cannot be read.",
        "Callers are refused whom the file was meant to permit.",
        is_highest=True,
    ),
    _process(
        "darksight_versions_not_loaded",
        "Active and shadow versions that could not be loaded.",
        "A model answers with its previous version, or not at all.",
        is_highest=True,
    ),
    _supervisor("darksight_ready", "Whether every worker takes calls for every model.", "As the health page."),
    _supervisor(
        "darksight_hung_processes_total",
        "Processes that stopped reporting to the supervisor and were killed.",
        "A stalled disk, or a bug.",
    ),
    _process("darksight_metric_files_replaced_total", "Damaged metric files that were replaced.", "Counts were lost."),
    _instance(
        "darksight_metric_files_unreadable",
        "Metric files that could not be read for this scrape.",
        "Whether this page is complete.",
    ),
    _process(
        "darksight_models_refused_total",
        "Active or shadow versions beyond the limit of metric files (max_models), counted as the model _other.",
        "Why a version has no series of its own.",
    ),
    _instance(
        "darksight_certificate_expiration_timestamp_seconds",
        "When the certificate of the server, or the first of its chain, expires; none without TLS.",
        "Calls fail from then on.",
    ),
    _instance(
        "darksight_build_info",
        "Version of DarkSight and of Python.",
        "Which replicas have been updated.",
        by=("version", "python"),
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
