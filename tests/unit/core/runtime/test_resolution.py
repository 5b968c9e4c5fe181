"""Rows that are known in part are ranked among calibration rows of the same resolution, by the same bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from darksight_core.bundle import Bundle, read_bundle, write_bundle
from darksight_core.bundle.levels import Resolutions
from darksight_core.errors import ConfigError
from darksight_core.evaluation.drift import report_drift
from darksight_core.fit.levels import fit_levels
from darksight_core.gate.certify import Targets, certify, certify_levels
from darksight_core.predictions import from_arrays
from darksight_core.predictions.rows import Predictions
from darksight_core.predictions.split import make_split
from darksight_core.rows.partial import TopRows, top_rows
from darksight_core.rows.resolution import FULL
from darksight_core.rows.simplex import Floats
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import bundle_of, make_embedder

CLASSES, ROWS, ALPHA = 8, 4_000, 0.01


def rows_of(n: int, seed: int) -> tuple[Floats, np.ndarray]:
    """Rows of a confident classifier whose classes have neighbours, and true classes drawn from them."""
    rng = np.random.default_rng(seed)
    label = rng.integers(CLASSES, size=n)
    near = np.exp(-np.abs(np.arange(CLASSES)[:, None] - np.arange(CLASSES)))
    logits = 7.0 * near[label] * rng.gamma(4.0, 0.5, size=(n, 1)) + rng.normal(size=(n, CLASSES))
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    truth = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return probs.astype(np.float32), truth


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """A bundle of full rows with levels for three and five known classes."""
    probs, _ = rows_of(ROWS, 0)
    made = bundle_of(make_embedder(CLASSES), probs)
    split = make_split(ROWS, 0)
    pair = probs[split.fit], probs[split.calibrate]
    return replace(made, resolutions=fit_levels(Resolutions(), pair, pair, (5, 3))[1])


@pytest.fixture(scope="module", params=[False, True], ids=["numpy", "compiled"])
def scorer(request: pytest.FixtureRequest, bundle: Bundle) -> Scorer:
    """Its scorer."""
    return Scorer.of(bundle, compiled=request.param)


FORMS = {
    "float32": lambda rows: rows,
    "float16": lambda rows: rows.astype(np.float16),
    "6 decimals": lambda rows: rows.astype(np.float64).round(6),
    "4 decimals": lambda rows: rows.astype(np.float64).round(4).astype(np.float32),
    "3 decimals": lambda rows: rows.astype(np.float64).round(3),
    "2 decimals": lambda rows: rows.round(2),
    "all classes": lambda rows: top_rows(rows, CLASSES),
    "top 5": lambda rows: top_rows(rows, 5),
    "top 4": lambda rows: top_rows(rows, 4),
}


@pytest.mark.parametrize("form", FORMS)
def test_usual_rows_are_flagged_at_their_rate(scorer: Scorer, form: str) -> None:
    """Whatever digits or classes were lost, about one usual row in a hundred is flagged, and none becomes invalid."""
    rows, _ = rows_of(6_000, 1)
    scored = scorer.score(FORMS[form](rows))

    assert scored.valid.all()
    assert 0.004 < (scored.p_value <= ALPHA).mean() < 0.02
    assert (scored.predicted == rows.argmax(axis=1)).mean() > 0.98
    full = form in ("float32", "all classes")
    assert (scored.resolution == FULL).all() == full or form == "all classes"


def test_as_full_rows_they_would_be_flagged(bundle: Bundle) -> None:
    """Without levels most rounded rows are outliers: what the levels are for."""
    scorer = Scorer.of(replace(bundle, resolutions=Resolutions()), compiled=False)
    rows, _ = rows_of(1_000, 1)

    assert (scorer.score(FORMS["4 decimals"](rows)).p_value <= ALPHA).mean() > 0.5


def test_full_rows_are_scored_as_before(scorer: Scorer, bundle: Bundle) -> None:
    """Levels change nothing for rows with all digits."""
    rows, _ = rows_of(500, 2)
    plain = Scorer.of(replace(bundle, resolutions=Resolutions()), compiled=scorer.kernel is not None)

    ours, theirs = scorer.score(rows), plain.score(rows)
    for name in ("p_value", "outlier_score", "points", "resolution"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_a_row_gets_the_same_result_alone_and_among_others(scorer: Scorer) -> None:
    """Rows of several resolutions in one call do not notice each other."""
    rows, _ = rows_of(60, 3)
    mixed = np.concatenate([rows[:20], rows[20:40].round(4), rows[40:].astype(np.float16)])
    together = scorer.score(mixed)
    policy = ScoringPolicy(scorer)

    for k in (0, 25, 45, 59):
        alone = scorer.score(mixed[k : k + 1])
        assert alone.resolution[0] == together.resolution[k]
        np.testing.assert_allclose(alone.p_value[0], together.p_value[k])
        block = policy.score_block(mixed[k : k + 1].astype("<f4").tobytes(), 1)
        np.testing.assert_allclose(block.column("p_value")[0], together.p_value[k])
        assert block.column("resolution")[0] == together.resolution[k]


def test_a_stated_resolution_is_kept_or_refused(scorer: Scorer) -> None:
    """Rows are brought to the level that is stated, or to the next coarser one; what no level has is refused."""
    rows, _ = rows_of(50, 4)

    assert (scorer.score(rows, resolution="1e-4").resolution == -4).all()
    assert (scorer.score(rows, resolution="1e-5").resolution == -4).all()
    assert (scorer.score(top_rows(rows, 4)).resolution == 3).all()
    with pytest.raises(ConfigError, match=r"calibrated for .*, not top2; ask the classifier for 3 classes"):
        scorer.score(top_rows(rows, 2))
    with pytest.raises(ConfigError, match=r"but the rows have 3 known classes"):
        scorer.score(top_rows(rows, 3), resolution="1e-4")
    with pytest.raises(ConfigError, match="it must be full"):
        scorer.score(rows, resolution="float16")


def test_what_is_no_class_makes_a_row_unusual(scorer: Scorer) -> None:
    """Probability of other tokens, which no known row has, lowers the outlier score and the confidence."""
    rows, _ = rows_of(200, 5)
    plain = top_rows(rows, 5)
    beside = TopRows(plain.classes, plain.log_probabilities + np.log(0.5), np.full(len(plain), 0.5))

    usual, unusual = scorer.score(plain), scorer.score(beside)
    assert (unusual.outlier_score < usual.outlier_score).all()
    assert (unusual.p_value <= ALPHA).all()
    np.testing.assert_allclose(unusual.points, usual.points, atol=0.01)


@pytest.mark.parametrize("number", [FULL, -4, 5])
def test_certificates_hold_at_their_level(bundle: Bundle, number: int) -> None:
    """Over 300 draws of labelled rows, gates that promise 95% with confidence 95% break it in at most 5%."""
    probs, truth = rows_of(6_000, 6)
    rows = Scorer.of(bundle).by_resolution(from_arrays(probs, labels=truth))[number]
    assert rows.errors is not None
    rng, broken, feasible = np.random.default_rng(0), 0, 0
    for _ in range(300):
        found = certify(rows.take(rng.integers(len(rows), size=500)), Targets(accuracy=0.95, score="msp"), 0)
        if found.feasible:
            feasible += 1
            confidence = found.gate.reject_scores(rows.log_pi, rows.scores, other=rows.other)
            broken += rows.errors[confidence >= found.gate.lowest_accepted].mean() > 0.05
    assert feasible > 200
    assert broken <= 0.05 * 300


def test_a_gate_decides_rows_of_each_level_by_its_own_threshold(scorer: Scorer, bundle: Bundle, tmp_path: Path) -> None:
    """Labelled full rows certify every level, which a file keeps; top-k rows certify theirs alone."""
    probs, truth = rows_of(3_000, 7)
    targets = Targets(alpha=0.02, accuracy=0.95)
    calibrations = {each.number: each.calibration for each in bundle.levels}
    found = certify_levels(
        scorer.by_resolution(from_arrays(probs, labels=truth)), targets, calibrations, by_class=False
    )
    assert found.gate.certified_levels == scorer.resolutions.numbers
    write_bundle(tmp_path / "b.safetensors", bundle.with_gate(found.gate, found.certificate))
    gate = read_bundle(tmp_path / "b.safetensors").gate
    assert gate is not None
    assert gate.settings() == found.gate.settings()
    policy = ScoringPolicy(scorer, gate)
    new, _ = rows_of(400, 8)
    for form in ("float32", "4 decimals", "top 5"):
        decided = policy.score(FORMS[form](new))
        for number in np.unique(decided.resolution).tolist():
            own, some = gate.at_level(number), decided.resolution == number
            assert own is not None
            is_low = decided.confidence < own.lowest_accepted
            np.testing.assert_array_equal(decided.accepted[some], (~is_low & (decided.p_value > 0.02))[some])

    known = Predictions.of_top(top_rows(probs, 5), tuple(map(str, range(CLASSES))), "x", labels=truth)
    only = certify_levels(scorer.by_resolution(known), targets, calibrations, by_class=False).gate
    assert only.certified_levels == (5, 3)
    policy = ScoringPolicy(scorer, only)
    # Full rows are brought to the level that the gate is for.
    assert (policy.score(new).resolution == 5).all()


def test_lost_digits_are_no_drift(bundle: Bundle) -> None:
    """A stream that gets four decimals is named as such, and is neither new content nor an alarm."""
    scorer = Scorer.of(bundle, compiled=False)
    rows, _ = rows_of(4_000, 9)
    stream = np.concatenate([rows[:2_000], rows[2_000:].round(4)])
    report = report_drift(bundle, stream, scorer.score(stream))

    assert report.alarm_row is None
    assert report.precision.startswith("precision changed: 50% of 4000 rows have resolution 1e-4")
    quiet = report_drift(bundle, rows, scorer.score(rows))
    assert quiet.precision == ""
