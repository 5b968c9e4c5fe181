"""Rows that look like a classifier's predictions, for fits small enough for a unit test."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.builders import make_probs


@pytest.fixture
def probs() -> NDArray[np.float32]:
    """400 rows of 5 classes."""
    return make_probs()
