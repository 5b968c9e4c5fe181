from __future__ import annotations

import numpy as np
import pytest
from darksight_service.store.read.share import Share


def test_a_share_has_its_exact_interval():
    """Clopper and Pearson's interval of 9 right rows among 10, from a table."""
    found = Share.of(np.arange(10) > 0)

    assert (found.rows, found.right, found.share) == (10, 9, 0.9)
    assert (found.low, found.high) == pytest.approx((0.55498, 0.99747), abs=1e-5)


def test_no_outcome_is_no_accuracy():
    """Nothing is known, and nothing is claimed."""
    assert Share.of(np.ones(0, dtype=np.bool_)) == Share(0, 0, None, 0.0, 1.0)
