"""The outlier score of rows that are spread over processes."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from darksight_core.fit.distributed.process_group import BLOCK_ROWS, ProcessGroup, deal_blocks
from darksight_core.fit.distributed.shards import Share
from darksight_core.fit.outliers import OutlierScores
from darksight_core.scores.outlier import OutlierScore
from darksight_core.simplex import log_probs
from tests.support.builders import make_probs
from tests.support.threads import Member, together

ROWS = 6 * BLOCK_ROWS - 100


@pytest.mark.parametrize("ahead", [(0, 0), (0, 3), (0, 1), (2, 3)])
def test_it_does_not_matter_who_scores(ahead: tuple[int, int]) -> None:
    """However many of three blocks each process had time for before the end, the result is that of one process."""
    probs, rows = make_probs(ROWS, 3), np.flatnonzero(np.arange(ROWS) % 10 < 6)
    alone = OutlierScores(probs, Share(ProcessGroup(), range(ROWS), ROWS).part(rows), 0).finish()

    def work(member: Member) -> OutlierScore:
        own = deal_blocks(ROWS, member.rank, member.size)
        part = Share(cast(ProcessGroup, member), own, ROWS).part(rows)
        scores = OutlierScores(probs[own.start : own.stop], part, 0)
        for _ in zip(range(ahead[member.rank]), scores.meanwhile(), strict=False):
            pass
        return scores.finish()

    whole = OutlierScore.fit(log_probs(probs[rows]), 0)
    for found in (alone, *together(2, work)):
        np.testing.assert_allclose(found.soft_rank.scores, whole.soft_rank.scores, rtol=1e-12)
        assert found.settings() == alone.settings()
        for name, array in alone.tensors().items():
            np.testing.assert_array_equal(found.tensors()[name], array)
