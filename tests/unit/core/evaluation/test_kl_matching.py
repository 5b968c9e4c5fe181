"""KL matching against its formula."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.evaluation.kl_matching import KlMatching
from darksight_core.rows.simplex import log_probs


def test_kl_matching_is_zero_on_a_template() -> None:
    """A row equal to its class's template scores 0, any other below; a class never predicted has a one-hot template."""
    rows = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.1, 0.9, 0.0]])
    matching = KlMatching.fit(log_probs(rows))
    np.testing.assert_allclose(matching.templates, [[0.7, 0.2, 0.1], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]], atol=1e-12)

    scores = matching.score(log_probs(np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0], [0.34, 0.33, 0.33]])))

    assert scores[:2] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert scores[2] < -0.1
