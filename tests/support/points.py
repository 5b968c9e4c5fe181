"""Builders of what the service stores, for the tests and benchmarks of the store."""

from __future__ import annotations

from typing import Any

import numpy as np
from darksight_service.ingest.records import OutcomeBatch, PointBatch, make_batch_id

__all__ = ["VERSION", "make_batch", "make_outcomes"]

VERSION = "a" * 64


def make_batch(
    n: int = 10,
    *,
    ms: int = 1_800_000_000_000,
    seed: int = 0,
    classes: int = 10,
    model: str = "digits",
    version: str = VERSION,
    names: tuple[str, ...] | None = (),
    is_shadow: bool = False,
    with_invalid: bool = True,
    **columns: Any,
) -> PointBatch:
    """Points as a gate would judge them; names None gives each row one of 16 letters. Every 7th row is not valid."""
    rng = np.random.default_rng((seed, n, ms))
    probs = rng.dirichlet(np.full(classes, 0.3), size=n).astype(np.float32)
    floats = {
        name: rng.normal(-2.0, 1.0, size=n).astype(np.float32) for name in ("log_density", "log_kde", "outlier_score")
    }
    p_value = ((1 + rng.integers(0, 1000, size=n)) / 1001).astype(np.float32)
    top = probs.max(axis=1)
    reason = np.where(p_value <= 0.05, 2, np.where(top <= 0.5, 3, 1)).astype(np.uint8)
    predicted = probs.argmax(axis=1).astype(np.int32)
    batch_id = make_batch_id(ms, rng.bytes(7))
    points = rng.normal(size=(n, 2)).astype(np.float32)
    invalid = (np.arange(n) % 7 == 6) & with_invalid
    reason[invalid], predicted[invalid], points[invalid] = 5, -1, np.nan
    confidence = top.copy()
    for column in (*floats.values(), p_value, top, confidence, probs):
        column[invalid] = np.nan
    if names is None:
        names = tuple([f"order-{seed % 10_000:04d}-{row:05d}" for row in range(n)])
    made: dict[str, Any] = {
        "points": points,
        **floats,
        "p_value": p_value,
        "confidence": confidence,
        "top": top,
        "decision": np.where(reason == 1, 1, 2).astype(np.uint8),
        "reason": reason,
        "predicted": predicted,
        "probs": probs,
    }
    return PointBatch(
        batch_id=batch_id,
        model=model,
        version=version,
        is_shadow=is_shadow,
        event_ms=0,
        prediction_ids=names,
        **(made | {name: np.asarray(value, dtype=made[name].dtype) for name, value in columns.items()}),
    )


def make_outcomes(
    labels: dict[str, int], *, ms: int = 1_800_000_000_000, observed_ms: int = 0, model: str = "digits"
) -> OutcomeBatch:
    """Labels by name of the prediction."""
    return OutcomeBatch(
        model=model,
        received_ms=ms,
        prediction_ids=tuple(labels),
        labels=np.array(list(labels.values()), dtype=np.int32),
        observed_ms=np.full(len(labels), observed_ms, dtype=np.int64),
    )
