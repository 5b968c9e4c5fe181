"""Builders of stored points, for the tests and benchmarks of spool, store and explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from darksight_service.ingest.records import encode_points
from darksight_service.ingest.tag_section import encode_references, encode_tag_sets
from darksight_service.store.ids import make_batch_id, point_ids
from darksight_service.store.points import OutcomeBatch, PointTable
from darksight_service.store.texts import Texts

from darksight_core.runtime.result_block import ResultBlock

__all__ = ["VERSION", "encode", "make_outcomes", "make_points", "rows_of"]

VERSION = "a" * 64


def make_points(
    n: int = 10,
    *,
    ms: int = 1_800_000_000_000,
    seed: int = 0,
    classes: int = 10,
    model: str = "digits",
    version: str = VERSION,
    names: tuple[str, ...] | None = (),
    is_shadow: bool = False,
    event_ms: int = 0,
    delay_ms: int = 0,
    with_invalid: bool = True,
    tags: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
    trace: bytes = b"",
    **columns: Any,
) -> PointTable:
    """The points of one batch, as a gate would decide; names None gives each row one. Every 7th row is not valid."""
    rng = np.random.default_rng((seed, n, ms))
    probs = rng.dirichlet(np.full(classes, 0.3), size=n).astype(np.float32) if classes else np.empty((n, 0), np.float32)
    top = probs.max(axis=1, initial=0.0)
    p_value = ((1 + rng.integers(0, 1000, size=n)) / 1001).astype(np.float32)
    reason = np.where(p_value <= 0.05, 2, np.where(top <= 0.5, 3, 1)).astype(np.int8)
    made: dict[str, Any] = {
        "points": rng.normal(size=(n, 2)).astype(np.float32),
        **{name: rng.normal(-2.0, 1.0, size=n).astype(np.float32) for name in ("log_density", "log_kde")},
        "outlier_score": rng.normal(-2.0, 1.0, size=n).astype(np.float32),
        "p_value": p_value,
        "confidence": top.copy(),
        "top": top,
        "predicted": (probs.argmax(axis=1) if classes else np.zeros(n)).astype(np.int32),
        "decision": np.where(reason == 1, 1, 2).astype(np.int8),
        "reason": reason,
        "set_size": np.zeros(n, dtype=np.int16),
        "known": np.zeros(n, dtype=np.int16),
        "other": np.full(n, np.nan, dtype=np.float32),
        "probs": probs,
    }
    invalid = (np.arange(n) % 7 == 6) & with_invalid
    for column in made.values():
        if column.dtype == np.float32:
            column[invalid] = np.nan
    made["decision"][invalid], made["reason"][invalid], made["predicted"][invalid] = 2, 5, -1
    made["odds"] = np.ones(n, dtype=np.float32)
    if names is None:
        names = tuple([f"order-{seed % 10_000:04d}-{row:05d}" for row in range(n)])
    made |= {name: np.asarray(value, dtype=made[name].dtype) for name, value in columns.items()}
    row_tags = [tags] * n if isinstance(tags, Mapping) else tags or [{}] * n
    sets = [tuple(sorted(pair for pair in each.items() if pair[0] != "reference")) for each in row_tags]
    made |= {
        "tag_sets": tuple(dict.fromkeys(sets)) or ((),),
        "tags": np.array([list(dict.fromkeys(sets)).index(each) for each in sets], dtype=np.intp),
        "references": Texts.of([each.get("reference") for each in row_tags]),
        "traces": np.broadcast_to(np.frombuffer(trace or bytes(16), ">u8"), (n, 2)),
    }
    batch_id = np.frombuffer(make_batch_id(ms, rng.bytes(7)), ">u8").reshape(1, 2)
    return PointTable.of(
        point_ids(batch_id, n),
        model,
        (version,),
        event_ms=np.full(n, event_ms),
        delay_ms=np.full(n, delay_ms),
        is_shadow=np.full(n, is_shadow),
        names=Texts.of(names) if names else Texts.none(n),
        **made,
    )


def encode(points: PointTable) -> bytes:
    """The record of the points of one batch."""
    names = [name for name in points.names.tolist() if name is not None]
    return encode_points(
        points.id_bytes()[0],
        points.model,
        points.versions[0],
        bool(points.is_shadow[0]),
        int(points.event_ms[0]),
        names,
        ResultBlock.of(points),
        points.probs.tobytes(),
        int(points.delay_ms[0]),
        (
            encode_tag_sets(points.tag_sets, points.tags.tolist() if len(points.tag_sets) > 1 else ()),
            encode_references([each or "" for each in points.references.tolist()]),
        ),
        points.trace_bytes()[0] if points.traces.any() else b"",
    )


def rows_of(points: PointTable) -> list[Any]:
    """Each point as an object with attributes."""
    return [SimpleNamespace(**row) for row in points.rows()]


def make_outcomes(
    labels: dict[str, int], *, ms: int = 1_800_000_000_000, observed_ms: int = 0, model: str = "digits"
) -> OutcomeBatch:
    """Labels by prediction id."""
    return OutcomeBatch(
        model=model,
        received_ms=ms,
        prediction_ids=tuple(labels),
        labels=np.array(list(labels.values()), dtype=np.int32),
        observed_ms=np.full(len(labels), observed_ms, dtype=np.int64),
    )
