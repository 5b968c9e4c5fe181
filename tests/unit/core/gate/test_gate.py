"""The gate and its certificate."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from darksight_core.bundle import decode_bundle, encode_bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.attainable import attainable_risk
from darksight_core.gate.certify import CHOICE_ROWS, Targets, certify
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.conformal import Cutoff, cutoff
from darksight_core.guarantees.thresholds import threshold_by_joint_risk
from darksight_core.predictions import from_arrays
from darksight_core.rows.schema import Decision, Reason, ScoredBatch
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.confidence import msp
from darksight_core.scores.learned import Learned
from darksight_core.scores.registry import REJECT_SCORES
from tests.support.builders import make_probs
from tests.support.bundles import CERTIFICATE, make_bundle
from tests.support.errors import raises_code

NAN = math.nan
REJECT = Gate(reject_score="msp", threshold=0.0).settings()["reject"]


def make_scores(n: int, *, p_value: object = 1.0, log_kde: object = 0.0, valid: object = True) -> ScoredBatch:
    """Scores of n rows, constant unless given."""
    rng = np.random.default_rng(n)
    ok = np.broadcast_to(np.asarray(valid, dtype=bool), n).copy()
    column = {
        "p_value": p_value,
        "log_kde": log_kde,
        "log_density": rng.normal(size=n),
        "outlier_score": -rng.exponential(size=n),
    }
    filled = {name: np.where(ok, np.broadcast_to(np.asarray(value, float), n), NAN) for name, value in column.items()}
    return replace(ScoredBatch.unscored(n), points=np.zeros((n, 2)), valid=ok, **filled)


def make_rows(
    n: int = 600, *, seed: int = 0, classes: int = 4, labelled: bool = True, error: float = 0.6
) -> ScoredPredictions:
    """Rows that err the more the less sure they are, with p-values that are uniform."""
    rng = np.random.default_rng(seed)
    probs = make_probs(n, classes, seed=seed)
    predicted, top = probs.argmax(axis=1), probs.max(axis=1)
    wrong = rng.random(n) < error * (1.0 - top)
    labels = np.where(wrong, (predicted + 1) % classes, predicted).astype(np.int64)
    predictions = from_arrays(probs, labels=labels if labelled else None)
    scores = make_scores(
        n, p_value=(1.0 + rng.integers(1000, size=n)) / 1000.0, log_kde=np.log(top) + rng.normal(size=n)
    )
    return ScoredPredictions.of(predictions, scores)  # fmt: skip


def reasons(gate: Gate, log_pi: Floats, scores: ScoredBatch) -> list[Reason]:
    """Reason of each row."""
    return [Reason(code) for code in gate.decide(log_pi, scores).reason]


def test_the_first_reason_that_applies_is_given() -> None:
    """INVALID hides OUTLIER, which hides LOW_CONFIDENCE; only rows without a reason are accepted."""
    sure, unsure = [0.98, 0.01, 0.01], [0.4, 0.3, 0.3]
    log_pi = log_probs(np.array([sure, unsure, sure, unsure, unsure]))
    scores = make_scores(5, p_value=[0.5, 0.5, 0.01, 0.01, 0.01], valid=[True, True, True, True, False])
    gate = Gate(outlier=cutoff(99, 0.01), reject_score="msp", threshold=1.0)

    found = gate.decide(log_pi, scores)

    expected = [Reason.NONE, Reason.LOW_CONFIDENCE, Reason.OUTLIER, Reason.OUTLIER, Reason.INVALID]
    assert [Reason(code) for code in found.reason] == expected
    assert found.decision.tolist() == [Decision.ACCEPT] + 4 * [Decision.REJECT]
    assert found.accepted.tolist() == [True, False, False, False, False]


def test_a_gate_without_rules_accepts_what_can_be_scored() -> None:
    """The empty gate rejects invalid rows and nothing else."""
    scores = make_scores(3, p_value=0.001, valid=[True, False, True])

    assert reasons(Gate(), np.zeros((3, 2)), scores) == [Reason.NONE, Reason.INVALID, Reason.NONE]


def test_a_score_at_the_threshold_is_accepted() -> None:
    """The rule is score >= threshold, as it was certified, and a rounding error is no difference."""
    scores = make_scores(4, log_kde=[-2.0, -1.0 - 1e-12, -1.0, -0.5])

    found = Gate(reject_score="log_kde", threshold=-1.0).decide(np.zeros((4, 2)), scores)

    assert found.accepted.tolist() == [False, True, True, True]


def test_what_could_not_be_scored_fails_closed_unless_told() -> None:
    """A missing score rejects; with fail_open it is accepted, but never an outlier or an invalid row."""
    scores = make_scores(
        4, p_value=[0.5, NAN, 0.01, 0.5], log_kde=[NAN, 0.0, NAN, 0.0], valid=[True, True, True, False]
    )
    closed = Gate(outlier=cutoff(99, 0.01), reject_score="log_kde", threshold=-1.0)
    opened = replace(closed, fail_open=True)

    expected = [Reason.UNSCORED, Reason.UNSCORED, Reason.OUTLIER, Reason.INVALID]
    assert reasons(closed, np.zeros((4, 2)), scores) == reasons(opened, np.zeros((4, 2)), scores) == expected
    assert not closed.decide(np.zeros((4, 2)), scores).accepted.any()
    assert opened.decide(np.zeros((4, 2)), scores).accepted.tolist() == [True, True, False, False]


def test_an_invalid_row_may_hold_anything() -> None:
    """Rows with NaN and infinities are INVALID, in silence, and the other rows do not notice."""
    log_pi = np.array([[NAN, NAN], [np.inf, -np.inf], np.log([0.9, 0.1])])
    scores = make_scores(3, valid=[False, False, True])
    learned = Learned.fit(make_rows().log_pi[:, :2], np.arange(600) % 7 > 0)

    for gate in (Gate(reject_score="msp", threshold=0.0), Gate(None, "learned", -50.0, learned)):
        assert reasons(gate, log_pi, scores) == [Reason.INVALID, Reason.INVALID, Reason.NONE]


@given(st.data())
def test_a_stricter_gate_never_accepts_another_row(data: st.DataObject) -> None:
    """One rule more, a higher threshold or a higher level takes acceptance away and gives none; so does fail_closed."""
    n = data.draw(st.integers(1, 12))
    unit = st.lists(st.floats(0.0, 1.0), min_size=n, max_size=n)
    holes = st.lists(st.sampled_from([0.0, 0.0, 0.0, NAN]), min_size=n, max_size=n)
    p_value, kde = (np.array(data.draw(unit)) + np.array(data.draw(holes)) for _ in range(2))
    valid = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    scores = make_scores(n, p_value=p_value, log_kde=kde, valid=valid)
    low, high = sorted((data.draw(st.floats(0.0, 1.0)), data.draw(st.floats(0.0, 1.0))))
    loose, strict = sorted((data.draw(st.integers(1, 99)), data.draw(st.integers(1, 99))))
    few, many = (Cutoff(rank, 99, 0.5, None, 1) for rank in (loose, strict))

    def accepted(*gate: object, fail_open: bool = False) -> NDArray[np.bool_]:
        return Gate(*gate, fail_open=fail_open).decide(np.zeros((n, 2)), scores).accepted  # type: ignore[arg-type]  # star

    chain = [
        accepted(fail_open=True),
        accepted(few, fail_open=True),
        accepted(few, "log_kde", low, fail_open=True),
        accepted(few, "log_kde", low),
        accepted(few, "log_kde", high),
        accepted(many, "log_kde", high),
    ]

    assert not (chain[0] & ~scores.valid).any()
    for looser, stricter in pairwise(chain):
        assert not (stricter & ~looser).any()


def test_a_batch_is_decided_like_its_rows() -> None:
    """One by one and all together, rows get the same reasons, under every score."""
    rows = make_rows(60)
    for name in REJECT_SCORES:
        if name == "learned":
            continue
        gate = Gate(cutoff(999, 0.1), name)
        values = gate.reject_scores(rows.log_pi, rows.scores, logits=rows.log_pi)
        gate = replace(gate, threshold=float(np.median(values)) + 1e-9)
        together = gate.decide(rows.log_pi, rows.scores, logits=rows.log_pi).reason
        for i in range(len(rows)):
            one = rows.take(np.array([i]))
            assert gate.decide(one.log_pi, one.scores, logits=one.log_pi).reason[0] == together[i]


@pytest.mark.parametrize("threshold", [0.25, -math.inf])
def test_settings_and_tensors_make_the_same_gate(threshold: float) -> None:
    """Through JSON and back a gate decides as before."""
    rows = make_rows()
    assert rows.errors is not None
    learned = Learned.fit(rows.log_pi, ~rows.errors, log_density=rows.scores.log_density, log_kde=rows.scores.log_kde)
    for gate in (
        Gate(),
        Gate(cutoff(999, 0.05, 0.1), fail_open=True),
        Gate(cutoff(999, 0.05), "learned", threshold, learned),
        Gate(None, "entropy", threshold),
    ):
        again = Gate.from_tensors(gate.tensors(), json.loads(json.dumps(gate.settings(), allow_nan=False)))

        assert again.settings() == gate.settings()
        assert reasons(again, rows.log_pi, rows.scores) == reasons(gate, rows.log_pi, rows.scores)


@pytest.mark.parametrize(
    "change",
    [
        {"fail_open": 1},
        {"outlier": {"alpha": 0.01}},
        {"outlier": {"alpha": 0.01, "delta": None, "rank": 1, "n": 99, "rows_needed": 99, "p_value": 0.5}},
        {"reject": {**REJECT, "score": "nobody"}},
        {"reject": {**REJECT, "score": "learned"}},
        {"reject": {**REJECT, "threshold": "inf"}},
        {"reject": {**REJECT, "threshold": "nan"}},
        {"reject": {**REJECT, "rule": "accept iff score > threshold"}},
        {"reject": {"score": "msp"}},
    ],
)
def test_settings_that_make_no_gate_are_refused(change: dict[str, object]) -> None:
    """Missing, contradicting and senseless settings are errors."""
    with pytest.raises(ConfigError):
        Gate.from_tensors({}, {**Gate().settings(), **change})


def test_a_bundle_carries_its_gate() -> None:
    """Written and read, a bundle has the same gate and certificate; one that does not fit its parts is refused."""
    bundle = make_bundle(rows=400)
    rows = make_rows(classes=3)
    assert rows.errors is not None
    gate = Gate(cutoff(len(bundle.calibration), 0.05), "learned", 0.5, Learned.fit(rows.log_pi, ~rows.errors))

    again = decode_bundle(encode_bundle(bundle.with_gate(gate, CERTIFICATE)))

    assert again.gate is not None
    assert again.gate.settings() == gate.settings()
    assert again.manifest["certificate"] == CERTIFICATE
    assert reasons(again.gate, rows.log_pi, rows.scores) == reasons(gate, rows.log_pi, rows.scores)
    other = Learned.fit(make_rows(classes=5).log_pi, ~rows.errors)
    for wrong in (replace(gate, learned=other), Gate(cutoff(len(bundle.calibration) + 1, 0.05))):
        with raises_code("bundle_parts", match="gate"):
            encode_bundle(bundle.with_gate(wrong))


def test_a_score_of_logits_needs_them() -> None:
    """A gate on the energy says so when rows come without logits."""
    gate = Gate(reject_score="energy", threshold=0.0)

    assert gate.needs_logits
    with pytest.raises(ConfigError, match="logits"):
        gate.decide(np.zeros((1, 2)), make_scores(1))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, "no target"),
        ({"coverage": 0.9, "accuracy": 0.9}, "exclude each other"),
        ({"coverage": 0.9, "delta": 0.1}, "delta"),
        ({"coverage": 0.9, "score": "nobody"}, "nobody"),
    ],
)
def test_invalid_targets_are_refused(rules: dict[str, object], words: str) -> None:
    """No target, too many targets and unknown scores are errors."""
    with pytest.raises(ConfigError, match=words):
        Targets(**rules)  # type: ignore[arg-type]  # that is the point


def test_rows_that_choose_do_not_certify() -> None:
    """With auto and many rows a third of them chooses; the certificate names both numbers, the score and the hash."""
    rows = make_rows(CHOICE_ROWS)
    assert rows.errors is not None
    # A density that knows the errors.
    log_kde = np.where(rows.errors, -1.0, 1.0) + np.random.default_rng(0).normal(size=len(rows)) / 2.0
    rows = replace(rows, scores=replace(rows.scores, log_kde=log_kde))

    found = certify(rows, Targets(accuracy=0.97, seed=3), 999)

    part = found.certificate["rows"]
    assert (part["choosing"], part["certifying"], part["seed"]) == (1_000, 2_000, 3)
    assert found.choice is not None
    assert found.choice.n == 1_000
    assert found.choice.chosen in ("log_kde", "learned")
    assert found.certificate["reject"]["n"] == 2_000
    assert found.certificate["reject"]["delta"] == 0.05
    assert found.certificate["reject"]["score"] == found.choice.chosen == found.gate.reject_score
    assert found.certificate["reject"]["detail"]["grid"] == "reference"
    assert part["sha256"] == rows.fingerprint()["sha256"] != found.certificate["reject"]["sha256"]
    assert sum(row["chosen"] for row in found.as_dict()["table"]) == 1


def test_a_named_score_is_certified_on_all_rows() -> None:
    """No row is spent on a choice that is not made; nor are few rows with auto, which then means msp."""
    named = certify(make_rows(300), Targets(coverage=0.9, score="margin"), 999)
    few = certify(make_rows(CHOICE_ROWS - 1), Targets(coverage=0.8), 999)

    assert named.certificate["rows"]["certifying"] == 300
    assert few.certificate["rows"]["certifying"] == CHOICE_ROWS - 1
    assert few.gate.reject_score == "msp"
    assert named.choice is few.choice is None


def test_a_learned_score_travels_with_its_gate() -> None:
    """The gate of a learned score has its model, made from the rows that do not certify."""
    rows = make_rows(600)

    found = certify(rows, Targets(coverage=0.9, score="learned"), 999)

    assert found.gate.learned is not None
    assert found.certificate["rows"]["certifying"] == 400
    assert found.certificate["observed"]["coverage"] == pytest.approx(0.9, abs=0.01)


def test_infeasible_leaves_the_rule_out() -> None:
    """An infeasible rule is not in the gate, no number of labels attains it with this score; the other rule stays."""
    rows = make_rows(200)

    found = certify(rows, Targets(alpha=0.05, accuracy=0.9999, score="msp"), 999)

    assert not found.feasible
    assert found.gate.reject_score is None
    assert found.gate.outlier is not None
    assert found.certificate["reject"]["threshold"] is found.certificate["reject"]["coverage"] is None
    assert found.certificate["reject"]["labels_needed"] is None
    assert found.certificate["observed"]["low_confidence"] == 0
    json.dumps(found.as_dict(), allow_nan=False)


def test_too_few_calibration_rows_leave_no_outlier_rule() -> None:
    """alpha = 1% with 50 calibration rows is infeasible and says that it takes 99."""
    found = certify(make_rows(50), Targets(alpha=0.01), 50)

    assert not found.feasible
    assert found.gate.outlier is None
    assert found.certificate["outlier"]["rows_needed"] == 99


def test_guarantees_are_about_both_rules_together() -> None:
    """Beside an outlier rule accuracy is of rows that pass both; the other two count what either rejects."""
    rows = make_rows(3_000)
    assert rows.errors is not None
    flagged = rows.scores.p_value <= 0.2

    by_accuracy, by_risk, by_coverage = (
        certify(rows, Targets(alpha=0.2, score="msp", **rule), 999)
        for rule in ({"accuracy": 0.95}, {"undetected": 0.03}, {"coverage": 0.7})
    )

    assert by_accuracy.certificate["reject"]["n"] == int((~flagged).sum())
    allowed = math.floor(0.03 * 3_001) - 1
    assert by_risk.certificate["observed"]["errors_accepted"] == allowed
    assert by_coverage.certificate["observed"]["coverage"] == pytest.approx(0.7, abs=1e-3)
    for found in (by_accuracy, by_risk, by_coverage):
        accepted = found.gate.decide(rows.log_pi, rows.scores).accepted
        assert not (accepted & flagged).any()
        assert found.certificate["reject"]["coverage"] == pytest.approx(accepted.mean())


def test_coverage_that_outliers_alone_use_up_is_infeasible() -> None:
    """With a fifth of the rows outliers nine tenths cannot be accepted, however many rows there are."""
    found = certify(make_rows(1_000), Targets(alpha=0.2, coverage=0.9, score="msp"), 999)

    assert not found.feasible
    assert found.certificate["reject"]["labels_needed"] is None


def test_without_labels_only_coverage_and_alpha_are_possible() -> None:
    """A named score and a coverage need no labels; a choice, an accuracy and a bound on errors do."""
    rows = make_rows(300, labelled=False)

    found = certify(rows, Targets(alpha=0.05, coverage=0.8, score="msp"), 999)

    assert found.feasible
    assert found.certificate["observed"]["accuracy"] is None
    for rules in (Targets(coverage=0.9), Targets(accuracy=0.9, score="msp"), Targets(undetected=0.1, score="msp")):
        with pytest.raises(ConfigError, match="labels"):
            certify(rows, rules, 999)


def test_the_same_seed_gives_the_same_gate() -> None:
    """Equal rows, rules and seed give equal gates and certificates, another seed another split."""
    rows = make_rows(CHOICE_ROWS)
    first, again, other = (certify(rows, Targets(coverage=0.9, seed=seed), 999) for seed in (0, 0, 1))

    assert first.as_dict() == again.as_dict()
    assert first.certificate["reject"]["sha256"] != other.certificate["reject"]["sha256"]


def test_the_threshold_of_the_certificate_is_that_of_the_gate() -> None:
    """The threshold of a certificate is the gate's, and rows above it are accepted."""
    rows = make_rows(2_000)

    found = certify(rows, Targets(coverage=0.75, score="msp"), 999)

    assert found.gate.threshold == found.certificate["reject"]["threshold"]
    assert (msp(rows.log_pi) >= found.gate.threshold).mean() == pytest.approx(0.75, abs=1e-3)


def make_forest_rows(n: int, seed: int) -> ScoredPredictions:
    """Votes of 100 trees: most rows are unanimous and nearly always right."""
    rng = np.random.default_rng(seed)
    votes = np.where(rng.random(n) < 0.6, 100, rng.integers(50, 100, size=n))
    probs = np.stack([votes, 100 - votes], axis=1).astype(np.float32) / 100.0
    labels = (rng.random(n) < np.where(votes == 100, 0.01, 0.4)).astype(np.int64)
    p_value = (1.0 + rng.integers(1000, size=n)) / 1000.0
    return ScoredPredictions.of(from_arrays(probs, labels=labels), make_scores(n, p_value=p_value))


def test_a_forest_whose_top_votes_tie_is_certified() -> None:
    """The default score finds a threshold although more rows tie at the top than a strict threshold would accept."""
    found = certify(make_forest_rows(CHOICE_ROWS, 1), Targets(accuracy=0.95), 999)

    assert found.feasible
    assert found.certificate["observed"]["coverage"] > 0.5


def test_auto_is_feasible_as_often_as_max_softmax() -> None:
    """On few labels the default spends none on a choice: it certifies exactly what the named score does. On more it
    loses next to nothing.
    """
    named, auto = (
        [certify(make_rows(600, seed=seed), Targets(accuracy=0.93, score=score), 999).feasible for seed in range(30)]
        for score in ("msp", "auto")
    )

    assert auto == named
    assert any(auto)
    many = make_rows(CHOICE_ROWS)
    plain, chosen = (certify(many, Targets(accuracy=0.93, score=score), 999) for score in ("msp", "auto"))
    assert chosen.choice is not None
    assert chosen.choice.chosen == chosen.gate.reject_score == "msp"
    assert chosen.certificate["rows"]["certifying"] == CHOICE_ROWS
    assert chosen.certificate["reject"]["coverage"] > plain.certificate["reject"]["coverage"] - 0.03


@pytest.mark.parametrize(
    "target",
    [{"accuracy": 0.999}, {"undetected": 0.001}, {"alpha": 0.2, "coverage": 0.9}],
    ids=lambda each: [*each][-1],
)
def test_what_is_attainable_is_feasible(target: dict[str, float]) -> None:
    """An infeasible target names a weaker one that the same rows support."""
    rows, kind = make_rows(400), [*target][-1]
    found = certify(rows, Targets(score="msp", **target), 999)
    instead = found.certificate["reject"]["attainable"]

    again = certify(rows, Targets(score="msp", **{**target, kind: instead}), 999)

    assert not found.feasible
    assert again.feasible
    assert again.certificate["reject"]["attainable"] is None


def test_an_attainable_risk_counts_rows_that_tie() -> None:
    """Scores that differ by rounding are accepted together, so all of their errors count."""
    scores = 1.0 - 1e-7 * np.arange(8)
    some = np.array([False, True, True, True, False, False, False, False])

    instead = attainable_risk(scores, some)

    assert instead is not None
    assert threshold_by_joint_risk(scores, some, instead).feasible
    assert attainable_risk(scores, np.ones(8, dtype=np.bool_)) is None


@pytest.mark.parametrize("delta", [None, 0.05])
def test_an_attainable_level_is_feasible(delta: float | None) -> None:
    """With too few calibration rows for a level, the certificate names the smallest that they support."""
    rows = make_rows(100)
    found = certify(rows, Targets(alpha=0.001, delta=delta), 150)
    instead = found.certificate["outlier"]["attainable"]

    assert not found.feasible
    assert certify(rows, Targets(alpha=instead, delta=delta), 150).feasible
