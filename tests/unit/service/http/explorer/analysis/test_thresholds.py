from __future__ import annotations

import math

import numpy as np
import pytest
from darksight_service.http.explorer.analysis.scores import compare_scores, stored_scores
from darksight_service.http.explorer.analysis.thresholds import certify, threshold_steps

from darksight_core.errors import ConfigError
from darksight_core.guarantees.binomial import rows_without_error
from tests.support.point_tables import make_table


def test_every_score_that_the_store_allows_is_there():
    """From probabilities the scores of rows, from columns the densities, and a refitted one by cross-fitting."""
    scores = stored_scores(make_table())

    assert set(scores) == {
        "msp", "entropy", "margin", "doctor", "gen", "log_density", "log_kde", "outlier_score", "refitted",
    }  # fmt: skip


def test_the_score_in_force_is_the_stored_one():
    """A learned score of the gate is what was stored when it decided, beside the one refitted to these labels."""
    table = make_table()

    scores = stored_scores(table, "learned")

    np.testing.assert_array_equal(scores["learned"], table.confidence)
    assert "refitted" in scores
    assert not np.allclose(scores["refitted"], scores["learned"])


def test_without_probabilities_the_largest_one_is_still_known():
    """A store that keeps no probabilities has the top one of each row, and the columns of the map."""
    table = make_table(probs=np.empty((400, 0), dtype=np.float32))

    assert set(stored_scores(table)) == {"msp", "log_density", "log_kde", "outlier_score"}


def test_a_score_is_left_out_where_a_row_lacks_it():
    """A NaN is no rank."""
    table = make_table()
    table.log_kde[3] = np.nan

    assert "log_kde" not in stored_scores(table)


def test_curves_are_ranked_and_compared_with_max_softmax():
    """Max-softmax, which is the chance of being right here, beats noise by far more than two standard errors."""
    table = make_table(2_000)

    curves = {curve.name: curve for curve in compare_scores(stored_scores(table), table.errors)}

    assert [curve.figures.augrc for curve in curves.values()] == sorted(
        curve.figures.augrc for curve in curves.values()
    )
    assert curves["msp"].gain == 0.0
    noise = curves["log_kde"]
    assert noise.gain is not None
    assert noise.gain_error is not None
    assert noise.gain < -4 * noise.gain_error
    assert curves["msp"].coverage[-1] == 1.0
    assert curves["msp"].accuracy[-1] == pytest.approx(1.0 - table.errors.mean())


def test_curves_are_thin_enough_to_send():
    """However many labels there are."""
    table = make_table(5_000)

    assert all(len(curve.coverage) <= 120 for curve in compare_scores({"msp": table.top}, table.errors))


def test_steps_count_what_both_rules_accept():
    """At every stop of the slider the counts are those of a loop over the rows."""
    table = make_table(300, seed=3)
    passed = table.p_value > 0.1
    confidence = table.confidence.copy()
    confidence[5] = np.nan

    steps = threshold_steps(confidence, passed, table.errors, current=float(confidence[7]), max_steps=40)

    assert steps.threshold[0] == -math.inf
    assert confidence[7] in steps.threshold
    assert (np.diff(steps.threshold) > 0).all()
    for number, threshold in enumerate(steps.threshold.tolist()):
        accepted = passed & (confidence >= threshold)
        assert steps.accepted[number] == accepted.sum() > 0
        assert steps.wrong[number] == (accepted & table.errors).sum()
    share = 1.0 - steps.wrong / steps.accepted
    assert ((steps.low <= share) & (share <= steps.high)).all()


def test_a_slider_over_nothing_has_one_stop():
    """No labels: nothing is accepted, and the interval is everything."""
    none = np.empty(0)

    steps = threshold_steps(none, none.astype(bool), none.astype(bool))

    assert (steps.accepted.tolist(), steps.low.tolist(), steps.high.tolist()) == ([0], [0.0], [1.0])


def test_infeasible_says_how_many_labels_it_takes():
    """50 flawless labels cannot promise 99%; about 299 can, and more where the outlier rule takes half away."""
    confidence, passed = np.arange(50.0), np.arange(50) % 2 == 0

    found = certify(confidence, passed, np.zeros(50, dtype=bool), 0.99)

    assert not found.threshold.feasible
    assert found.threshold.labels_needed == 2 * rows_without_error(0.01, 0.05)
    assert found.coverage == 0.0


def test_nothing_to_certify_on_is_an_error():
    """If the outlier rule takes every labelled row."""
    with pytest.raises(ConfigError, match="nothing can be certified"):
        certify(np.arange(5.0), np.zeros(5, dtype=bool), np.zeros(5, dtype=bool), 0.9)


def test_the_certified_threshold_keeps_its_promise_and_the_picked_one_does_not():
    """P(error | u) = 0.3 (1 - u)²: of 300 label sets at most a share δ + 3 standard errors is broken by the certified
    threshold, while the loosest one that measured well breaks its promise about every other time.
    """
    rng = np.random.default_rng(0)
    repeats, delta, risk = 300, 0.05, 0.05
    broken = {"certified": 0, "picked": 0}
    for _ in range(repeats):
        u = rng.uniform(size=500)
        wrong = rng.uniform(size=500) < 0.3 * (1.0 - u) ** 2
        found = certify(u, np.ones(500, dtype=bool), wrong, 1.0 - risk, delta=delta)
        values = {"certified": found.threshold.value if found.threshold.feasible else 1.0, "picked": found.picked}
        for name, value in values.items():
            true_risk = 0.0 if value is None else 0.1 * (1.0 - max(min(value, 1.0), 0.0)) ** 2
            broken[name] += true_risk > risk

    assert broken["certified"] <= repeats * (delta + 3.0 * math.sqrt(delta * (1 - delta) / repeats))
    assert broken["picked"] > repeats / 3
