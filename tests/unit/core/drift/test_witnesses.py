"""Witnesses of drift: a fair game while nothing changes, and evidence of changes that scores do not see."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.drift.detector import Baseline, RowBatch
from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.stream import DriftTest
from darksight_core.drift.witnesses import WitnessTest
from darksight_core.errors import ConfigError
from darksight_core.guarantees.calibration import Calibration
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.outlier import OutlierScore

CLASSES = 5


def draw(rng: np.random.Generator, n: int, *, shift: Floats | float = 0.0, decimals: int | None = None) -> Floats:
    """Rows of a classifier that is usually sure; `shift` is added to the logits that are not the largest."""
    logits = rng.normal(0.0, 1.0, (n, CLASSES))
    true = np.arange(n), rng.integers(0, CLASSES, n)
    logits += shift
    logits[true] = rng.normal(5.0, 1.0, n)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    if decimals is not None:
        probs = np.round(probs, decimals)
        probs /= probs.sum(axis=1, keepdims=True)
    return probs


def batch_of(rng: np.random.Generator, probs: Floats, score: OutlierScore | None = None) -> RowBatch:
    """Rows as a detector takes them."""
    scores = np.zeros(len(probs)) if score is None else score.score(log_probs(probs))
    return RowBatch(scores, probs.max(axis=1), probs.argmax(axis=1), rng.random((len(probs), 3)), probs)


def make_test(rng: np.random.Generator, rows: int = 3_000, level: float = 0.01, **options: int) -> WitnessTest:
    """A test with this many calibration rows."""
    fit = log_probs(draw(rng, 2_000, **options))
    means = OutlierScore.fit(fit).log_ratios.means
    return WitnessTest(RowFeatures.fit(fit, log_probs(draw(rng, rows, **options)), means), level)


@pytest.mark.parametrize("decimals", [None, 2], ids=["as they are", "rounded"])
def test_evidence_is_a_fair_game_while_nothing_changes(decimals: int | None):
    """Its mean is at most one, and it alarms in at most 2/9 of the level of all streams, also of equal rows."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(60):
        test = make_test(rng, 300, 0.9, decimals=decimals)
        found.append(test.update(test.start(), batch_of(rng, draw(rng, 5_000, decimals=decimals))))
    final = np.exp([state.log_evidence for state in found])
    assert final.mean() <= 1.0 + 4.0 * final.std() / np.sqrt(len(final))
    # 60 streams at 0.2: more than 23 have a probability of 0.0005.
    assert sum(state.alarm_row is not None for state in found) <= 23


def test_a_slow_change_that_scores_do_not_see_is_found_and_described():
    """Rows in which one class is a little likelier and another less become all rows, one after the other."""
    rng = np.random.default_rng(2)
    fit, held = (log_probs(draw(rng, n)) for n in (3_000, 3_000))
    score = OutlierScore.fit(fit)
    witnesses = WitnessTest(RowFeatures.fit(fit, held, score.log_ratios.means))
    scores = DriftTest(Calibration(score.score(held), top=np.exp(held.max(axis=1))), np.full(CLASSES, 600))
    is_changed = rng.random(10_000) < np.linspace(0.0, 1.0, 10_000)
    shift = np.array([0.4, -0.4, 0.0, 0.0, 0.0]) * is_changed[:, None]
    rows = batch_of(rng, draw(rng, 10_000, shift=shift), score)

    state = witnesses.update(witnesses.start(), rows)

    assert scores.update(scores.start(), rows).alarm_row is None
    assert state.alarm_row is not None
    evidence = witnesses.evidence(state)["witnesses"]
    assert evidence.log_evidence >= witnesses.threshold
    assert 1 <= evidence.since_row <= 10_000
    assert "of a rise and those of b fall" in witnesses.describe(state, "abcde")


def test_the_state_does_not_depend_on_batches_or_on_being_stored():
    """Any division of the rows, with the state encoded and decoded in between, gives the same bytes."""
    rng = np.random.default_rng(3)
    test = make_test(rng)
    rows = batch_of(rng, draw(rng, 4_321, shift=0.2))
    whole = test.encode(test.update(test.start(), rows))
    state = test.start()
    for part in np.array_split(np.arange(len(rows)), 37):
        state = test.decode(test.encode(test.update(state, rows.take(part))))
    assert test.encode(state) == whole
    assert len(whole) < 4_000


def test_rows_that_lose_digits_are_not_looked_at_however_they_are_divided():
    """Not even the few that do not look rounded; and rows that come with all digits again are."""
    rng = np.random.default_rng(7)
    test = make_test(rng)
    test = WitnessTest(test.features, left_out=(-4,))
    probs = draw(rng, 9_000)
    probs[2_000:6_000] = np.round(probs[2_000:6_000], 4)
    rows = batch_of(rng, probs)
    whole = test.update(test.start(), rows)
    state = test.start()
    for part in np.array_split(np.arange(len(rows)), 311):
        state = test.decode(test.encode(test.update(state, rows.take(part))))
    assert test.encode(state) == test.encode(whole)
    assert whole.alarm_row is None
    assert 4_800 <= whole.rows <= 5_050


def test_rows_without_probabilities_are_left_out():
    """They change nothing."""
    rng = np.random.default_rng(4)
    test = make_test(rng)
    rows = batch_of(rng, draw(rng, 10))
    blank = RowBatch(rows.scores, rows.top, rows.classes, rows.uniforms)
    assert test.encode(test.update(test.start(), blank)) == test.encode(test.start())


def test_of_many_classes_a_share_of_the_rows_is_looked_at():
    """100 of 200 classes: half of the rows, and the evidence counts all of them."""
    rng = np.random.default_rng(5)
    fit, held, new = (log_probs(rng.dirichlet(np.full(200, 0.1), n)) for n in (500, 300, 1_000))
    test = WitnessTest(RowFeatures.fit(fit, held, OutlierScore.fit(fit).log_ratios.means))
    state = test.update(test.start(), batch_of(rng, np.exp(new)))
    assert 430 <= state.rows <= 570
    assert abs(test.evidence(state)["witnesses"].rows - 1_000) <= 140
    assert len(test.encode(state)) < 6_500


def test_what_is_not_of_this_bundle_is_refused():
    """A state or rows; a bundle without features has no such test."""
    rng = np.random.default_rng(6)
    test = make_test(rng)
    with pytest.raises(ConfigError, match="another model or format"):
        test.decode(b"\0" * 16)
    with pytest.raises(ConfigError, match="cannot look at rows"):
        test.update(test.start(), batch_of(rng, rng.dirichlet(np.ones(4), 3)))
    assert WitnessTest.of(Baseline(Calibration(rng.normal(size=9)), np.ones(3, dtype=np.int64))) is None
