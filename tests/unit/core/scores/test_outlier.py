"""Rank transforms and the outlier score made of them."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import p_values
from darksight_core.scores.confidence import gen
from darksight_core.scores.outlier import OutlierScore, RankTransform, SoftNeighbours
from darksight_core.simplex import Floats, log_probs, log_softmax
from tests.support.builders import make_probs


def auroc(known: Floats, foreign: Floats) -> float:
    """Chance that a known row scores above a foreign one."""
    return float((known[:, None] > foreign).mean() + 0.5 * (known[:, None] == foreign).mean())


@pytest.mark.parametrize("n", [1, 2, 10, 300, 20_000])
def test_ranks_follow_the_sample_and_rise_everywhere(n: int) -> None:
    """log r is the empirical log rank to 3%, strictly increasing far beyond both ends, with at most 512 knots."""
    known = np.random.default_rng(0).normal(size=n)
    ranks = RankTransform.fit(known)
    places = np.concatenate([np.linspace(-1e4, known.min(), 50), np.linspace(known.max() + 1e-3, 1e4, 50)])

    at_known = np.exp(ranks(np.sort(known))) * (n + 1)

    assert len(ranks.scores) <= 512
    np.testing.assert_allclose(at_known, np.arange(1, n + 1), rtol=0.03)
    assert (np.diff(ranks(places)) > 0).all()
    assert (ranks(places) < 0).all()


def test_ranks_of_tied_scores_count_all_of_them() -> None:
    """A plateau of equal scores gets the rank of its last, and a constant sample still makes a transform."""
    plateau, constant = RankTransform.fit(np.array([1.0, 2.0, 2.0, 2.0])), RankTransform.fit(np.zeros(9))

    assert np.exp(plateau(np.array([1.0, 2.0]))) == pytest.approx([0.2, 0.8])
    assert constant(np.array([-1.0])) < constant(np.array([0.0])) < constant(np.array([1.0]))


@pytest.mark.parametrize("scores", [np.empty(0), np.array([1.0, np.nan])], ids=["empty", "nan"])
def test_ranks_need_finite_scores(scores: Floats) -> None:
    """No score, or one that is no number, makes no transform."""
    with pytest.raises(ConfigError, match="finite scores"):
        RankTransform.fit(scores)


def test_a_score_made_of_ranks_is_exact() -> None:
    """Ranks from other rows, then one conformal step, alarm at exactly α, although the ranks come from a sample of
    another distribution; the minimum of two p-values alarms nearly twice as often.
    """
    rng = np.random.default_rng(11)
    ranks = [RankTransform.fit(rng.normal(0.5, 2.0, 300)) for _ in range(2)]
    rates, minimum = [], []
    for _ in range(200):
        known, new = rng.normal(size=(2, 199)), rng.normal(size=(2, 5000))
        reference, score = (sum(rank(row) for rank, row in zip(ranks, rows, strict=True)) for rows in (known, new))
        rates.append(float((p_values(score, np.sort(reference)) <= 0.05).mean()))
        pair = [p_values(column, np.sort(row)) for column, row in zip(new, known, strict=True)]
        minimum.append(float((np.minimum(*pair) <= 0.05).mean()))

    assert abs(np.mean(rates) - 0.05) <= 4.0 * np.std(rates) / np.sqrt(len(rates))
    assert np.mean(minimum) > 0.09


def test_soft_neighbours_equal_the_distance_by_hand() -> None:
    """The score is the Hellinger-type distance to the k-th nearest softened row, and 0 on a stored one."""
    log_pi = log_probs(make_probs(30))
    neighbours = SoftNeighbours.fit(log_pi[:10], temperature=2.0)
    soft = np.exp(0.5 * log_softmax(log_pi / 2.0))
    expected = -np.sqrt(((soft[:, None] - soft[:10]) ** 2).sum(axis=-1)).min(axis=1)

    scores = neighbours.score(log_pi)

    assert neighbours.neighbours == 1
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 5, 300])
def test_combined_is_a_fixed_finite_score_that_survives_storage(classes: int) -> None:
    """Rows keep their score alone and in a batch, one-hot rows have one, and tensors and settings give it back."""
    log_pi = log_probs(make_probs(600, classes))
    outlier_score = OutlierScore.fit(log_pi[:400])
    again = OutlierScore.from_tensors(outlier_score.tensors(), outlier_score.settings())
    rows = np.concatenate([log_pi[400:], log_probs(np.eye(classes)[:1])])

    scores = outlier_score.score(rows)

    assert np.isfinite(scores).all()
    assert (scores < 0).all()
    np.testing.assert_allclose(scores[:5], [outlier_score.score(rows[i : i + 1])[0] for i in range(5)], rtol=1e-6)
    np.testing.assert_array_equal(again.score(rows), scores)
    with pytest.raises(ConfigError, match="references"):
        OutlierScore.from_tensors({}, outlier_score.settings())


def test_same_seed_same_score() -> None:
    """The draw of stored rows is by seed."""
    log_pi = log_probs(make_probs(200))

    first, second, other = (OutlierScore.fit(log_pi, seed=seed) for seed in (0, 0, 1))

    np.testing.assert_array_equal(first.neighbours.references, second.neighbours.references)
    assert not np.array_equal(first.neighbours.references, other.neighbours.references)


def test_combined_sees_rows_that_are_unsure_and_rows_that_are_too_sure() -> None:
    """Both undecided and over-confident foreign rows are found; GEN alone takes the latter for the most usual."""
    rng = np.random.default_rng(0)
    known = log_probs(make_probs(3000, 10, sharpness=10.0))
    outlier_score = OutlierScore.fit(known[:2000])
    unsure = log_softmax(rng.normal(size=(300, 10)))
    sure = rng.normal(size=(300, 10))
    sure[np.arange(300), rng.integers(10, size=300)] += 25.0
    sure = log_softmax(sure)

    score = outlier_score.score(known[2000:])

    assert auroc(gen(known[2000:]), gen(sure)) < 0.1
    assert auroc(score, outlier_score.score(sure)) > 0.9
    assert auroc(score, outlier_score.score(unsure)) > 0.9


def test_conformal_rank_of_combined_keeps_its_false_alarm_rate() -> None:
    """Calibrated on rows that it has not seen, p <= 0.1 comes up in a tenth of new rows."""
    log_pi = log_probs(make_probs(6000, 5))
    outlier_score = OutlierScore.fit(log_pi[:2000])
    calibration = np.sort(outlier_score.score(log_pi[2000:4000]))

    p_value = (1 + np.searchsorted(calibration, outlier_score.score(log_pi[4000:]), side="right")) / 2001

    assert (p_value <= 0.1).mean() == pytest.approx(0.1, abs=0.03)
