"""`darksight drift`: whether predictions in a file drift, what kind of drift it is, and what it costs in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from darksight_core.bundle import read_bundle
from darksight_core.drift.estimate import COVERAGE
from darksight_core.drift.segments import SegmentTest
from darksight_core.evaluation.drift import DriftReport, baseline_of, report_drift, row_batch
from darksight_core.evaluation.segment_figures import SegmentDriftReport, report_segments
from darksight_core.predictions.sketch import MAX_LEAK
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.console import print_json, print_table, say
from darksight_service.cli.options import AsJson, Logits
from darksight_service.cli.rows import fit_share, read_rows, values_of

__all__ = ["drift"]

_SHOWN_CLASSES = 10
_SHOWN_SEGMENTS = 20

_KINDS = {
    "none": "no drift",
    "class_mix": "the class mix changed",
    "new_content": "new content",
    "less_sure": "less sure than usual",
    "surer": "surer than usual",
    "mixed": "mixed",
}


def drift(
    bundle: Path,
    file: Path,
    /,
    *,
    by: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    level: float = 0.01,
    logits: Logits = False,
    json: AsJson = False,
) -> None:
    """Test predictions in a file for drift, in order.

    Reads the rows of FILE in order of arrival and reports the first row at which there is enough evidence that the
    outlier scores or the predicted classes have changed since calibration. Then says what kind of drift it is, and
    estimates the class shares and, without labels, the accuracy of the rows since the change.

    Parameters
    ----------
    bundle
        Bundle of the watched classifier.
    file
        Predictions in order of arrival, .npz, .npy, .csv, .parquet or .jsonl.
    by
        Keys of tags, columns tag_KEY of FILE: test each of their values, and name the segment that explains a drift.
        At most 5% of the segments that are found changed are so by chance, on average.
    level
        Bound on the probability of a false alarm, however long FILE is.
    """
    loaded = read_bundle(bundle, verify=False)
    predictions = read_rows(file, loaded, logits=logits)
    shared = fit_share(loaded, predictions)
    if shared > MAX_LEAK:
        say(
            f"at least {shared:.1%} of the rows of {file} are fit rows of {bundle}, which look more usual than new rows"
        )
    scorer = Scorer.load(bundle)
    scored = scorer.score(predictions.rows, scorer.level_name(predictions))
    report = report_drift(loaded, predictions.probs, scored, level=level)
    segments = None
    if by:
        tags = {key: values_of(predictions, key).tolist() for key in by}
        segments = report_segments(
            SegmentTest(baseline_of(loaded)), row_batch(scored, predictions.probs), scored.p_value, tags
        )
    if json:
        found = {} if segments is None else {"segments": segments.as_dict()}
        print_json({"bundle": str(bundle), "version": loaded.version, "level": level, **report.as_dict(), **found})
    else:
        changed = 0 if segments is None else sum(each.is_changed for each in segments.segments)
        _print_report(report, level, changed)
        if segments is not None:
            _print_segments(segments)


def _print_report(report: DriftReport, level: float, changed_segments: int) -> None:
    if report.alarm_row is None:
        rest = f", but segments have changed: {changed_segments}, see below" if changed_segments else ""
        print(f"No drift of all {report.rows:,} rows together at level {level:g}{rest}.")
    else:
        print(
            f"Drift at row {report.alarm_row:,} of {report.rows:,}, at level {level:g}; "
            f"it began near row {report.since_row:,}."
        )
        print(f"Verdict: {_KINDS[report.verdict.kind]}: {report.verdict.reason}.")
    if report.precision:
        print(f"{report.precision[0].upper()}{report.precision[1:]}. P-values hold at each resolution.")
    print_table(
        [
            (name, each.log_evidence, each.highest, report.threshold, each.alarm_row)
            for name, each in report.evidence.items()
        ],
        ("ln evidence", "now", "highest", "alarm from", "alarm row"),
    )
    _print_shares(report)
    accuracy = report.accuracy
    if accuracy.value is None or accuracy.interval is None:
        bound = "" if accuracy.at_most is None else f"at most {accuracy.at_most:.3f}; an estimate is "
        print(f"Accuracy: {bound}withheld: {accuracy.withheld}.")
    else:
        low, high = accuracy.interval
        print(
            f"Accuracy: about {accuracy.value:.3f}, between {low:.3f} and {high:.3f}; estimated without labels, true "
            f"of {COVERAGE:.0%} of windows like those of the back-test."
        )


def _print_segments(report: SegmentDriftReport) -> None:
    shown = report.segments[:_SHOWN_SEGMENTS]
    print(f"\nSegments, most evidence first, {len(shown)} of {len(report.segments)}:")
    print_table(
        [
            (
                f"{each.key}={each.value}",
                each.rows,
                f"{each.outliers:.2%}",
                each.log_evidence,
                "changed" if each.is_changed else "always unlike the rest" if each.is_unlike else "",
                each.since_row,
            )
            for each in shown
        ],
        ("segment", "rows", "outliers", "ln evidence", "found", "since its row"),
    )
    if report.explanation:
        print(f"The change is explained by {'; and by '.join(report.explanation)}.")
    else:
        print("No segment has changed against its own calibration rows or earlier rows.")
    print(f"At most {report.level:.0%} of the segments found are so by chance, on average.")


def _print_shares(report: DriftReport) -> None:
    shares = report.class_shares
    if shares is None:
        print("\nClass shares: withheld; the bundle keeps neither labels of every class nor probabilities.\n")
        return
    order = abs(shares.estimate - shares.reference).argsort()[::-1][:_SHOWN_CLASSES]
    print(f"\nClass shares ({shares.method}), largest change first:")
    print_table(
        [
            (
                report.class_names[k] + (" *" if shares.is_changed[k] else ""),
                *(float(values[k]) for values in (shares.reference, shares.estimate, shares.low, shares.high)),
            )
            for k in order
        ],
        ("class", "reference", "estimate", "low", "high"),
    )
    marked = "* changed; the" if shares.is_changed.any() else "The"
    print(f"{marked} intervals hold for all classes together with probability 95%.\n")
