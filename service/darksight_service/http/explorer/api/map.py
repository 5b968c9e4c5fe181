"""Endpoints of the map page: the map itself, its reference points, stored points and densities."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from darksight_core.map.palette import map_view
from darksight_core.map.strip import spread_over_strip, strip_to_line
from darksight_core.map.verdict import has_points_near
from darksight_core.rows.schema import Decision
from darksight_core.rows.simplex import Floats
from darksight_core.rows.tags import is_key
from darksight_service.control.registry import Version
from darksight_service.errors import NotFoundError, RequestError
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.columns import LABELS, Columns, point_columns, point_fields, tag_column
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import (
    ClassNumbers,
    Milliseconds,
    PointId,
    TagKey,
    TagPairs,
    VersionInput,
    now_ms,
)
from darksight_service.store.points import PointFilter
from darksight_service.store.read.map_points import MAX_MAP_POINTS

__all__ = ["endpoints"]

_GRID = 160
# Default number of points, and the maximum with probabilities, which are larger.
_LIMIT = 10_000
_MINUTE_MS = 60_000


class _ReferenceInput(VersionInput):
    classes: ClassNumbers = ()


class _DensityInput(_ReferenceInput):
    layer: Literal["student", "kde"] = "student"


class _PointsInput(_ReferenceInput):
    since_ms: Milliseconds = 0
    # A little later than now: clocks differ.
    until_ms: Milliseconds = Field(default_factory=lambda: now_ms() + _MINUTE_MS)
    decision: Literal["accept", "reject"] | None = None
    tags: TagPairs = ()
    # Return the values of this tag as a column.
    tag_key: TagKey = ""
    limit: Annotated[int, Field(ge=1, le=MAX_MAP_POINTS)] = _LIMIT
    before: PointId = b""
    after: PointId = b""
    sample: bool = False
    entropy: bool = False
    count: bool = False


class _PointInput(VersionInput):
    id: PointId


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """All paths below `/api/map`."""

    def describe(call: Call[VersionInput]) -> Answer:
        active = sources.active_model(call.input)
        return {**_describe(active.model, active.bundle), "tag_keys": _tag_keys(sources, active.model)}

    def reference(call: Call[_ReferenceInput]) -> Answer:
        return _reference_columns(sources.active_model(call.input).bundle, call.input.classes)

    def density(call: Call[_DensityInput]) -> Answer:
        return _density(sources.active_model(call.input).bundle, call.input.layer, call.input.classes)

    def points(call: Call[_PointsInput]) -> Answer:
        return _points(sources, call.input)

    def point(call: Call[_PointInput]) -> Answer:
        return _point(sources, call.input)

    return [
        Endpoint("GET", "/api/map", "read", VersionInput, describe),
        Endpoint("GET", "/api/map/reference", "read", _ReferenceInput, reference),
        Endpoint("GET", "/api/map/density", "read", _DensityInput, density),
        Endpoint("GET", "/api/map/points", "read", _PointsInput, points),
        Endpoint("GET", "/api/map/point", "read", _PointInput, point),
    ]


def _describe(model: str, bundle: Version) -> dict[str, Any]:
    reference, means = bundle.reference, bundle.embedder.student.means
    return {
        "model": model,
        "version": bundle.version,
        "class_names": bundle.class_names,
        "classes": _mapped_classes(bundle),
        "means": means,
        "has_points_near": has_points_near(
            reference.points.astype(np.float64), reference.predicted, means, bundle.embedder.columns
        ),
        "bound": bundle.embedder.bound,
        "view": _view(bundle),
        "labels": LABELS,
    }


def _tag_keys(sources: Sources, model: str) -> list[str]:
    # Not the key under which keys beyond the limit are stored.
    return [key for key in sources.store().tag_keys(model) if is_key(key)]


def _mapped_classes(bundle: Version) -> tuple[int, ...]:
    """Numbers of the classes that the map shows, in the order of its centres."""
    columns = bundle.embedder.columns
    return tuple(range(len(bundle.class_names))) if columns is None else columns


@lru_cache(maxsize=16)
def _view(bundle: Version) -> tuple[Floats, Floats]:
    return map_view(bundle.embedder.student, bundle.reference.points.astype(np.float64))


def _reference_columns(bundle: Version, classes: tuple[int, ...]) -> Columns:
    reference = bundle.reference
    points = spread_over_strip(bundle.embedder.student, reference.points)
    probs = reference.top_probs.astype(np.float64)
    rest = 0.0 if classes else np.maximum(0.0, 1.0 - probs.sum(axis=1))
    if classes:
        probs = np.where(np.isin(reference.top_classes, classes), probs, 0.0)
    columns: dict[str, NDArray[Any]] = {
        "x": points[:, 0],
        "y": points[:, 1],
        "predicted": reference.predicted,
        "label": reference.labels.astype(np.int32),
        **_top_and_entropy(probs, rest),
        "top_classes": reference.top_classes,
        "top_probs": reference.top_probs.astype(np.float32),
    }
    if classes:
        shown = np.isin(reference.predicted, classes)
        columns = {name: column[shown] for name, column in columns.items()}
    return Columns(columns, {"top": reference.top_classes.shape[1]})


def _top_and_entropy(probs: Floats, rest: Floats | float = 0.0) -> dict[str, NDArray[np.float32]]:
    """Largest probability and entropy of rows (n, t), renormalised; NaN for empty rows.

    `rest` is the probability of all other classes together.
    """
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
    """log10 of a density on a square grid larger than the first view; of the chosen classes if any are named.

    The student's density P(y) = Σ_k P(k) P(y | k) is then summed over the chosen classes, with renormalised priors.
    """
    low, high = _view(bundle)
    # As wide as it is tall: the map keeps its proportions in a window of any shape.
    middle, reach = (low + high) / 2.0, 0.75 * float((high - low).max())
    low, high = middle - reach, middle + reach
    x, y = (np.linspace(low[i], high[i], _GRID) for i in range(2))
    grid = strip_to_line(bundle.embedder.student, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
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


def _points(sources: Sources, given: _PointsInput) -> Columns:
    active = sources.active_model(given)
    wanted = PointFilter(
        given.model,
        active.version,
        since_ms=given.since_ms,
        until_ms=given.until_ms,
        decisions=() if given.decision is None else (int(Decision[given.decision.upper()]),),
        predicted=given.classes,
        tags=given.tags,
    )
    with_probs = not given.sample and (bool(given.classes) or given.entropy)
    if with_probs and given.limit > _LIMIT:
        raise RequestError(f"limit: must be at most {_LIMIT} with probabilities, not {given.limit}", field="limit")
    store = sources.store()
    if given.sample:
        found = store.sample_map_points(wanted, limit=given.limit)
    else:
        found = store.map_points(
            wanted,
            limit=given.limit,
            before=given.before,
            after=given.after,
            with_probs=with_probs,
            with_tags=bool(given.tag_key),
        )
    columns = point_columns(found)
    points = np.column_stack([columns["x"], columns["y"]])
    columns["y"] = spread_over_strip(active.bundle.embedder.student, points, found.ids[:, 1])[:, 1]
    if with_probs:
        classes = [number for number in given.classes if number < found.probs.shape[1]]
        probs = found.probs[:, classes] if given.classes else found.probs
        computed = _top_and_entropy(probs.astype(np.float64))
        # Over all classes the stored maximum is exact.
        columns |= computed if given.classes else {"entropy": computed["entropy"]}
    meta: dict[str, Any] = {"total": store.count_points(wanted)} if given.count else {}
    if given.tag_key and not given.sample:
        columns["tag"], meta["tag_values"] = tag_column(found, given.tag_key)
    return Columns(columns, meta)


def _point(sources: Sources, given: _PointInput) -> Answer:
    """A stored point with its probabilities."""
    active = sources.active_model(given)
    points = sources.store().points_by_id(active.model, active.version, [given.id])
    if not len(points):
        raise NotFoundError("this version has no such point; retention may have deleted it", field="id")
    (found,) = points.rows()
    return {**point_fields(found), "probs": found["probs"]}
