"""Promises about single classes: accuracy within each predicted class, precision and recall of one."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from darksight_core.bundle import decode_bundle, encode_bundle
from darksight_core.errors import ConfigError
from darksight_core.gate import ScoredPredictions, Targets, certify
from darksight_core.gate.class_targets import ClassTarget
from darksight_core.gate.segment_certificate import class_delta
from darksight_core.guarantees.binomial import rows_without_error
from darksight_core.rows.schema import Reason, ScoredBatch
from darksight_core.rows.simplex import log_softmax
from tests.support.bundles import make_bundle

RATIO, SEPARATION, RUNS, DELTA = 20.0, 3.0, 120, 0.1
MOST_BROKEN = DELTA * RUNS + 3.0 * math.sqrt(RUNS * DELTA * (1.0 - DELTA))


def make_rows(rng: np.random.Generator, n: int = 3_000, ratio: float = RATIO) -> ScoredPredictions:
    """The best classifier of two Gaussians, of which the second has 1 row for `ratio` of the first."""
    labels = (rng.random(n) < 1.0 / (ratio + 1.0)).astype(np.int64)
    log_odds = rng.normal((labels - 0.5) * SEPARATION**2, SEPARATION) - math.log(ratio)
    log_pi = log_softmax(np.stack([np.zeros(n), log_odds], axis=1))
    predicted = log_pi.argmax(axis=1)
    scores = replace(ScoredBatch.unscored(n), p_value=np.ones(n), points=np.zeros((n, 2)))
    scores = replace(scores, predicted=predicted.astype(np.int32))
    return ScoredPredictions(log_pi, scores, predicted != labels, np.zeros(n, "S16"), labels, None)


def above(log_odds: float, label: int, ratio: float = RATIO) -> float:
    """P(log-odds of the second class >= a value, true class is `label`)."""
    prior = 1.0 / (ratio + 1.0) if label else ratio / (ratio + 1.0)
    mean = (label - 0.5) * SEPARATION**2 - math.log(ratio)
    return prior * 0.5 * math.erfc((log_odds - mean) / SEPARATION / math.sqrt(2.0))


def precision(threshold: float, label: int) -> float:
    """Share of accepted rows predicted as a class that are right."""
    limit = max(threshold, 0.0)
    if label == 1:
        return above(limit, 1) / (above(limit, 1) + above(limit, 0))
    right, wrong = (above(-math.inf, k) - above(-limit, k) for k in (0, 1))
    return right / (right + wrong)


def recall(threshold: float) -> float:
    """Share of rows of the second class that are predicted so and accepted."""
    return above(max(threshold, 0.0), 1) / above(-math.inf, 1)


def test_the_accuracy_of_each_predicted_class_holds() -> None:
    """In at most delta of the draws any predicted class with a threshold of its own, or the others, break it."""
    rng, accuracy, broken, own = np.random.default_rng(0), 0.93, 0, 0
    for _ in range(RUNS):
        found = certify(make_rows(rng), Targets(accuracy=accuracy, delta=DELTA, score="msp", per_class=True), 999)
        if found.gate.class_thresholds is not None:
            part = found.certificate["reject"]["classes"]
            used = {each["value"] for each in part["values"] if each["uses"] == "own"}
            promised = [k for k in (0, 1) if str(k) in used or part["pooled"]["certified_on"] != "all rows"]
            own += "1" in used
            broken += any(precision(float(found.gate.class_thresholds[k]), k) < accuracy for k in promised)

    assert own > 0.3 * RUNS
    assert broken <= MOST_BROKEN


def test_precision_and_recall_of_a_class_hold() -> None:
    """In at most delta of the draws either is broken, alone and with both on one class."""
    rng, broken, made = np.random.default_rng(1), Counter[str](), Counter[str]()
    cases = {"precision": (0.85, None), "recall": (None, 0.6), "both": (0.75, 0.6)}
    for _ in range(RUNS):
        rows = make_rows(rng)
        for name, (least_precision, least_recall) in cases.items():
            target = ClassTarget(1, "fraud", least_precision, least_recall)
            found = certify(rows, Targets(delta=DELTA, score="msp", classes=(target,)), 999)
            if found.feasible:
                assert found.gate.class_thresholds is not None
                assert found.gate.class_thresholds[0] == -math.inf
                threshold = float(found.gate.class_thresholds[1])
                made[name] += 1
                broken[name] += precision(threshold, 1) < (least_precision or 0.0) or recall(threshold) < (
                    least_recall or 0.0
                )

    for name in cases:
        assert made[name] > 0.3 * RUNS, name
        assert broken[name] <= MOST_BROKEN, name


def test_a_precision_and_a_recall_that_exclude_each_other_say_what_is_attainable() -> None:
    """Each is feasible alone; together the certificate names the recall of the precision, and the reverse."""
    rows = make_rows(np.random.default_rng(2), 20_000)
    target = ClassTarget(1, "fraud", precision=0.95, recall=0.6)

    part = certify(rows, Targets(score="msp", classes=(target,)), 999).certificate["classes"]["values"][0]

    assert not part["feasible"]
    assert part["precision"]["feasible"]
    assert part["recall"]["feasible"]
    assert 0.1 < part["recall_at_precision"] < 0.6
    assert 0.6 < part["precision_at_recall"] < 0.95


def test_a_class_without_rows_is_refused() -> None:
    """No row is predicted as it or has it as a label, so nothing about it can be certified."""
    rows = make_rows(np.random.default_rng(3), 500)
    rows = rows.take(np.flatnonzero((rows.scores.predicted == 0) & (rows.labels == 0)))

    with pytest.raises(ConfigError, match="predicted as fraud"):
        certify(rows, Targets(score="msp", classes=(ClassTarget(1, "fraud", 0.9, 0.5),)), 999)


def test_a_bundle_keeps_thresholds_of_classes() -> None:
    """Read back, gate and certificate are the same; a bundle of another number of classes is refused."""
    target = ClassTarget(1, "fraud", precision=0.8)
    found = certify(make_rows(np.random.default_rng(4)), Targets(score="msp", classes=(target,)), 999)
    bundle = make_bundle(classes=2)

    loaded = decode_bundle(encode_bundle(bundle.with_gate(found.gate, found.certificate)))

    assert loaded.gate is not None
    assert loaded.gate.settings() == found.gate.settings()
    assert loaded.manifest["certificate"]["classes"] == found.certificate["classes"]


def test_the_effect_by_class_counts_every_row_once() -> None:
    """Accepted and rejected rows of all predicted classes add up, and the majority class is that of accepted rows."""
    found = certify(make_rows(np.random.default_rng(5)), Targets(accuracy=0.99, score="msp"), 999)
    by_class, observed = found.effect["by_class"], found.certificate["observed"]

    assert sum(each["rows"] for each in by_class) == 3_000
    assert sum(each["rows"] * each["coverage"] for each in by_class) == pytest.approx(3_000 * observed["coverage"])
    assert sum(each["low_confidence"] for each in by_class) == observed["low_confidence"]
    assert found.effect["majority"]["class"] == 0
    assert found.effect["majority"]["share"] > 0.95


def test_tests_of_classes_share_delta() -> None:
    """Each class with enough rows is a test, and so are the others together; classes that cannot pass are none."""
    enough = rows_without_error(0.1, 0.05 / 3)

    assert class_delta([1, 2, 3], 0.9, 0.05) == 0.05
    assert class_delta([1_000, 3], 0.9, 0.05) == pytest.approx(0.05 / 2)
    assert class_delta([1_000, enough, 3], 0.9, 0.05) == pytest.approx(0.05 / 3)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"per_class": True, "alpha": 0.1}, "needs a target accuracy"),
        ({"per_class": True, "accuracy": 0.9, "by": "camera"}, "excludes segments"),
        ({"classes": (ClassTarget(0, "a", 0.9),), "accuracy": 0.9}, "excludes other rules"),
    ],
)
def test_targets_that_exclude_each_other_are_refused(targets: dict[str, object], message: str) -> None:
    """The message says which."""
    with pytest.raises(ConfigError, match=message):
        Targets(**targets)  # type: ignore[arg-type]  # deliberately any


def test_a_gate_by_class_rejects_rows_of_that_class_alone() -> None:
    """Rows predicted as a class without a target are accepted."""
    rows = make_rows(np.random.default_rng(6))
    found = certify(rows, Targets(score="msp", classes=(ClassTarget(1, "fraud", precision=0.85),)), 999)

    decided = found.gate.decide(rows.log_pi, rows.scores)

    assert decided.accepted[rows.scores.predicted == 0].all()
    assert set(decided.reason[rows.scores.predicted == 1].tolist()) == {Reason.NONE, Reason.LOW_CONFIDENCE}
