"""Thresholds by segment: what the gate enforces, and what their certificates promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darksight_core.bundle import decode_bundle, encode_bundle
from darksight_core.errors import ConfigError
from darksight_core.gate import Gate, ScoredPredictions, SegmentThresholds, Targets, certify
from darksight_core.guarantees.class_conditional import class_limits
from darksight_core.guarantees.conformal import cutoff, p_values
from darksight_core.map.regions import Region
from darksight_core.rows.schema import Decision, Reason, ScoredBatch
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from tests.support.builders import make_probs
from tests.support.bundles import CERTIFICATE, make_bundle

ERRORS = {"easy": 0.15, "hard": 0.6, "rare": 0.9}
"""Rows at score s in (0, 1) err with this probability times 1 - s."""


def make_rows(rng: np.random.Generator, n: int = 700) -> ScoredPredictions:
    """Labelled rows of three cameras, one of them with few rows, and some without a camera."""
    segments = np.repeat(["easy", "hard", "rare", ""], [9 * n // 20, 9 * n // 20, n // 20, n // 20])
    n = len(segments)
    scores = replace(ScoredBatch.unscored(n), log_kde=rng.random(n), p_value=rng.random(n), points=np.zeros((n, 2)))
    rate = np.array([ERRORS.get(each, 0.3) for each in segments.tolist()])
    errors = rng.random(n) < rate * (1.0 - scores.log_kde)
    return ScoredPredictions(
        np.zeros((n, 2)), scores, errors, np.zeros(n, "S16"), np.zeros(n, np.int64), None, segments.astype(np.str_)
    )


def test_a_row_is_compared_with_the_threshold_of_its_segment() -> None:
    """A row of another segment, or without the tag, has the pooled threshold."""
    gate = Gate(reject_score="log_kde", threshold=0.5, segments=SegmentThresholds("camera", {"7": 0.8, "8": -math.inf}))
    scores = replace(ScoredBatch.unscored(5), log_kde=np.array([0.6, 0.9, 0.1, 0.6, 0.4]), p_value=np.ones(5))

    found = gate.decide(np.zeros((5, 2)), scores, segments=["7", "7", "8", "9", ""])

    assert found.accepted.tolist() == [False, True, True, True, False]
    assert found.reason[0] == Reason.LOW_CONFIDENCE


@given(st.integers(0, 10_000), st.booleans())
def test_deciding_afterwards_equals_deciding_at_once(seed: int, fail_open: bool) -> None:
    """As the compiled kernel needs it: first the pooled threshold, then those of segments, then regions."""
    rng, n = np.random.default_rng(seed), 40
    gate = Gate(
        outlier=cutoff(99, 0.1),
        reject_score="log_kde",
        threshold=0.5,
        fail_open=fail_open,
        regions=(Region("square", ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 0.5))),),
        segments=SegmentThresholds("camera", {"a": 0.2, "b": 0.9}),
    )
    holes = np.where(rng.random((2, n)) < 0.1, math.nan, 0.0)
    scores = replace(
        ScoredBatch.unscored(n),
        log_kde=rng.random(n) + holes[0],
        p_value=rng.random(n) + holes[1],
        points=rng.random((n, 2)),
        valid=rng.random(n) < 0.9,
    )
    segments, log_pi = rng.choice(["a", "b", "c", ""], n).tolist(), np.zeros((n, 2))

    whole = gate.decide(log_pi, scores, segments=segments)
    later = replace(gate, regions=()).decide(log_pi, scores)
    gate.decide_by_segment(later, segments)
    gate.reject_inside(later)

    assert later.reason.tolist() == whole.reason.tolist()
    assert later.decision.tolist() == whole.decision.tolist()


def test_the_policy_takes_tags_of_all_rows_or_of_each() -> None:
    """Without tags, and with tags of other keys, rows have the pooled threshold."""
    bundle = make_bundle(classes=3)
    gate = Gate(reject_score="msp", threshold=-math.inf, segments=SegmentThresholds("camera", {"7": 1e6}))
    policy = ScoringPolicy(Scorer.of(bundle, compiled=False), gate)
    probs = make_probs(3, 3)

    assert not policy.score(probs, tags={"camera": "7"}).accepted.any()
    assert policy.score(probs, tags=[{"camera": "7"}, {}, {"city": "7"}]).accepted.tolist() == [False, True, True]
    assert policy.score(probs).accepted.all()
    block = policy.score_block(probs[:1].astype("<f4").tobytes(), 1, {"camera": "7"})
    assert block.column("decision").tolist() == [Decision.REJECT]


def test_a_bundle_keeps_thresholds_of_segments() -> None:
    """They are in its manifest, and a gate without them has the same settings as before."""
    table = SegmentThresholds("camera", {"7": 1.5, "côté": -math.inf})
    gate = Gate(reject_score="msp", threshold=0.5, segments=table)

    loaded = decode_bundle(encode_bundle(make_bundle().with_gate(gate, CERTIFICATE)))

    assert loaded.gate is not None
    assert loaded.gate.segments is not None
    assert loaded.gate.segments.thresholds == table.thresholds
    assert loaded.gate.settings() == gate.settings()
    assert "segments" not in replace(gate, segments=None).settings()["reject"]


@pytest.mark.parametrize(
    ("key", "thresholds"),
    [
        ("Camera", {"7": 1.0}),
        ("camera", {}),
        ("camera", {"": 1.0}),
        ("camera", {"x" * 129: 1.0}),
        ("camera", {"7": math.nan}),
        ("camera", {"7": math.inf}),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(key: str, thresholds: dict[str, float]) -> None:
    """Bad keys, bad values, no thresholds, and thresholds that accept no row."""
    with pytest.raises(ConfigError):
        SegmentThresholds(key, thresholds)


def test_segments_with_enough_labels_have_their_own_threshold() -> None:
    """The hard camera needs a stricter one than the easy camera; a rare one is pooled, and the certificate says so."""
    found = certify(
        make_rows(np.random.default_rng(0), 4_000), Targets(accuracy=0.9, score="log_kde", by="camera"), 999
    )

    assert found.feasible
    assert found.gate.segments is not None
    thresholds = found.gate.segments.thresholds
    assert thresholds["easy"] < thresholds["hard"]
    part = found.certificate["reject"]["segments"]
    assert part["confidence"] == 0.95
    assert {each["value"]: each["uses"] for each in part["values"]}["easy"] == "own"
    assert "in each of" in found.certificate["reject"]["promise"]
    assert "separately" in found.certificate["reject"]["promise"]


def test_segments_need_a_rule_and_the_tag() -> None:
    """An outlier rule alone has no threshold to divide, and rows without the tag cannot be divided."""
    rows = replace(make_rows(np.random.default_rng(1)), segments=None)

    with pytest.raises(ConfigError, match="need a coverage"):
        Targets(alpha=0.1, by="camera")
    with pytest.raises(ConfigError, match="no tag 'camera'"):
        certify(rows, Targets(accuracy=0.9, score="log_kde", by="camera"), 999)


def test_the_certificate_of_each_segment_holds() -> None:
    """In each segment, and for the others together, at most delta of the certificates are wrong."""
    rng, delta, accuracy, runs = np.random.default_rng(2), 0.1, 0.9, 200
    wrong: dict[str, int] = dict.fromkeys(("easy", "hard", "others"), 0)
    made: dict[str, int] = dict(wrong)
    for _ in range(runs):
        targets = Targets(accuracy=accuracy, delta=delta, score="log_kde", by="camera")
        found = certify(make_rows(rng), targets, 999)
        own = {} if found.gate.segments is None else found.gate.segments.thresholds
        for value, threshold in own.items():
            if value in made:
                made[value] += 1
                # Rows at or above the threshold err at this rate on average.
                wrong[value] += ERRORS[value] * (1.0 - max(threshold, 0.0)) / 2.0 > 1.0 - accuracy
        part = found.certificate["reject"]["segments"]
        if part["pooled"]["certified_on"] != "all rows" and found.feasible:
            made["others"] += 1
            shares = {"rare": 0.05, "": 0.05, **{each: 0.45 for each in ("easy", "hard") if each not in own}}
            rate = sum(share * ERRORS.get(each, 0.3) for each, share in shares.items()) / sum(shares.values())
            wrong["others"] += rate * (1.0 - max(found.gate.threshold, 0.0)) / 2.0 > 1.0 - accuracy

    assert made["easy"] > 0.9 * runs
    assert made["hard"] > 0.3 * runs
    for value, count in wrong.items():
        assert count / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs), value


def test_limits_of_classes_give_the_decisions_of_class_conditional_p_values() -> None:
    """A row is an outlier if its p-value within its predicted class is small; classes with few rows are pooled."""
    rng, alpha = np.random.default_rng(3), 0.05
    classes = np.repeat([0, 1, 2], [400, 300, 10])
    known = rng.normal(classes.astype(float))
    limits, pooled = class_limits(known, classes, 3, alpha)
    new = rng.integers(0, 3, 2_000)
    scores = replace(
        ScoredBatch.unscored(2_000),
        outlier_score=rng.normal(new.astype(float)),
        p_value=rng.random(2_000),
        predicted=new.astype(np.int32),
    )
    gate = Gate(outlier=cutoff(710, alpha), class_limits=limits)

    found = gate.decide(np.zeros((2_000, 3)), scores)
    later = Gate().decide(np.zeros((2_000, 3)), scores)
    gate.reject_by_class(later)

    assert pooled.tolist() == [False, False, True]
    ranked = [np.sort(known if pooled[label] else known[classes == label]) for label in range(3)]
    p = np.array([p_values(scores.outlier_score[k : k + 1], ranked[label])[0] for k, label in enumerate(new)])
    expected = p <= np.where(pooled[new], cutoff(710, alpha).p_value, alpha)
    assert ((found.reason == Reason.OUTLIER) == expected).all()
    assert later.reason.tolist() == found.reason.tolist()
    for label in (0, 1):
        assert (found.reason[new == label] == Reason.OUTLIER).mean() < alpha + 4 * math.sqrt(alpha / 300)


def test_a_bundle_keeps_limits_of_classes() -> None:
    """Read back, they decide alike; an override of alpha would drop them."""
    bundle = make_bundle(classes=3)
    gate = Gate(outlier=cutoff(len(bundle.calibration), 0.1), class_limits=np.array([0.5, -1.0, 2.0]))

    loaded = decode_bundle(encode_bundle(bundle.with_gate(gate, CERTIFICATE)))

    assert loaded.gate is not None
    assert loaded.gate.settings() == gate.settings()
    with pytest.raises(ConfigError, match="beside an outlier rule"):
        Gate(class_limits=np.array([0.5, 1.0]))
