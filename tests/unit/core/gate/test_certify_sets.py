"""Prediction sets of a gate: which rows get one, what is certified, and on which rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from darksight_core.bundle import decode_bundle, encode_bundle
from darksight_core.errors import ConfigError
from darksight_core.evaluation.set_coverage import set_coverage
from darksight_core.gate.certify import Targets, certify
from darksight_core.gate.certify_sets import SET_SHARE, rejected_rows, sets_for_gate, worst_class
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.guarantees.prediction_sets import PredictionSets, class_ranks
from darksight_core.map.regions import Region
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import log_probs
from darksight_core.runtime.policy import ScoringPolicy
from tests.support.bundles import make_bundle
from tests.support.errors import raises_code
from tests.unit.core.gate.test_gate import make_rows, make_scores

SETS = PredictionSets(0.9, limit=0.75, penalty=0.0, n=40)
EVERYWHERE = Region("everywhere", ((-9.0, -9.0), (9.0, -9.0), (9.0, 9.0), (-9.0, 9.0)))


def test_only_rows_that_the_calibrated_rules_reject_get_a_set() -> None:
    """OUTLIER and LOW_CONFIDENCE; not accepted, INVALID, UNSCORED and REGION rows."""
    sure, unsure = [0.97, 0.02, 0.01], [0.5, 0.3, 0.2]
    log_pi = log_probs(np.array([sure, unsure, sure, unsure, sure]))
    scores = make_scores(5, p_value=[0.5, 0.5, 0.01, 0.5, math.nan], valid=[True, True, True, False, True])
    gate = Gate(cutoff(99, 0.01), "msp", 1.0, sets=SETS)

    found = gate.decide(log_pi, scores)
    inside = replace(gate, regions=(EVERYWHERE,)).decide(log_pi, scores)

    reasons = [Reason.NONE, Reason.LOW_CONFIDENCE, Reason.OUTLIER, Reason.INVALID, Reason.UNSCORED]
    assert [Reason(code) for code in found.reason] == reasons
    assert found.set_size.tolist() == [0, 2, 1, 0, 0]
    assert inside.reason[0] == Reason.REGION
    assert inside.set_size.tolist() == found.set_size.tolist()


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
def test_every_path_of_the_scorer_gives_the_same_sets(compiled: bool) -> None:
    """A batch, its rows one by one as blocks, and the gate itself."""
    bundle = make_bundle()
    probs = np.random.default_rng(0).dirichlet(np.full(bundle.embedder.n_inputs, 0.4), size=40).astype(np.float32)
    gate = Gate(reject_score="msp", threshold=2.0, sets=replace(SETS, limit=0.9, penalty=0.01))
    policy = ScoringPolicy(ScoringPolicy.of(bundle, compiled=compiled).scorer, gate)

    together = policy.score(probs)
    apart = [int(policy.score_block(row.tobytes(), 1).column("set_size")[0]) for row in probs]

    expected = np.where(together.accepted, 0, gate.sets.sizes(log_probs(probs)) if gate.sets else 0)
    assert 0 < np.count_nonzero(expected) < 40
    assert together.set_size.tolist() == apart == expected.tolist()
    assert policy.score_block(probs.tobytes(), 40).column("set_size").tolist() == apart


def test_rows_that_calibrate_sets_do_not_certify() -> None:
    """A third of the rows, drawn by seed; the threshold is that of the other rows alone."""
    rows = make_rows(3_000, classes=6, error=0.9)

    found = certify(rows, Targets(coverage=0.8, score="msp", sets=0.9, seed=3), 999)

    facts, part = found.certificate["rows"], found.certificate["sets"]
    assert found.feasible
    assert found.gate.sets is not None
    assert (facts["sets"], facts["certifying"]) == (math.floor(3_000 * SET_SHARE), 2_000)
    assert part["n"] == found.gate.sets.n < part["rows"] == 1_000
    assert part["range"][0] < 0.9 < part["range"][1]
    order = np.random.default_rng([3, 1]).permutation(3_000)
    alone = certify(rows.take(np.sort(order[1_000:])), Targets(coverage=0.8, score="msp"), 999)
    assert alone.gate.threshold == found.gate.threshold
    calibrating = rejected_rows(found.gate, rows.take(np.sort(order[:1_000])))
    assert calibrating.labels is not None
    sizes = found.gate.sets.sizes(calibrating.log_pi)
    assert (class_ranks(calibrating.log_pi, calibrating.labels) < sizes).mean() >= 0.9


def test_the_class_that_sets_cover_least_is_named() -> None:
    """It is covered less than all together; a class with few rejected rows is not, and no class may have enough."""
    rows = make_rows(3_000, classes=6, error=0.9)

    found = certify(rows, Targets(coverage=0.8, score="msp", sets=0.9), 999)

    worst, measured = found.certificate["sets"]["worst_class"], set_coverage(found.gate, rows)
    assert measured is not None
    assert measured.worst_class is not None
    assert measured.worst_class["coverage"] < measured.coverage
    assert f"number {measured.worst_class['class']}" in measured.summary
    assert worst["coverage"] <= 0.93
    assert worst["rows"] >= 20
    rejected = rejected_rows(found.gate, rows)
    assert found.gate.sets is not None
    assert worst_class(found.gate.sets, rejected.take(np.arange(20))) is None


def test_certified_sets_cover_new_rejected_rows() -> None:
    """On average over 60 calibrations of threshold and sets, but for 4 standard errors of them and of the new rows."""
    fresh = make_rows(4_000, seed=999, classes=6, error=0.9)
    rates = []
    for seed in range(60):
        rows = make_rows(600, seed=seed, classes=6, error=0.9)
        found = certify(rows, Targets(coverage=0.7, score="msp", sets=0.9, seed=seed), 999)
        measured = set_coverage(found.gate, fresh)
        assert measured is not None
        rates.append((measured.coverage, measured.standard_error))

    coverage, errors = np.array(rates).T
    assert coverage.mean() >= 0.9 - 4.0 * math.sqrt(coverage.var() / len(rates) + errors.mean() ** 2)


def test_too_few_rejected_rows_say_how_many_are_needed() -> None:
    """The gate has no sets then, and the promise is not feasible."""
    found = certify(make_rows(300, classes=4), Targets(coverage=0.95, score="msp", sets=0.95), 999)

    part = found.certificate["sets"]
    assert not found.feasible
    assert found.gate.sets is None
    assert part["n"] < part["rejected_needed"] == 19
    assert part["labels_needed"] == math.ceil(19 / (part["n"] / part["rows"]))


def test_sets_need_labels_and_a_share() -> None:
    """Both are said before anything is computed."""
    with pytest.raises(ConfigError, match="need labels"):
        certify(make_rows(300, labelled=False), Targets(coverage=0.9, score="msp", sets=0.9), 999)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Targets(coverage=0.9, sets=1.0)


def test_sets_are_added_to_a_gate_that_exists() -> None:
    """Its rules stay; a quarter of the rows chooses the penalty and the others calibrate."""
    gate = Gate(reject_score="msp", threshold=1.5)

    found, part = sets_for_gate(gate, make_rows(800, classes=6, error=0.9), 0.9)

    assert (found.threshold, found.reject_score) == (1.5, "msp")
    assert found.sets is not None
    assert part["rows"] == 600
    assert part["choosing"] > 0


def test_a_bundle_carries_its_sets() -> None:
    """As settings of its gate and as a promise; a bundle with sets that were not calibrated is refused."""
    bundle = make_bundle()
    gate = Gate(reject_score="msp", threshold=1.0, sets=SETS)
    promise = {"promise": "p", "kind": "set_coverage", "promised": 0.9, "delta": None, "feasible": True}

    again = decode_bundle(encode_bundle(bundle.with_gate(gate, {"sets": promise})))

    assert again.gate is not None
    assert again.gate.sets == SETS
    assert ("promise", "p") in again.facts()
    for change, code in (({"n": 3}, "bundle_parts"), ({"limit": "nan"}, "bundle_manifest")):
        settings = {**gate.settings(), "sets": {**SETS.settings(), **change}}
        broken = replace(again, manifest={**again.manifest, "gate": settings})
        with raises_code(code):
            decode_bundle(encode_bundle(broken))
