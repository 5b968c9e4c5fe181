"""Compiles the loops of the core into numba's cache: a minute that every process of the tests would spend by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from darksight_core.bundle import read_bundle
from darksight_core.runtime.policy import ScoringPolicy


def main() -> None:
    """Score one row and several, in both forms of an answer."""
    golden = Path(__file__).parents[1] / "golden"
    policy = ScoringPolicy.of(read_bundle(golden / "bundle_v1.safetensors"))
    rows = np.load(golden / "bundle_v1.scores.npz")["probs"].astype("<f4")
    for some in (rows[:1], rows):
        policy.score(some)
        policy.score_block(some.tobytes(), len(some))


if __name__ == "__main__":
    main()
