"""Endpoints of the gate page: scores side by side, a threshold, what it would do, and putting it into force."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.gate.certify import CHOICE_ROWS
from darksight_core.guarantees.conformal import cutoff
from darksight_core.map.regions import inside_any
from darksight_service.control.changes import check_policy
from darksight_service.control.registry import ActiveModel
from darksight_service.control.state import Change, PolicyOverride
from darksight_service.errors import RefusedError, RequestError
from darksight_service.explorer.analysis.audit import audit
from darksight_service.explorer.analysis.learning import Latest
from darksight_service.explorer.analysis.thresholds import (
    ScoreLine,
    certificate,
    score_lines,
    stored_scores,
    threshold_steps,
)
from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources
from darksight_service.explorer.spans import DAY_MS, now_ms, plain, read_span

if TYPE_CHECKING:
    from darksight_service.store import PointTable

__all__ = ["AUDIT_ROWS", "MOST_LABELS", "endpoints", "labelled_rows"]

MOST_LABELS = 1_500
"""Newest labels that curves are made from: enough to see a difference of a percent, few enough to wait for."""

AUDIT_ROWS = 10_000
"""Newest points that an audit is drawn from."""

_DRY_RUN_POINTS = 50_000
_SPAN_MS = 30 * DAY_MS


def endpoints(sources: Sources) -> list[Endpoint]:
    """`/api/gate` and what is below it."""
    compared: Latest[list[ScoreLine]] = Latest()

    def describe(call: Call) -> Answer:
        serving = _serving(sources, call)
        rows, used = labelled_rows(sources, call, serving)
        policy = _policy(call)
        key = (serving.model, serving.version, used["which"])
        lines, is_computing = compared.get(key, rows, _compare) if len(rows) else ([], False)
        return {
            "gate": serving.gate.settings(),
            "bundle_gate": serving.bundle.gate.settings(),
            "is_certified": serving.is_certified,
            "is_active": serving.version == sources.control.model(serving.model).active,
            "calibration_rows": serving.bundle.calibration_rows,
            "used": {**used, "errors": int(rows.errors.sum()), "choice_rows": CHOICE_ROWS},
            "lines": None if lines is None else [_line(each) for each in lines],
            "is_computing": is_computing,
            "steps": plain(asdict(threshold_steps(rows.confidence, _passed(serving, policy, rows), rows.errors))),
        }

    def certify(call: Call) -> Answer:
        serving = _serving(sources, call)
        rows, used = labelled_rows(sources, call, serving)
        passed = _passed(serving, _policy(call), rows)
        accuracy, delta = call.number("accuracy", 0.95), call.number("delta", 0.05)
        if not len(rows) or not (passed & ~np.isnan(rows.confidence)).any():
            return {"certificate": None, "used": used}
        found = certificate(rows.confidence, passed, rows.errors, accuracy, delta=delta)
        promise = {"threshold": found.found.as_dict(), "coverage": found.coverage, "picked": found.picked}
        return {"certificate": plain(promise), "used": used}

    def dry_run(call: Call) -> Answer:
        model = call.text("model")
        since, until = read_span(call, default_ms=_SPAN_MS)
        active = sources.control.model(model).active
        first, points = sources.store().filled_since(
            model, active, since_ms=since, until_ms=until, points=_DRY_RUN_POINTS
        )
        before, after = sources.control.dry_run(model, _policy(call), first, until)
        return {
            "since_ms": first,
            "until_ms": until,
            "points": points,
            "before": asdict(before),
            "after": asdict(after),
        }

    def apply(call: Call) -> Answer:
        body = call.body()
        model, comment = str(body.get("model", "")), str(body.get("comment", "")).strip()
        if not comment:
            raise RequestError("comment: say why, so that others can follow it later", field="comment")
        if body.get("version") not in (None, "", sources.control.model(model).active):
            raise RefusedError("a policy is set for the active version, and another one is shown")
        author = call.author or str(body.get("author", "")).strip()[:100] or "explorer"
        policy = PolicyOverride(_number(body, "alpha"), _number(body, "threshold"), _truth(body, "fail_open"))
        serving = sources.control.set_policy(model, policy, author=author, comment=comment[:1_000])
        return {"gate": serving.gate.settings(), "is_certified": serving.is_certified}

    def history(call: Call) -> Answer:
        changes = sources.control.history(call.text("model"))
        return {"changes": [_change(each) for each in changes[:50]]}

    return [
        Endpoint("GET", "/api/gate", "read", describe),
        Endpoint("GET", "/api/gate/certificate", "read", certify),
        Endpoint("GET", "/api/gate/dry-run", "read", dry_run),
        Endpoint("GET", "/api/gate/history", "read", history),
        Endpoint("POST", "/api/gate/policy", "admin", apply),
    ]


def labelled_rows(sources: Sources, call: Call, serving: ActiveModel) -> tuple[PointTable, dict[str, Any]]:
    """Labelled points that a call is about, all or those of the audit, and what is to be said about them."""
    from darksight_service.store import PointFilter

    since, until = read_span(call, default_ms=_SPAN_MS)
    which = call.text("labels", "all")
    if which not in ("all", "audit"):
        raise RequestError(f"labels: is all or audit, not {which[:40]!r}", field="labels")
    if which == "all":
        found = sources.store().labelled_frame(
            serving.model, serving.version, since_ms=since, until_ms=until, limit=MOST_LABELS
        )
    else:
        wanted = PointFilter(serving.model, serving.version, since_ms=since, until_ms=until)
        frame = sources.store().frame(wanted, limit=AUDIT_ROWS)
        done = audit(frame, call.number("rate", 0.05)).done
        found = frame.take(done[frame.is_labelled[done]])
    whole = found.take((found.predicted >= 0) & np.isfinite(found.p_value))
    facts = {"labels": len(whole), "left_out": len(found) - len(whole), "most": MOST_LABELS, "which": which}
    return whole, {**facts, "since_ms": since, "until_ms": until}


def _compare(rows: PointTable) -> list[ScoreLine]:
    return score_lines(stored_scores(rows), rows.errors)


def _serving(sources: Sources, call: Call) -> ActiveModel:
    return sources.registry.get(call.text("model"), call.text("version", ""))


def _policy(call: Call) -> PolicyOverride:
    """The policy that a page tries out."""
    threshold = call.text("threshold", "")
    try:
        cut = float(threshold) if threshold else None
    except ValueError:
        raise RequestError(f"threshold: must be a number, not {threshold[:40]!r}", field="threshold") from None
    return PolicyOverride(call.number("alpha", 0.0) if call.text("alpha", "") else None, cut)


def _passed(serving: ActiveModel, policy: PolicyOverride, rows: PointTable) -> NDArray[np.bool_]:
    """Which rows the outlier rule would let through, and regions do."""
    check_policy(serving.bundle, PolicyOverride(alpha=policy.alpha))
    rule = serving.gate.outlier
    if policy.alpha is not None:
        rule = cutoff(serving.bundle.calibration_rows, policy.alpha) if policy.alpha > 0.0 else None
    # Stored p-values were rounded to float32, and so must be what they are compared with.
    usual = rows.p_value > (-1.0 if rule is None else float(np.float32(rule.p_value)))
    return np.asarray(usual & ~inside_any(serving.gate.regions, rows.points), dtype=np.bool_)


def _line(line: ScoreLine) -> dict[str, Any]:
    figures = line.figures
    return plain(  # type: ignore[no-any-return]  # JSON values
        {
            "name": line.name,
            "coverage": line.coverage,
            "accuracy": line.accuracy,
            "auroc": figures.auroc,
            "augrc": figures.augrc,
            "aurc": figures.aurc,
            "intervals": figures.intervals,
            "gain": line.gain,
            "gain_error": line.gain_error,
        }
    )


def _change(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "changed_ms": change.changed_ms or now_ms(),
        "author": change.author,
        "comment": change.comment,
        "version": str(change.payload.get("version", "")),
        "alpha": change.payload.get("alpha"),
        "threshold": change.payload.get("threshold"),
        "fail_open": change.payload.get("fail_open"),
    }


def _number(body: dict[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value in (None, ""):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"{name}: must be a number, not {str(value)[:40]!r}", field=name) from None


def _truth(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name}: must be true or false", field=name)
    return value
