"""Tables of generated points, for the tests of the explorer."""

from __future__ import annotations

from typing import Any

import numpy as np
from darksight_service.store.points import PointTable

__all__ = ["make_table"]


def make_table(n: int = 400, *, classes: int = 4, seed: int = 0, labelled: float = 1.0, **columns: Any) -> PointTable:
    """Points whose largest probability is the chance of being right; a share of them has a label."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.35), size=n).astype(np.float32)
    top, predicted = probs.max(axis=1).astype(np.float64), probs.argmax(axis=1)
    right = rng.uniform(size=n) < top
    label = np.where(right, predicted, (predicted + 1) % classes)
    ids = np.stack([np.arange(n, dtype=np.uint64) << np.uint64(16), rng.integers(1 << 62, size=n, dtype=np.uint64)], 1)
    made: dict[str, Any] = {
        "ids": ids.astype(">u8"),
        "points": rng.normal(size=(n, 2)),
        "log_density": rng.normal(size=n),
        "log_kde": rng.normal(size=n),
        "outlier_score": rng.normal(size=n),
        "p_value": (1 + rng.integers(1000, size=n)) / 1001,
        "confidence": np.log(top / (1.0 - np.minimum(top, 0.999_999))),
        "top": top,
        "predicted": predicted.astype(np.int32),
        "reason": np.ones(n, dtype=np.int8),
        "decision": np.ones(n, dtype=np.int8),
        "label": np.where(rng.uniform(size=n) < labelled, label, -1).astype(np.int64),
        "probs": probs,
    }
    return PointTable.of(**(made | columns), model="digits", versions=("a" * 64,))
