"""Endpoints of the map page: what a map looks like, its reference points, stored points, densities."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Reference
from darksight_core.scored import Decision, Reason
from darksight_core.simplex import Floats
from darksight_service.control.registry import Version
from darksight_service.errors import NotFoundError, RequestError
from darksight_service.explorer.columns import Columns
from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources

__all__ = ["endpoints"]

_GRID = 160
# Points of one call unless it says how many; also the most of a call that reads their probabilities, which are larger.
_CALL = 10_000
# Parts of the reference that a first view may leave out at each side: a few points lie far off.
_FAR = 0.002


def endpoints(sources: Sources) -> list[Endpoint]:
    """All paths under `/api/map`."""

    def bundle(call: Call) -> Version:
        return sources.registry.get(call.text("model"), call.text("version", "")).bundle

    def describe(call: Call) -> Answer:
        return _describe(call.text("model"), bundle(call))

    def reference(call: Call) -> Answer:
        return _reference_columns(bundle(call).reference, call.integers("classes"))

    def density(call: Call) -> Answer:
        layer = call.text("layer", "student")
        if layer not in ("student", "kde"):
            raise RequestError(f"layer: must be student or kde, not {layer[:40]!r}", field="layer")
        return _density(bundle(call), layer, call.integers("classes"))

    def points(call: Call) -> Answer:
        return _points(sources, call)

    def point(call: Call) -> Answer:
        return _point(sources, call)

    return [
        Endpoint("GET", "/api/map", "read", describe),
        Endpoint("GET", "/api/map/reference", "read", reference),
        Endpoint("GET", "/api/map/density", "read", density),
        Endpoint("GET", "/api/map/points", "read", points),
        Endpoint("GET", "/api/map/point", "read", point),
    ]


def _describe(model: str, bundle: Version) -> dict[str, Any]:
    low, high = _view(bundle)
    return {
        "model": model,
        "version": bundle.version,
        "class_names": list(bundle.class_names),
        "classes": list(_mapped_classes(bundle)),
        "means": bundle.embedder.student.means.tolist(),
        "view": [low.tolist(), high.tolist()],
        "reference_points": len(bundle.reference.points),
        "has_labels": bool((bundle.reference.labels >= 0).any()),
        "reasons": {int(reason): reason.name.lower().replace("_", " ") for reason in Reason},
    }


def _mapped_classes(bundle: Version) -> tuple[int, ...]:
    """Numbers of the classes that the map shows, in the order of its centres."""
    columns = bundle.embedder.columns
    return tuple(range(len(bundle.class_names))) if columns is None else columns


@lru_cache(maxsize=16)
def _view(bundle: Version) -> tuple[Floats, Floats]:
    """Corners that show all centres and nearly all reference points."""
    ends = np.quantile(bundle.reference.points.astype(np.float64), [_FAR, 1.0 - _FAR], axis=0)
    shown = np.concatenate([ends, bundle.embedder.student.means])
    low, high = shown.min(axis=0), shown.max(axis=0)
    margin = 0.06 * float((high - low).max()) + 1e-9
    return low - margin, high + margin


def _reference_columns(reference: Reference, classes: tuple[int, ...]) -> Columns:
    columns: dict[str, NDArray[Any]] = {
        "x": reference.points[:, 0],
        "y": reference.points[:, 1],
        "predicted": reference.predicted,
        "label": reference.labels.astype(np.int32),
    }
    if reference.top_classes is not None and reference.top_probs is not None:
        probs = reference.top_probs.astype(np.float64)
        rest = 0.0 if classes else np.maximum(0.0, 1.0 - probs.sum(axis=1))
        if classes:
            probs = np.where(np.isin(reference.top_classes, classes), probs, 0.0)
        columns |= _sureness(probs, rest)
        columns |= {"top_classes": reference.top_classes, "top_probs": reference.top_probs.astype(np.float32)}
    if classes:
        shown = np.isin(reference.predicted, classes)
        columns = {name: column[shown] for name, column in columns.items()}
    kept = 0 if reference.top_classes is None else reference.top_classes.shape[1]
    return Columns(columns, {"top": kept})


def _sureness(probs: Floats, rest: Floats | float = 0.0) -> dict[str, NDArray[np.float32]]:
    """Largest probability and entropy of rows (n, t), renormalised, NaN for none; `rest` is left to others."""
    total = probs.sum(axis=1) + rest
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = probs / total[:, None]
        others = np.broadcast_to(rest / total, total.shape)
        entropy = -np.where(shares > 0.0, shares * np.log(shares), 0.0).sum(axis=1)
        entropy -= np.where(others > 0.0, others * np.log(others), 0.0)
        top = shares.max(axis=1, initial=0.0)
    is_known = total > 0.0
    top, entropy = np.where(is_known, top, np.nan), np.where(is_known, entropy, np.nan)
    return {"top": top.astype(np.float32), "entropy": entropy.astype(np.float32)}


@lru_cache(maxsize=16)
def _density(bundle: Version, layer: str, classes: tuple[int, ...]) -> Columns:
    """log10 of a density on a grid a little larger than the first view; of chosen classes if any are named.

    Of the student's density, P(y) = Σ_k P(k) P(y | k), the sum then runs over the chosen classes, whose priors are
    renormalised.
    """
    low, high = _view(bundle)
    low, high = low - 0.25 * (high - low), high + 0.25 * (high - low)
    x, y = (np.linspace(low[i], high[i], _GRID) for i in range(2))
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    if layer == "kde":
        found = bundle.content.kde.log_density(grid)
    else:
        joint, prior = bundle.embedder.student.log_joint(grid), bundle.embedder.student.log_prior
        chosen = [i for i, number in enumerate(_mapped_classes(bundle)) if not classes or number in classes]
        if not chosen:
            raise RequestError("classes: none of them is on this map", field="classes")
        found = np.logaddexp.reduce(joint[:, chosen], axis=1) - np.logaddexp.reduce(prior[chosen])
    values = (found / np.log(10.0)).astype(np.float32)
    return Columns({"x": x, "y": y, "z": values}, {"rows": _GRID, "columns": _GRID})


def _points(sources: Sources, call: Call) -> Columns:
    from darksight_service.store import MAX_MAPPED, PointFilter

    version = sources.registry.get(call.text("model"), call.text("version", "")).version
    classes = call.integers("classes")
    wanted = PointFilter(
        call.text("model"),
        version,
        since_ms=call.integer("since_ms", 0),
        until_ms=call.integer("until_ms", 0) or int(time.time() * 1000) + 60_000,
        decisions=_one_of(call, "decision", {"accept": Decision.ACCEPT, "reject": Decision.REJECT}),
        reasons=call.integers("reasons"),
        predicted=classes,
    )
    is_sample = bool(call.integer("sample", 0))
    needs_probs = not is_sample and (bool(classes) or bool(call.integer("entropy", 0)))
    most = _CALL if needs_probs else MAX_MAPPED
    store, limit = sources.store(), call.integer("limit", _CALL, low=1, high=most)
    if is_sample:
        found = store.sample_map_points(wanted, limit=limit)
    else:
        before, after = (_id(call, name) for name in ("before", "after"))
        found = store.map_points(wanted, limit=limit, before=before, after=after, with_probs=needs_probs)
    columns: dict[str, NDArray[Any]] = {
        "id": found.ids.reshape(-1),
        "time": found.received_ms,
        "x": np.ascontiguousarray(found.points[:, 0]),
        "y": np.ascontiguousarray(found.points[:, 1]),
        "predicted": found.predicted,
        "label": found.label,
        "reason": found.reason,
        "accepted": found.is_accepted.astype(np.uint8),
        "top": found.top,
        "p_value": found.p_value,
    }
    if needs_probs:
        sureness = _kept_sureness(found.probs, classes)
        # Of all classes the stored one is the exact one.
        columns |= sureness if classes else {"entropy": sureness["entropy"]}
    meta = {"total": store.count_points(wanted)} if call.integer("count", 0) else {}
    return Columns(columns, meta)


def _kept_sureness(rows: tuple[NDArray[np.float32], ...], classes: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    """Largest probability and entropy of stored rows, among the chosen classes if any; NaN where none were kept."""
    width = max(map(len, rows), default=0)
    known = np.array([len(row) == width and width > 0 for row in rows])
    probs = np.full((len(rows), width), np.nan)
    if known.any():
        probs[known] = np.stack([row for row in rows if len(row) == width])
    chosen = [number for number in classes if number < width] if classes else slice(None)
    return _sureness(probs[:, chosen])


def _point(sources: Sources, call: Call) -> Answer:
    """One stored point with its probabilities."""
    serving = sources.registry.get(call.text("model"), call.text("version", ""))
    points = sources.store().points_by_id(serving.model, serving.version, [_id(call, "id")])
    if not points:
        raise NotFoundError("there is no such point of this version; it may be past retention", field="id")
    (found,) = points
    return {
        "prediction_id": found.prediction_id,
        "received_ms": found.received_ms,
        "decision": Decision(found.decision).name.lower(),
        "reason": Reason(found.reason).name.lower().replace("_", " "),
        "predicted": found.predicted,
        "label": found.label,
        **{name: _number(getattr(found, name)) for name in ("x", "y", "log_density", "log_kde", "p_value", "top")},
        "probs": [_number(value) for value in found.probs.tolist()],
    }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _one_of(call: Call, name: str, choices: dict[str, Decision]) -> tuple[int, ...]:
    text = call.text(name, "")
    if not text:
        return ()
    if text not in choices:
        raise RequestError(f"{name}: must be {' or '.join(choices)}, not {text[:40]!r}", field=name)
    return (int(choices[text]),)


def _id(call: Call, name: str) -> bytes:
    text = call.text(name, "")
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b"?"
    if len(found) not in (0, 16):
        raise RequestError(f"{name}: is no id of a point", field=name)
    return found
