"""The outlier score of the rows of all processes, block by block, by whoever has time.

It needs neither map nor f_p, so processes that wait for the first one to make these score their own blocks meanwhile.
The blocks that are left at the end are dealt anew: the first process gives away what the others have time for. Rows
pass between processes as they are and in whole blocks, and ranks do not depend on the order of scores, so the result is
that of a process alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from darksight_core.fit.distributed.shards import Part
from darksight_core.scores.confidence import gen
from darksight_core.scores.outlier import GAMMA, TOP_CLASSES, OutlierScore, SoftNeighbours, draw_known
from darksight_core.simplex import Floats, log_probs

__all__ = ["OutlierScores"]


class OutlierScores:
    """What `OutlierScore.fit` does, for rows that are spread over processes.

    Parameters
    ----------
    probs
        Rows of this process, (n, K).
    known
        Which of them, and of those of the others, are known.
    seed
        Seed of the draw of rows to store.
    """

    def __init__(self, probs: NDArray[np.float32], known: Part, seed: int) -> None:
        self._team, self._probs = known.share.team, probs
        drawn, stored = draw_known(known.total, probs.shape[1], seed)
        self._neighbours = SoftNeighbours.of_known(log_probs(known.pick(probs[known.own], drawn)), stored)
        is_ranked = np.ones(known.total, dtype=bool)
        is_ranked[drawn[:stored]] = False
        mine = is_ranked[known.first : known.first + len(known.own)]
        self._left = [known.own[block][mine[block]] for block in known.blocks]
        self._scores: list[Floats] = [np.empty((2, 0))]

    def meanwhile(self) -> Iterator[None]:
        """Scores a block of this process at each step."""
        while self._left:
            self._score(self._probs[self._left.pop()])
            yield

    def finish(self) -> OutlierScore:
        """Scores what is left, shared evenly; the outlier score."""
        taken = self._even_out()
        for rows in self._left:
            self._score(self._probs[rows])
        for block in taken:
            self._score(block)
        return OutlierScore.of_scores(self._neighbours, *self._team.gather(np.concatenate(self._scores, axis=1).T).T)

    def _score(self, probs: NDArray[np.float32]) -> None:
        log_pi = log_probs(probs)
        self._scores.append(np.stack([gen(log_pi, GAMMA, TOP_CLASSES), self._neighbours.score(log_pi)]))

    def _even_out(self) -> list[NDArray[np.float32]]:
        """Gives blocks away if the others have fewer left, or takes some."""
        team = self._team
        left = team.gather(np.array([len(self._left)]))
        goal = np.diff(left.sum() * np.arange(team.size + 1) // team.size)
        given = [self._probs[self._left.pop()] for _ in range(left[team.rank] - goal[team.rank])]
        lengths = team.gather(np.array([len(block) for block in given], dtype=np.int64))
        rows = team.gather(np.concatenate([self._probs[:0], *given]))
        wanted = np.maximum(goal - left, 0).cumsum()
        blocks = np.split(rows, lengths.cumsum()[:-1])
        return blocks[wanted[team.rank - 1] if team.rank else 0 : wanted[team.rank]]
