from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from darksight_service.explorer.analysis.audit import audit
from darksight_service.explorer.analysis.learning import Latest, Lesson, learn, rank_changes
from darksight_service.explorer.analysis.review_queue import Stream, waiting

from tests.support.frames import make_frame


def test_few_labels_teach_nothing():
    """It says how many are missing, and points keep the order of max-softmax."""
    lesson = learn(make_frame(30))

    assert (lesson.labels, lesson.needed, lesson.learned) == (30, 10, None)
    assert "10 more labels" in lesson.verdict
    softmax, learned, chance = rank_changes(lesson, make_frame(100, seed=1))
    assert softmax.tolist() == learned.tolist()
    assert np.isnan(chance).all()


def test_labels_without_errors_cannot_judge_an_order():
    """All right: there is a fit, but nothing to compare."""
    frame = make_frame(100)
    lesson = learn(make_frame(100, label=frame.predicted))

    assert lesson.learned is not None
    assert lesson.gain is None
    assert "cannot be told" in lesson.verdict


def test_with_few_labels_the_order_stays_that_of_max_softmax():
    """Labels that follow max-softmax alone: over ten draws of 150 the learned score leaves its order in at most three,
    as one draw in six does by the rule of one standard error, and never claims to be better.
    """
    lessons = [learn(make_frame(150, seed=seed)) for seed in range(10)]

    assert sum(not lesson.is_shrunk for lesson in lessons) <= 3
    assert not any("better than" in lesson.verdict for lesson in lessons)


def test_a_class_that_is_often_wrong_is_learned():
    """Class 0 is wrong nine times in ten, however sure it is: the learned score finds errors better, and says so."""
    frame = make_frame(2_000, seed=4)
    rng = np.random.default_rng(0)
    bad = (frame.predicted == 0) & (rng.uniform(size=2_000) < 0.9)
    taught = make_frame(2_000, seed=4, label=np.where(bad, 1, frame.predicted))

    lesson = learn(taught)

    assert not lesson.is_shrunk
    assert "better than max-softmax" in lesson.verdict
    softmax, learned, chance = rank_changes(lesson, make_frame(500, seed=5))
    is_bad = make_frame(500, seed=5).predicted == 0
    assert learned[is_bad].mean() < softmax[is_bad].mean()
    assert chance[is_bad].mean() < 0.3 < chance[~is_bad].mean()


def test_points_without_probabilities_are_ranked_last():
    """They can be neither learned from nor ranked."""
    frame = make_frame(60)
    frame.probs[7] = np.nan

    softmax, learned, chance = rank_changes(Lesson(0, 0, 40), frame)

    assert softmax[7] == learned[7] == 60
    assert np.isnan(chance[7])


def test_a_lesson_is_made_once_and_again_after_a_new_label():
    """The first look finds nothing, the next ones the latest lesson, and whether a newer one is on its way."""
    later: list[Callable[[], None]] = []
    lessons: Latest[Lesson] = Latest(later.append)
    frame = make_frame(50)

    assert lessons.get("digits", frame, learn) == (None, True)
    assert lessons.get("digits", frame, learn) == (None, True)
    assert len(later) == 1
    later.pop()()
    lesson, is_learning = lessons.get("digits", frame, learn)
    assert lesson is not None
    assert (lesson.labels, is_learning) == (50, False)

    newer = make_frame(51)
    assert lessons.get("digits", newer, learn) == (lesson, True)
    later.pop()()
    found, is_learning = lessons.get("digits", newer, learn)
    assert found is not None
    assert (found.labels, is_learning) == (51, False)


@pytest.mark.parametrize("stream", list(Stream))
def test_a_stream_has_unlabelled_points_in_its_order(stream: Stream):
    """Outliers by p-value, the doubtful by confidence, the audit by its draw; what has a label waits no more."""
    reason = np.where(np.arange(600) % 10 == 0, 2, 1)
    frame = make_frame(600, labelled=0.3, reason=reason)
    drawn = audit(frame, 0.2)

    found = waiting(frame, drawn, Lesson(0, 0, 40), stream, limit=10_000)

    rows = np.array([place.row for place in found.places])
    assert not frame.is_labelled[rows].any()
    assert len(rows) == found.counts[stream] == len(set(rows.tolist()))
    if stream is Stream.OUTLIERS:
        assert (np.diff(frame.p_value[rows]) >= 0).all()
        assert (frame.reason[rows] == 2).all()
    elif stream is Stream.DOUBTFUL:
        assert (np.diff([place.learned_rank for place in found.places]) > 0).all()
        assert (frame.reason[rows] == 1).all()
    else:
        wanted = [row for row in drawn.order.tolist() if not frame.is_labelled[row]]
        assert rows.tolist() == wanted
