"""The list of scores."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.gate.gate import Gate
from darksight_core.rows.schema import ScoredBatch
from darksight_core.scores.registry import KERNEL_NUMBERS, SCORES, Score, map_scores


def test_numbers_in_the_kernel_are_consecutive() -> None:
    """The compiled gate finds a score by its number, so each number has one score and none is missing."""
    assert sorted(KERNEL_NUMBERS.values()) == list(range(len(KERNEL_NUMBERS)))


def test_only_fitted_scores_have_no_function() -> None:
    """Every other score can be computed from the entry alone."""
    assert {name for name, score in SCORES.items() if score.function is None} == {
        name for name, score in SCORES.items() if score.needs == "fit"
    }


def test_a_new_score_of_the_map_needs_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate decides by it and tables list it without another change."""
    scores = ScoredBatch.unscored(4)
    scores.points[:] = np.arange(8.0).reshape(4, 2)
    monkeypatch.setitem(
        SCORES, "nearness", Score("nearness", "nearness", "map", lambda rows: -(rows.points[:, 0] ** 2))
    )
    monkeypatch.setattr("darksight_core.gate.gate.REJECT_SCORES", tuple(SCORES))

    found = Gate(reject_score="nearness").reject_scores(np.zeros((4, 2)), scores)

    np.testing.assert_array_equal(found, map_scores(scores)["nearness"])
