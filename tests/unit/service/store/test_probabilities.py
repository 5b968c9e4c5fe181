"""What is kept of probabilities."""

from __future__ import annotations

import numpy as np
from darksight_service.store.probabilities import decode_probs, parse_probability_codec


def test_probabilities_are_kept_as_numpy_rounds_them():
    """Every float16, what lies in the middle of two, and the float32 beside them; beyond [0, 1] and no numbers too."""
    halves = np.arange(0x8000, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    edges = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2.0])
    around = np.concatenate([(edges.view(np.int32) + step).view(np.float32) for step in (-1, 0, 1)])
    values = np.concatenate([around, -around, [np.inf, -np.inf, np.nan, 1e38]]).astype("<f4")
    good = np.sort(values[(values >= 0.0) & (values <= 1.0)])

    for probs in (good[: len(good) // 4 * 4].reshape(-1, 4), values[:, None], values[None], np.empty((3, 0), "<f4")):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = probs.astype("<f2").view(np.uint8).reshape(len(probs), 2 * probs.shape[1])
        known = np.zeros(len(probs), dtype=np.int32)
        np.testing.assert_array_equal(parse_probability_codec("float16")(probs, known), expected)


def test_the_largest_that_came_with_a_row_are_kept():
    """What was completed is not, whatever else there is room for."""
    probs = np.array([[0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02]] * 2, dtype=np.float32)

    kept = parse_probability_codec("topK:3")(probs, np.array([2, 0]))

    found = decode_probs([row.tobytes() for row in kept])
    np.testing.assert_allclose(found, [[0.5, 0.2, 0, 0, 0, 0, 0], [0.5, 0.2, 0.1, 0, 0, 0, 0]], atol=1e-4)
