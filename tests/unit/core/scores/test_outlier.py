"""Rank transforms and the outlier score made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.guarantees.conformal import p_values
from darksight_core.rows.simplex import Floats, log_probs, log_softmax
from darksight_core.scores.confidence import gen
from darksight_core.scores.outlier import ClassGaussians, OutlierScore, draw_known
from darksight_core.scores.ranks import RankTransform
from tests.support.builders import make_probs


def auroc(known: Floats, foreign: Floats) -> float:
    """Chance that a known row scores above a foreign one."""
    return float((known[:, None] > foreign).mean() + 0.5 * (known[:, None] == foreign).mean())


@pytest.mark.parametrize("n", [1, 2, 10, 300, 20_000])
def test_ranks_follow_the_sample_and_rise_below_it(n: int) -> None:
    """log r is the empirical log rank to 3%, rises from far below the sample to its end, and has at most 512 knots."""
    known = np.random.default_rng(0).normal(size=n)
    ranks = RankTransform.fit(known)
    below, above = np.linspace(-1e4, known.min(), 50), np.linspace(known.max(), 1e4, 50)

    at_known = np.exp(ranks(np.sort(known))) * (n + 1)

    assert len(ranks.scores) <= 512
    np.testing.assert_allclose(at_known, np.arange(1, n + 1), rtol=0.03)
    assert (np.diff(ranks(below)) > 0).all()
    assert (ranks(above) == np.log(n / (n + 1))).all()


def test_ranks_of_tied_scores_count_all_of_them() -> None:
    """A plateau of equal scores gets the rank of its last, and a constant sample still makes a transform."""
    plateau, constant = RankTransform.fit(np.array([1.0, 2.0, 2.0, 2.0])), RankTransform.fit(np.zeros(9))

    assert np.exp(plateau(np.array([1.0, 2.0]))) == pytest.approx([0.2, 0.8])
    assert constant(np.array([-1.0])) < constant(np.array([0.0])) == constant(np.array([1.0]))


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


def test_ranks_do_not_depend_on_rounding() -> None:
    """Known scores that differ by rounding alone count as one, and so do scores beside them."""
    noise = 1e-13 * np.random.default_rng(0).normal(size=500)
    ranks = RankTransform.fit(np.concatenate([np.arange(-9.0, 0.0), noise]))

    assert len(ranks.scores) <= 11
    np.testing.assert_allclose(ranks(noise), ranks(np.zeros(1))[0], atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_distance_is_that_of_probabilistic_pca(classes: int) -> None:
    """D is Mahalanobis's with the covariance that has the kept axes and one variance for the others."""
    log_pi = log_probs(make_probs(400, classes))
    rows = log_pi - log_pi.mean(axis=1, keepdims=True)
    gaussians, _ = ClassGaussians.fit(rows, log_pi.argmax(axis=1), 1e-6)
    axes, precisions = gaussians.axes, gaussians.precisions
    others = np.eye(classes) - 1.0 / classes - axes.T @ axes
    precision = (axes.T * precisions[:-1]) @ axes + precisions[-1] * others
    residuals = rows - gaussians.means[log_pi.argmax(axis=1)]

    found = gaussians.distances(rows, log_pi.argmax(axis=1))

    np.testing.assert_allclose(found, np.einsum("nk,kl,nl->n", residuals, precision, residuals), rtol=1e-5)
    np.testing.assert_allclose(axes @ axes.T, np.eye(len(axes)), atol=1e-9)


def test_class_without_known_rows_has_a_mean() -> None:
    """A row of a class that was never seen is scored, as more unusual than one of a class that was."""
    known = log_probs(make_probs(2000, 5, sharpness=10.0))
    seen = known[known.argmax(axis=1) != 4]
    score = OutlierScore.fit(seen[:800])

    new = score.score(known[known.argmax(axis=1) == 4])

    assert np.isfinite(new).all()
    assert np.median(new) < np.median(score.score(seen[800:]))


@pytest.mark.parametrize("classes", [2, 4])
def test_known_rows_that_are_all_one_hot_make_a_score(classes: int) -> None:
    """Rows without any variance are usual, and an undecided row beside them is not."""
    score = OutlierScore.fit(log_probs(np.eye(classes)[np.arange(50) % classes]))

    usual = score.score(log_probs(np.eye(classes)))
    unsure = score.score(log_probs(np.full((1, classes), 1.0 / classes)))

    assert np.isfinite(usual).all()
    assert (unsure < usual.min()).all()


@pytest.mark.parametrize("classes", [2, 5, 300])
def test_outlier_score_is_a_fixed_finite_score_that_survives_storage(classes: int) -> None:
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
    with pytest.raises(ConfigError, match="lacks"):
        OutlierScore.from_tensors({}, outlier_score.settings())


def test_the_score_is_fitted_to_a_draw_of_many_rows() -> None:
    """All rows up to 20,000, then as many by seed."""
    assert draw_known(5, 0).tolist() == [0, 1, 2, 3, 4]
    first, second, other = (draw_known(30_000, seed) for seed in (0, 0, 1))

    assert len(np.unique(first)) == 20_000
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_outlier_score_sees_rows_that_are_unsure_and_rows_that_are_too_sure() -> None:
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


def test_conformal_rank_of_the_outlier_score_keeps_its_false_alarm_rate() -> None:
    """Calibrated on rows that it has not seen, p <= 0.1 comes up in a tenth of new rows."""
    log_pi = log_probs(make_probs(6000, 5))
    outlier_score = OutlierScore.fit(log_pi[:2000])
    calibration = np.sort(outlier_score.score(log_pi[2000:4000]))

    p_value = (1 + np.searchsorted(calibration, outlier_score.score(log_pi[4000:]), side="right")) / 2001

    assert (p_value <= 0.1).mean() == pytest.approx(0.1, abs=0.03)


def rare_class(rng: np.random.Generator, n: int, separation: float = 3.0) -> Floats:
    """Log-probabilities of the best classifier of two Gaussians, one of them with 1 of 200 rows."""
    is_rare = rng.random(n) < 1.0 / 201.0
    log_odds = rng.normal(np.where(is_rare, 0.5, -0.5) * separation**2, separation) - np.log(200.0)
    return log_softmax(np.stack([np.zeros(n), log_odds], axis=1))


def test_rows_of_a_rare_class_are_not_all_outliers() -> None:
    """Without offsets of classes most rows predicted as a class of 1 in 200 are flagged, with them few; alpha holds."""
    rng, alpha = np.random.default_rng(0), 0.01
    score = OutlierScore.fit(rare_class(rng, 20_000))
    calibration, new = rare_class(rng, 10_000), rare_class(rng, 40_000)
    rare = new.argmax(axis=1) == 1

    def flagged(offsets: Floats) -> NDArray[np.bool_]:
        tried = replace(score, class_offsets=offsets)
        return p_values(tried.score(new), np.sort(tried.score(calibration))) <= alpha

    assert score.class_offsets[0] == 0.0
    assert flagged(np.zeros(2))[rare].mean() > 0.7
    assert flagged(score.class_offsets)[rare].mean() < 0.15
    assert flagged(score.class_offsets).mean() < alpha + 4.0 * np.sqrt(alpha / 10_000)


def test_classes_of_similar_confidence_have_no_offset() -> None:
    """The score of balanced data is what it would be without offsets."""
    assert not OutlierScore.fit(log_probs(make_probs(3_000, 5))).class_offsets.any()
