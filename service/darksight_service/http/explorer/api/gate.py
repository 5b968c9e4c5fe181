"""Endpoints of the gate page: comparison of scores, thresholds, dry run, and change of the policy."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator, StringConstraints

from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.map.regions import inside_any
from darksight_core.rows.schema import Reason
from darksight_core.scores.registry import SCORES
from darksight_service.control.changes import resolve_policy, with_threshold
from darksight_service.control.registry import ActiveModel
from darksight_service.control.state import PolicyOverride
from darksight_service.errors import RefusedError
from darksight_service.http.explorer.analysis.background import BackgroundResults
from darksight_service.http.explorer.analysis.promise import MeasuredPromise, measure_promise
from darksight_service.http.explorer.analysis.scores import ScoreCurve, compare_scores, stored_scores
from darksight_service.http.explorer.analysis.thresholds import certify, threshold_steps
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.api.labelled import MAX_LABELS, LabelsInput, labelled_points
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import ModelInput, now_ms
from darksight_service.store.audit import Change
from darksight_service.store.points import PointTable

__all__ = ["endpoints"]

_DRY_RUN_POINTS = 50_000
_MAX_CHANGES = 50


def _number(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    raise ValueError(f"must be a number, not {str(value)[:40]!r}")


# May be a string, because JSON has no -inf.
_Threshold = Annotated[float, PlainValidator(_number)]


class _GateInput(LabelsInput):
    alpha: float | None = None
    threshold: _Threshold | None = None

    def policy(self, gate: Gate) -> PolicyOverride:
        """The policy that the page tries; its threshold is on the scale of the score."""
        policy = PolicyOverride(self.alpha)
        return policy if self.threshold is None else with_threshold(policy, gate, self.threshold)


class _CertificateInput(_GateInput):
    accuracy: float = 0.95
    delta: float = 0.05


class _PolicyInput(ModelInput):
    version: str = ""
    comment: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000)]
    author: Annotated[str, StringConstraints(strip_whitespace=True, max_length=100)] = ""
    alpha: float | None = None
    threshold: _Threshold | None = None
    fail_open: bool | None = None


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/gate` and the paths below it."""

    def compare(table: PointTable) -> list[ScoreCurve]:
        gate = sources.registry.get(table.model, table.versions[0]).gate
        return compare_scores(stored_scores(table, gate.reject_score), table.errors)

    comparisons = BackgroundResults(compare)

    def labels(active: ActiveModel, given: LabelsInput) -> tuple[PointTable, dict[str, Any]]:
        return labelled_points(sources, active, given, limit=MAX_LABELS, with_probs=given.labels == "audit")

    def describe(call: Call[_GateInput]) -> Answer:
        active, given = sources.active_model(call.input), call.input
        table, used = labels(active, given)
        compared = labelled_points(sources, active, given)[0] if given.labels == "all" else table
        curves: list[ScoreCurve] | None = []
        is_computing = False
        if len(compared):
            curves, is_computing = comparisons.get((active.model, active.version, given.labels), compared)
        passed = _passed(active, given.alpha, table)
        score = active.gate.reject_score
        return {
            "gate": active.gate.settings(),
            "is_certified": active.is_certified,
            "promise": _promise(active, table),
            "used": {**used, "errors": int(table.errors.sum()), "compared": len(compared)},
            "curves": None if curves is None else [_curve(each) for each in curves],
            "score_labels": {name: each.label for name, each in SCORES.items()},
            "is_log_odds": score is not None and SCORES[score].is_log_odds,
            "is_computing": is_computing,
            "steps": threshold_steps(table.confidence, passed, table.errors, current=active.gate.threshold),
        }

    def certificate(call: Call[_CertificateInput]) -> Answer:
        active = sources.active_model(call.input)
        table, used = labels(active, call.input)
        passed = _passed(active, call.input.alpha, table)
        if not (passed & ~np.isnan(table.confidence)).any():
            return {"certificate": None, "used": used}
        found = certify(table.confidence, passed, table.errors, call.input.accuracy, delta=call.input.delta)
        threshold = found.threshold.as_dict()
        return {
            "certificate": {"threshold": threshold, "coverage": found.coverage, "picked": found.picked},
            "used": used,
        }

    def dry_run(call: Call[_GateInput]) -> Answer:
        model, until = call.input.model, call.input.until_ms
        active = sources.control.model(model).active
        since, points = sources.store().filled_since(
            model, active, since_ms=call.input.start_ms, until_ms=until, points=_DRY_RUN_POINTS
        )
        policy = call.input.policy(sources.registry.get(model).gate)
        before, after = sources.control.dry_run(model, policy, since, until)
        return {"since_ms": since, "until_ms": until, "points": points, "before": before, "after": after}

    def history(call: Call[ModelInput]) -> Answer:
        changes = sources.control.history(call.input.model)
        return {"changes": [_change(each) for each in changes[:_MAX_CHANGES]]}

    def set_policy(call: Call[_PolicyInput]) -> Answer:
        given = call.input
        if given.version not in ("", sources.control.model(given.model).active):
            raise RefusedError("a policy can be set for the active version only; the page shows another version")
        # The page is about decisions, and keeps the rest.
        model = sources.control.model(given.model)
        kept = model.versions[model.active].policy.metric_tags
        policy = PolicyOverride(given.alpha, fail_open=given.fail_open, metric_tags=kept)
        if given.threshold is not None:
            policy = with_threshold(policy, sources.registry.get(given.model).gate, given.threshold)
        claimed = given.author or ("" if call.caller.name else "explorer")
        control = sources.control.on_behalf_of(call.caller.name)
        active, looser = control.set_policy(given.model, policy, author=claimed, comment=given.comment)
        return {"gate": active.gate.settings(), "is_certified": active.is_certified, "loosened": looser}

    return [
        Endpoint("GET", "/api/gate", "read", _GateInput, describe),
        Endpoint("GET", "/api/gate/certificate", "read", _CertificateInput, certificate),
        Endpoint("GET", "/api/gate/dry-run", "read", _GateInput, dry_run),
        Endpoint("GET", "/api/gate/history", "read", ModelInput, history),
        Endpoint("POST", "/api/gate/policy", "admin", _PolicyInput, set_policy),
    ]


def _passed(active: ActiveModel, alpha: float | None, table: PointTable) -> NDArray[np.bool_]:
    """Which rows the outlier rule, at another level if it is given, and the regions accept."""
    resolve_policy(active.bundle, PolicyOverride(alpha))
    rule, limits = active.gate.outlier, active.gate.class_limits
    # Stored numbers were rounded to float32, so what they are compared with must be, too.
    if alpha is None and limits is not None:
        usual = table.outlier_score >= limits.astype(np.float32)[table.predicted]
    else:
        if alpha is not None:
            rule = cutoff(active.bundle.calibration_rows, alpha) if alpha > 0.0 else None
        usual = table.p_value > (-1.0 if rule is None else float(np.float32(rule.p_value)))
    return np.asarray(usual & ~inside_any(active.gate.regions, table.points), dtype=np.bool_)


def _promise(active: ActiveModel, table: PointTable) -> MeasuredPromise | None:
    """The promise of the bundle and what the gate in force does on labelled rows; None without a promise."""
    accepted = _passed(active, None, table)
    if active.gate.reject_score is not None:
        is_sure = table.confidence >= active.gate.lowest(table.predicted)
        if active.gate.segments is not None:
            # A row was decided by the threshold of its segment, unless it was an outlier.
            was_passed = np.isin(table.reason, (Reason.NONE, Reason.REGION))
            is_sure = was_passed | (is_sure & (table.reason != Reason.LOW_CONFIDENCE))
        accepted &= is_sure
    return measure_promise(active.bundle.certificate, accepted, table.errors)


def _curve(curve: ScoreCurve) -> dict[str, Any]:
    figures = curve.figures
    return {
        "name": curve.name,
        "coverage": curve.coverage,
        "accuracy": curve.accuracy,
        "auroc": figures.auroc,
        "augrc": figures.augrc,
        "intervals": figures.intervals,
        "gain": curve.gain,
        "gain_error": curve.gain_error,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "changed_ms": change.changed_ms or now_ms(),
        "author": change.authors,
        "comment": change.comment,
        "version": str(change.payload.get("version", "")),
        "alpha": change.payload.get("alpha"),
        "threshold": change.payload.get("threshold"),
        "fail_open": change.payload.get("fail_open"),
        "loosened": change.payload.get("loosened", []),
    }
