"""The dashboard of a model: is something wrong, since when, what kind, where, what does it cost, what to do."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Row
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from deploy.grafana.panels import heat_map, lines, number, rows, spans, text

__all__ = ["PANELS", "VARIABLES"]

_M = 'model=~"$model",version=~"$version"'
_FIRING = f'ALERTS{{alertname=~"DarkSight.*",alertstate="firing",{_M}}}'

VARIABLES = {
    "model": "label_values(darksight_calibration_size, model)",
    "version": 'label_values(darksight_calibration_size{model=~"$model"}, version)',
}


def _rate(name: str, selector: str = _M) -> str:
    return f"rate({name}{{{selector}}}[$__rate_interval])"


def _share(counter: str, label: str, selector: str = _M) -> str:
    """Share of each value of a label among all rows of a counter."""
    return (
        f"sum by ({label}) ({_rate(counter, selector)}) / ignoring ({label}) group_left () (sum({_rate(counter)}) > 0)"
    )


_ADVICE = """
| verdict | what to do |
| --- | --- |
| class_mix | Expected? Calibrate on recent rows. Otherwise ask who sends the class that grew. |
| new_content, less_sure | Compare with recent deployments of classifier and inputs; roll back the cause. |
| mixed | Both: ask who sends the class that grew, and look for a cause of the rest. |
| surer | As for less_sure. It is no good news: inputs that the classifier has never seen look like that. |
| certificate broken | Raise the threshold, or reject the part of the map where errors are. |

Each alert links to its runbook entry, each panel to the points in the explorer.
"""

PANELS = (
    Row("Is something wrong?"),
    number("Firing alerts", {"": f"count({_FIRING}) or vector(0)"}, "Alerts of the model.", limits=(1.0,)),
    number(
        "Verdict",
        {"{{verdict}}": f"max by (verdict) (darksight_drift_verdict{{{_M}}}) == 1"},
        "Kind of drift of the newest rows; none without drift.",
        is_name=True,
    ),
    number(
        "Accuracy now, without labels",
        {
            "{{bound}}": f"avg by (bound) (darksight_accuracy_estimate{{{_M}}})",
            "withheld": f"max(darksight_accuracy_withheld{{{_M}}})",
        },
        "Estimate with its range, or that it is withheld; the explorer has the reason.",
        unit="percentunit",
    ).override_by_name("withheld", [DynamicConfigValue("unit", "bool_yes_no")]),
    number(
        "Rows",
        {
            "per second": f"sum({_rate('darksight_decisions_total')})",
            "tested for drift": f"sum(darksight_drift_tested_rows{{{_M}}})",
        },
        "Few tested rows are little evidence.",
        unit="short",
    ),
    Row("Since when?"),
    spans(
        "Alerts and verdicts",
        {
            "{{alertname}}": f"max by (alertname) ({_FIRING})",
            "{{verdict}}": f'max by (verdict) (darksight_drift_verdict{{{_M},verdict!="none"}}) == 1',
        },
        "Times at which an alert fired or a verdict held.",
    ),
    lines(
        "Drift evidence (natural logarithm)",
        {
            "{{kind}}, {{version}}": f"model:darksight_drift:log_evidence{{{_M}}}",
            "{{kind}}, restarting, {{version}}": f"model:darksight_drift:restarting_log_evidence{{{_M}}}",
        },
        "The rise begins with the change. An alert fires at 6.11 (1 false alarm in 100 versions). Restarting evidence "
        "forgets a drift that has ended: ln c once in c rows without drift.",
        limits=(6.109,),
    ),
    Row("What kind of change?"),
    heat_map(
        "p-values: share of rows",
        _share("darksight_pvalue_bin_total", "bin"),
        "Without drift each of the 20 bins has 5 %. Dark at the bottom: unusual rows. Dark at the top: surer than "
        "usual, or a caller that repeats rows.",
        legend="{{bin}}",
        highest=0.2,
        unit="percentunit",
    ),
    lines(
        "Predicted classes",
        {"{{class}}": f"topk(10, {_share('darksight_predicted_total', 'class')})"},
        "Share of each class, the ten largest.",
        unit="percentunit",
    ),
    Row("Where on the map?"),
    heat_map(
        "Log density",
        f"sum by (le) ({_rate('darksight_log_density_bucket')})",
        "All cells fall: all traffic moved to sparser parts of the map. A tail below: a new kind of row.",
        legend="{{le}}",
        unit="cps",
        is_cumulative=True,
    ),
    lines(
        "Outliers by predicted class",
        {
            "{{class}}": f"topk(10, sum by (class) ({_rate('darksight_predicted_outliers_total')})"
            f" / (sum by (class) ({_rate('darksight_predicted_total')}) > 0))"
        },
        "Share of outliers among the rows of a predicted class, the ten highest. One class: new content looks like it. "
        "All classes: the input pipeline.",
        unit="percentunit",
    ),
    Row("What does it cost in accuracy?"),
    lines(
        "Accuracy",
        {
            "{{decision}}ed, known outcome": f"max by (decision) (model:darksight_live:accuracy{{{_M}}})",
            "accepted, audit, {{bound}}": f"avg by (bound) (darksight_audit_accuracy{{{_M}}})",
            "all, without labels, {{bound}}": f"avg by (bound) (darksight_accuracy_estimate{{{_M}}})",
            "certified": f"max(darksight_certified_accuracy{{{_M}}})",
        },
        "Accepted rows should be above the certified accuracy. The audit is a random sample, with an interval that is "
        "right in 95 % at all times; known outcomes may be chosen rows.",
        unit="percentunit",
    ),
    lines(
        "Rejected rows, by reason",
        {
            "{{reason}}": _share("darksight_decisions_total", "reason", f'{_M},decision="reject"') + " > 0",
            "alpha": f"max(darksight_outlier_alpha{{{_M}}})",
            "shadow {{version}}, all reasons": "sum by (version) "
            f"""({_rate("darksight_shadow_decisions_total", 'model=~"$model",decision="reject"')})"""
            f""" / (sum by (version) ({_rate("darksight_shadow_decisions_total", 'model=~"$model"')}) > 0)""",
        },
        "Share of rows. Outliers are alpha without drift.",
        unit="percentunit",
    ),
    Row("What to do?"),
    text("By verdict", _ADVICE),
    number(
        "Labels of the audit",
        {
            "labels": f"max(darksight_audit_labels{{{_M}}})",
            "more would show an accuracy 3 points lower": f"max(darksight_audit_labels_needed{{{_M}}})",
            "known outcomes": f"sum(max by (decision) (darksight_live_labelled_rows{{{_M}}}))",
            "log evidence against the certificate": f"max(model:darksight_certificate:log_evidence{{{_M}}})",
        },
        "The review page of the explorer has the rows to label. The evidence pages at 4.6.",
        width=12,
    ),
    rows(
        "Versions",
        f"max by (model, version, sha256, classes) (darksight_bundle_info{{{_M}}})",
        "Served versions and the sha256 of their files.",
        width=24,
        height=4,
    ),
)
