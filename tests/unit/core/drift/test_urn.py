"""Cells with an exact null hypothesis."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from darksight_core.drift.urn import ScoreCells, row_uniforms
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration


@pytest.mark.parametrize("values", [None, 4], ids=["continuous", "four tied values"])
def test_the_next_row_falls_into_each_cell_by_its_gaps(values: int | None) -> None:
    """Over calibration sets of 19 rows the share of new rows in cell b is a_b / 20, ties or not."""
    rng = np.random.default_rng(1)
    runs, gaps = 4_000, ScoreCells(Calibration(np.arange(19.0))).gaps
    found = np.zeros(len(gaps))
    for _ in range(runs):
        rows = rng.normal(size=20) if values is None else rng.integers(0, values, 20).astype(np.float64)
        found[ScoreCells(Calibration(rows[:19])).cells(rows[19:], rng.random(1))] += 1

    assert gaps.sum() == 20
    assert stats.chisquare(found, runs * gaps / 20).pvalue > 1e-3


def test_evidence_needs_calibration_rows() -> None:
    """A bundle without calibration rows is refused."""
    with pytest.raises(ConfigError, match="needs calibration rows"):
        ScoreCells(Calibration(np.empty(0)))


def test_uniform_numbers_of_ids_are_uniform_and_independent() -> None:
    """Consecutive ids give three columns that are uniform and do not depend on each other, the same each time."""
    ids = np.stack([np.full(20_000, 7, dtype=np.uint64), np.arange(20_000, dtype=np.uint64)], axis=1)

    found = row_uniforms(ids)

    assert np.array_equal(found, row_uniforms(ids))
    assert all(stats.kstest(column, "uniform").pvalue > 1e-3 for column in found.T)
    assert np.abs(np.corrcoef(found.T) - np.eye(3)).max() < 0.03
    assert abs(np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]) < 0.03
