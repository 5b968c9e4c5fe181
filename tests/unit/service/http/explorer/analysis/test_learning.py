from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from darksight_service.http.explorer.analysis.background import BackgroundResults
from darksight_service.http.explorer.analysis.learning import LearnedScore, learn, rank_points
from darksight_service.http.explorer.analysis.review_queue import Stream, review_queue

from tests.support.point_tables import make_table


def test_few_labels_teach_nothing():
    """The summary says how many are missing, and points keep the order of max-softmax."""
    score = learn(make_table(30))

    assert (score.labels, score.labels_needed, score.fit) == (30, 10, None)
    assert "10 more labels" in score.summary
    softmax, learned, chance = rank_points(score, make_table(100, seed=1))
    assert softmax.tolist() == learned.tolist()
    assert np.isnan(chance).all()


def test_labels_without_errors_cannot_judge_an_order():
    """All right: there is a fit, but nothing to compare."""
    table = make_table(100)
    score = learn(make_table(100, label=table.predicted))

    assert score.fit is not None
    assert score.learned is None
    assert "needs at least" in score.summary


def test_with_few_labels_the_order_stays_that_of_max_softmax():
    """Labels that follow max-softmax alone: over ten draws of 150 the learned score leaves its order in at most three,
    as one draw in six does by the rule of one standard error, and never claims to be better.
    """
    scores = [learn(make_table(150, seed=seed)) for seed in range(10)]

    assert sum(not score.is_softmax for score in scores) <= 3
    assert not any("better than" in score.summary for score in scores)


def test_a_class_that_is_often_wrong_is_learned():
    """Class 0 is wrong nine times in ten, however sure it is: the learned score finds errors better, and says so."""
    table = make_table(2_000, seed=4)
    rng = np.random.default_rng(0)
    bad = (table.predicted == 0) & (rng.uniform(size=2_000) < 0.9)
    taught = make_table(2_000, seed=4, label=np.where(bad, 1, table.predicted))

    score = learn(taught)

    assert not score.is_softmax
    assert "better than max-softmax" in score.summary
    softmax, learned, chance = rank_points(score, make_table(500, seed=5))
    is_bad = make_table(500, seed=5).predicted == 0
    assert learned[is_bad].mean() < softmax[is_bad].mean()
    assert chance[is_bad].mean() < 0.3 < chance[~is_bad].mean()


def test_points_without_probabilities_are_ranked_last():
    """They can be neither learned from nor ranked."""
    table = make_table(60)
    table.probs[7] = np.nan

    softmax, learned, chance = rank_points(LearnedScore(0, 0, 40), table)

    assert softmax[7] == learned[7] == 60
    assert np.isnan(chance[7])


def test_a_result_is_computed_once_and_again_after_a_new_label():
    """The first call finds nothing, later ones the latest result and whether a newer one is being computed."""
    later: list[Callable[[], None]] = []
    scores = BackgroundResults(learn, later.append)
    table = make_table(50)

    assert scores.get("digits", table) == (None, True)
    assert scores.get("digits", table) == (None, True)
    assert len(later) == 1
    later.pop()()
    score, is_learning = scores.get("digits", table)
    assert score is not None
    assert (score.labels, is_learning) == (50, False)

    newer = make_table(51)
    assert scores.get("digits", newer) == (score, True)
    later.pop()()
    found, is_learning = scores.get("digits", newer)
    assert found is not None
    assert (found.labels, is_learning) == (51, False)


@pytest.mark.parametrize("stream", list(Stream))
def test_a_stream_has_unlabelled_points_in_its_order(stream: Stream):
    """Outliers by p-value, the doubtful by confidence, the audit by its draw; what has a label waits no more."""
    reason = np.where(np.arange(600) % 10 == 0, 2, 1)
    table = make_table(600, labelled=0.3, reason=reason)
    odds, decision = np.full(200, 0.25), np.where(np.arange(200) % 3 == 0, 2, 1)
    drawn = make_table(200, seed=1, labelled=0.3, audit_odds=odds, decision=decision)

    found = review_queue(table, drawn, LearnedScore(0, 0, 40), stream, limit=10_000)

    rows = np.array([item.row for item in found.items])
    assert not found.table.is_labelled[rows].any()
    assert len(rows) == found.counts[stream] == len(set(rows.tolist()))
    if stream is Stream.OUTLIERS:
        assert (np.diff(table.p_value[rows]) >= 0).all()
        assert (table.reason[rows] == 2).all()
    elif stream is Stream.DOUBTFUL:
        assert (np.diff([item.learned_rank for item in found.items]) > 0).all()
        assert (table.reason[rows] == 1).all()
    else:
        wanted = ~drawn.is_labelled & (drawn.accepted | (stream is Stream.AUDIT))
        assert rows.tolist() == np.flatnonzero(wanted).tolist()
        assert {item.odds for item in found.items} == {0.25}
