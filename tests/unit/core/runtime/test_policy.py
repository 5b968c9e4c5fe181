from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import Cutoff, cutoff
from darksight_core.map.regions import Region
from darksight_core.rows.schema import SCHEMA, Reason, ScoredBatch
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.runtime.compilation import KERNEL
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer, ShapeError
from darksight_core.scores.learned import Learned
from darksight_core.scores.registry import REJECT_SCORES, SCORES
from tests.support.bundles import make_bundle
from tests.support.maps import (
    extreme_probs,
    map_probs,
    random_calibration,
    random_embedder,
    random_kde,
    random_outlier_score,
)

ENGINES = [False, pytest.param(True, marks=pytest.mark.skipif(not KERNEL.is_available, reason="needs numba"))]
engines = pytest.mark.parametrize("compiled", ENGINES, ids=["numpy", "compiled"])


@cache
def make_scorer(classes: int, compiled: bool) -> Scorer:
    """A scorer of random parts; made once, because it never changes."""
    embedder = random_embedder(classes)
    return Scorer(
        embedder, random_kde(embedder), random_outlier_score(classes), random_calibration(), compiled=compiled
    )


def make_rows(scorer: Scorer, n: int) -> Floats:
    """Usual, extreme and bad rows in turn."""
    classes = scorer.n_inputs
    bad = np.full((3, classes), 1.0 / classes)
    bad[0, 0], bad[1, 1], bad[2, 0] = np.nan, np.inf, -0.5
    kinds = [map_probs(scorer.embedder, max(n, 1)).astype(np.float64), extreme_probs(classes), bad]
    return np.stack([kinds[i % 3][i // 3 % len(kinds[i % 3])] for i in range(n)]) if n else np.empty((0, classes))


@cache
def scored_rows(scorer: Scorer, n: int) -> tuple[Floats, ScoredBatch]:
    """Such rows, and what the scorer says about them, which is the same for every gate."""
    probs = make_rows(scorer, n)
    return probs, scorer.score(probs)


@cache
def usual_rows(scorer: Scorer) -> tuple[Floats, ScoredBatch]:
    """Logarithms of usual rows, and their scores."""
    rows = map_probs(scorer.embedder, 200, seed=5)
    return log_probs(rows), scorer.score(rows)


def make_gate(scorer: Scorer, name: str | None, *, outlier: Cutoff | None = None, fail_open: bool = False) -> Gate:
    """A gate whose threshold is the very score of some row."""
    if name is None:
        return Gate(outlier, fail_open=fail_open)
    log_pi, scores = usual_rows(scorer)
    right = np.random.default_rng(0).random(200) < 0.8
    learned = None
    if name == "learned":
        learned = Learned.fit(log_pi, right, log_density=scores.log_density, log_kde=scores.log_kde)
        weights = np.array([0.3, 0.0, 0.2, 0.1])
        learned = replace(learned, weights=weights, offsets=np.linspace(-0.2, 0.3, scorer.n_inputs))
    gate = Gate(outlier, name, learned=learned, fail_open=fail_open)
    values = gate.reject_scores(log_pi, scores, logits=log_pi)
    return replace(gate, threshold=float(np.sort(values)[len(values) // 3]))


def decide_by_parts(policy: ScoringPolicy, probs: Floats, scores: ScoredBatch, logits: Floats | None) -> ScoredBatch:
    """The decision of the gate on the same scores."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        log_pi = log_probs(probs)
        predicted = np.where(scores.valid, np.nan_to_num(probs, nan=-1.0).argmax(axis=1), -1)
        top = np.where(scores.valid, np.exp(log_pi).max(axis=1), np.nan)
        return replace(policy.gate.decide(log_pi, scores, logits=logits), predicted=predicted, top=top)


def assert_same(found: ScoredBatch, expected: ScoredBatch) -> None:
    """Reject scores and largest probabilities are equal but for rounding, all other columns exactly."""
    for column in SCHEMA:
        actual, wanted = getattr(found, column.name), getattr(expected, column.name)
        if column.name in ("confidence", "top"):
            np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-11)
        else:
            np.testing.assert_array_equal(actual, wanted, err_msg=column.name)


@engines
@pytest.mark.parametrize("name", [None, *REJECT_SCORES])
@pytest.mark.parametrize("classes", [2, 10, 130])
def test_a_policy_decides_as_its_gate(name: str | None, classes: int, compiled: bool) -> None:
    """Usual, extreme and bad rows get the decision that the gate gives them, in a batch of any size."""
    scorer = make_scorer(classes, compiled)
    for outlier in (None, cutoff(99, 0.2)):
        for fail_open in (False, True):
            policy = ScoringPolicy(scorer, make_gate(scorer, name, outlier=outlier, fail_open=fail_open))
            for n in (0, 1, 7, 8, 300):
                probs, scores = scored_rows(scorer, n)
                logits = np.random.default_rng(1).normal(size=probs.shape) if policy.gate.needs_logits else None

                found = policy.score(probs, logits=logits)

                assert_same(found, decide_by_parts(policy, probs, scores, logits))
                assert len(found) == n


@pytest.mark.skipif(not KERNEL.is_available, reason="needs numba")
@pytest.mark.parametrize("name", [name for name in REJECT_SCORES if SCORES[name].needs != "logits"])
def test_a_row_at_the_threshold_keeps_its_decision(name: str) -> None:
    """A row whose score is the threshold is accepted in numpy and compiled, alone and in a batch, and so is its block:
    compiled code may replace numpy at any time.
    """
    plain, compiled = make_scorer(10, False), make_scorer(10, True)
    probs = np.concatenate([map_probs(plain.embedder, 40), extreme_probs(10).astype(np.float32)])
    gate = make_gate(plain, name)
    values = gate.reject_scores(log_probs(probs.astype(np.float64)), plain.score(probs))
    for row, value in enumerate(values.tolist()):
        policies = [ScoringPolicy(scorer, replace(gate, threshold=value)) for scorer in (plain, compiled)]

        batches = [policy.score(probs) for policy in policies]
        singles = [policy.score(probs[row : row + 1]) for policy in policies]
        blocks = [policy.score_block(probs[row].tobytes(), 1) for policy in policies]

        np.testing.assert_array_equal(batches[0].reason, batches[1].reason)
        assert {batch.reason[row] for batch in batches} == {Reason.NONE}
        assert {int(found.reason[0]) for found in singles} == {Reason.NONE}
        assert {int(found.column("reason")[0]) for found in blocks} == {Reason.NONE}


@engines
def test_scores_are_those_of_the_scorer(compiled: bool) -> None:
    """A policy scores float32 rows as its scorer does, leaves them as they are and keeps nothing of them."""
    scorer = make_scorer(10, compiled)
    policy = ScoringPolicy(scorer, make_gate(scorer, "msp"))
    probs = map_probs(scorer.embedder, 30)
    before = probs.copy()

    found, again = policy.score(probs), policy.score(probs)

    np.testing.assert_array_equal(probs, before)
    expected = scorer.score(probs)
    assert_same(found, replace(expected, confidence=found.confidence, decision=found.decision, reason=found.reason))
    for column in SCHEMA:
        assert not np.shares_memory(getattr(found, column.name), getattr(again, column.name))
    assert not any(np.shares_memory(column, probs) for column in (found.confidence, found.top, found.predicted))


@engines
def test_threads_share_a_policy(compiled: bool) -> None:
    """Eight threads at once get what one thread gets."""
    scorer = make_scorer(10, compiled)
    policy = ScoringPolicy(scorer, make_gate(scorer, "learned", outlier=cutoff(99, 0.1)))
    batches = [make_rows(scorer, n) for n in (1, 5, 40)] * 8
    expected = [policy.score(batch) for batch in batches]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(policy.score, batches))

    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual.reason, wanted.reason)
        np.testing.assert_array_equal(actual.confidence, wanted.confidence)


@engines
def test_a_bundle_without_gate_accepts_what_it_can_score(compiled: bool) -> None:
    """With no gate a row is refused only if it is not on the simplex."""
    bundle = make_bundle()

    found = ScoringPolicy.of(bundle, compiled=compiled).score([[0.2, 0.7, 0.1], [0.2, 0.7, 0.3]])

    assert found.reason.tolist() == [Reason.NONE, Reason.INVALID]
    assert found.predicted.tolist() == [1, -1]
    np.testing.assert_allclose(found.top, [0.7, np.nan])
    assert np.isnan(found.confidence).all()


def test_what_could_not_be_scored_is_said_to_be_so() -> None:
    """Rows that the scorer could not be asked about are UNSCORED, refused unless the gate fails open, not INVALID."""
    scorer = make_scorer(10, False)

    for fail_open in (False, True):
        found = ScoringPolicy(scorer, Gate(fail_open=fail_open)).unscored(2)

        assert found.reason.tolist() == [Reason.UNSCORED] * 2
        assert found.accepted.tolist() == [fail_open] * 2
        assert found.valid.all()
        assert np.isnan(found.p_value).all()


@engines
def test_pieces_join_to_the_whole(compiled: bool) -> None:
    """A batch that was scored in pieces is the batch."""
    scorer = make_scorer(10, compiled)
    policy = ScoringPolicy(scorer, make_gate(scorer, "msp"))
    probs = make_rows(scorer, 40)

    found = ScoredBatch.join([policy.score(probs[:17]), policy.score(probs[17:])])

    assert_same(found, policy.score(probs))


@engines
def test_rows_that_do_not_fit_fail_the_call(compiled: bool) -> None:
    """Wrong shapes, missing logits and logits of other rows are errors; so is a score learned of other classes."""
    scorer = make_scorer(10, compiled)
    policy = ScoringPolicy(scorer, Gate(reject_score="energy", threshold=0.0))
    probs = map_probs(scorer.embedder, 3)

    with pytest.raises(ShapeError, match=r"\(n, 10\)"):
        policy.score(probs[:, :4])
    with pytest.raises(ShapeError, match="2 rows of logits"):
        policy.score(probs, logits=np.zeros((2, 10)))
    with pytest.raises(ConfigError, match="logits"):
        policy.score(probs)
    with pytest.raises(ConfigError, match="learned of 2 classes"):
        ScoringPolicy(scorer, make_gate(make_scorer(2, compiled), "learned"))


@engines
@pytest.mark.parametrize("name", [None, "msp", "learned", "log_kde"])
def test_a_block_has_the_bytes_of_the_batch(name: str | None, compiled: bool) -> None:
    """Whether rows take the short way or the ordinary one."""
    scorer = make_scorer(7, compiled)
    policy = ScoringPolicy(scorer, make_gate(scorer, name, outlier=cutoff(len(scorer.calibration), 0.2)))
    # The threshold of the gate is the score of one of the last rows.
    probs = np.concatenate([make_rows(scorer, 30), map_probs(scorer.embedder, 200, seed=5)]).astype(np.float32)
    for rows in (1, 5, 40):
        for start in range(0, len(probs), rows):
            part = probs[start : start + rows]
            found, expected = policy.score_block(part.tobytes(), len(part)), policy.score(part)
            assert found.data == ResultBlock.of(expected).data
            assert found.are_valid == expected.valid.all()


@engines
def test_a_block_knows_of_regions(compiled: bool) -> None:
    """Though the short way does not."""
    scorer = make_scorer(7, compiled)
    everywhere = Region("everywhere", ((-99.0, -99.0), (99.0, -99.0), (99.0, 99.0), (-99.0, 99.0)))
    policy = ScoringPolicy(scorer, Gate(regions=(everywhere,)))
    row = map_probs(scorer.embedder, 1).astype(np.float32)
    assert policy.score_block(row.tobytes(), 1).column("reason").tolist() == [Reason.REGION]


@engines
def test_columns_of_a_block(compiled: bool) -> None:
    """They are those of the arrays."""
    policy = ScoringPolicy(make_scorer(7, compiled))
    probs = make_rows(policy.scorer, 6).astype(np.float32)
    found, expected = policy.score_block(probs.tobytes(), 6), policy.score(probs)
    assert len(found) == 6
    for column in SCHEMA:
        if column.response:
            np.testing.assert_array_equal(found.column(column.name), getattr(expected, column.name))
        elif column.stored:
            np.testing.assert_array_equal(
                found.column(column.name), getattr(expected, column.name).astype(column.stored)
            )
    values = policy.score_block(probs[:1].tobytes(), 1).metric_values()
    assert values == pytest.approx(tuple(found.column(name)[0] for name in ResultBlock.METRIC_COLUMNS))
    with pytest.raises(ShapeError):
        policy.score_block(probs.tobytes()[:-4], 6)
