"""The comparison of all scores."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.evaluation.compare import compare
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.predictions import from_arrays
from darksight_core.runtime.scorer import Scorer
from darksight_core.scores.learned import Learned
from tests.support.bundles import make_bundle

BUNDLE = make_bundle()
SCORER = Scorer(BUNDLE.embedder, BUNDLE.kde, BUNDLE.outlier_score, BUNDLE.calibration, compiled=False)


def make_rows(n: int, *, seed: int, spread: float = 0.4, logits: bool = False) -> ScoredPredictions:
    """Rows of three classes whose label is drawn from their probabilities."""
    rng = np.random.default_rng(seed)
    values = rng.dirichlet(np.full(3, spread), n)
    labels = (np.cumsum(values, axis=1) < rng.random(n)[:, None]).sum(axis=1).clip(max=2)
    given = np.log(np.maximum(values, 1e-12)) if logits else values
    rows = from_arrays(given, labels=labels, kind="logits" if logits else "probs", keep_logits=logits)
    return ScoredPredictions.of(rows, SCORER.score(rows.probs))


def test_every_score_is_measured_on_the_same_rows() -> None:
    """A quarter of the rows is remembered, and every figure is of the others."""
    found = compare(BUNDLE, make_rows(400, seed=1), {"flat": make_rows(90, seed=2, spread=9.0)}, resamples=5)

    assert (found.memory, found.measured) == (100, 300)
    assert found.failure is not None
    assert {figures.n for figures in found.failure.values()} == {300}
    assert {(figures.n_in, figures.n_out) for figures in found.ood["flat"].values()} == {(300, 90)}
    assert (
        found.failure.keys()
        == found.ood["flat"].keys()
        >= {"msp", "kl_matching", "outlier_score", "learned", "log_kde"}
    )
    assert found.ood["flat"]["entropy"].auroc > 0.7
    json.dumps(found.as_dict(), allow_nan=False)


def test_scores_are_those_that_are_served() -> None:
    """Scores of the bundle are the columns of its scorer; a learned one is the gate's own, beside a refitted one."""
    rows, other = make_rows(400, seed=1), make_rows(400, seed=3)
    assert other.errors is not None
    learned = replace(Learned.fit(other.log_pi, ~other.errors), offsets=np.array([0.0, 2.0, -2.0]))
    rows = replace(rows, scores=replace(rows.scores, outlier_score=-np.arange(400.0)))

    found = compare(BUNDLE.with_gate(Gate(None, "learned", 0.0, learned)), rows, resamples=0)

    measured = np.flatnonzero(np.isin(rows.scores.outlier_score, found.scores["outlier_score"]))
    assert len(measured) == found.measured
    np.testing.assert_array_equal(found.scores["log_kde"], rows.scores.log_kde[measured])
    np.testing.assert_array_equal(found.scores["learned"], learned.log_odds(rows.log_pi[measured]))
    assert "refitted" in found.scores
    assert found.failure is not None
    assert found.failure["learned"] != found.failure["refitted"]


def test_figures_are_able_to_come_out_badly() -> None:
    """With labels that say nothing, every score finds errors by chance only."""
    rows = make_rows(2_000, seed=1)
    shuffled = replace(rows, errors=np.random.default_rng(0).permutation(rows.errors))

    found = compare(BUNDLE, shuffled, resamples=0)

    assert found.failure is not None
    assert all(abs(figures.auroc - 0.5) < 0.06 for figures in found.failure.values() if figures.auroc is not None)
    assert found.choice is not None


def test_logits_add_their_scores_where_both_sides_have_them() -> None:
    """Energy and the largest logit are there for rows with logits, and not against rows without."""
    known = make_rows(200, seed=1, logits=True)

    both = compare(BUNDLE, known, {"a": make_rows(50, seed=2, logits=True)}, resamples=0)
    one = compare(BUNDLE, known, {"a": make_rows(50, seed=2)}, resamples=0)

    assert {"energy", "max_logit"} <= both.ood["a"].keys()
    assert both.failure is not None
    assert "energy" in both.failure
    assert "energy" not in one.ood["a"]


def test_few_rows_are_refused() -> None:
    """Ten rows cannot tell scores apart."""
    with pytest.raises(ConfigError, match="at least 40"):
        compare(BUNDLE, make_rows(10, seed=1))
