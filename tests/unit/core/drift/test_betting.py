"""Bets on scores and classes, as martingales."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.drift.betting import Bets, BetState, class_bets, score_bets
from darksight_core.drift.urn import Ints
from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats

GAPS = np.array([5, 20, 75, 200, 1])
THRESHOLD = math.log(200.0)


def make_bets(kind: str, threshold: float = THRESHOLD, *, counts: Ints = GAPS, delta: float = 0.01) -> Bets:
    """Bets on a score whose cells have these gaps, or on classes with these counts."""
    return score_bets(counts, threshold) if kind == "score" else class_bets(counts, threshold, delta)


def draw_quiet(rng: np.random.Generator, rows: int) -> Ints:
    """Cells of an urn that is left alone: its shares are a Dirichlet draw."""
    return rng.choice(len(GAPS), rows, p=rng.dirichlet(GAPS))


def by_loop(bets: Bets, cells: Ints, uniforms: Floats) -> list[float]:
    """Log evidence after each row, one row at a time, while the urn learns."""
    counts, capital, path = bets.gaps.astype(np.float64), np.zeros(len(bets.shares)), []
    waiting = 1.0
    for row, (cell, uniform) in enumerate(zip(cells.tolist(), uniforms.tolist(), strict=True), start=1):
        value: Floats | Ints = np.array([cell])
        if len(counts):
            shares = counts / counts.sum()
            value = np.array([shares[:cell].sum() + uniform * shares[cell]])
            counts[cell] += 1.0
        left = 1.0 / (1.0 + math.log1p(row / 20.0))
        capital = (capital + (waiting - left) * bets.shares) * bets.factors(value)[0]
        waiting = left
        path.append(math.log(capital.sum() + waiting))
    return path


@pytest.mark.parametrize("kind", ["score", "class"])
def test_batches_equal_a_loop_over_rows(kind: str) -> None:
    """Vectorised evidence is that of a plain loop, however rows are divided into calls."""
    rng = np.random.default_rng(3)
    bets, cells, uniforms = make_bets(kind), draw_quiet(rng, 400), rng.random(400)
    state, paths = bets.start(), []
    for part in np.array_split(np.arange(400), [1, 2, 77, 300]):
        state, path = bets.update(state, cells[part], uniforms[part])
        paths.append(path)

    assert np.concatenate(paths) == pytest.approx(by_loop(bets, cells, uniforms), abs=1e-9)
    assert state.log_evidence == pytest.approx(paths[-1][-1])
    assert state.rows == 400
    assert state.learned.sum() == (400.0 if kind == "score" else 0.0)


def test_no_bet_on_a_score_gains_on_average_without_drift() -> None:
    """The mean factor of every bet over uniform p is one."""
    # p = v⁵ puts enough points where the powers are large.
    v = (np.arange(100_000) + 0.5) / 100_000

    mean = (make_bets("score").factors(v**5) * (5.0 * v**4)[:, None]).mean(axis=0)

    assert mean == pytest.approx(np.ones(len(mean)), abs=1e-3)


def test_no_bet_on_classes_gains_on_average_within_the_bounds_of_the_shares() -> None:
    """The mean factor of every bet is at most one for the calibrated shares, and one in the limit of many rows."""
    shares = GAPS / GAPS.sum()

    mean = shares @ make_bets("class").factors(np.arange(len(GAPS)))
    many = shares @ make_bets("class", counts=GAPS * 1_000_000).factors(np.arange(len(GAPS)))

    assert mean.max() <= 1.0
    assert many == pytest.approx(np.ones(len(many)), abs=0.01)


@pytest.mark.parametrize("kind", ["score", "class"])
def test_false_alarms_stay_at_their_level(kind: str) -> None:
    """At most the level of quiet streams ever alarm, and restarting evidence reaches 3,000 in 10 % of 300 rows."""
    rng, level, runs = np.random.default_rng(4), 0.1, 300 if kind == "score" else 60
    ends, shares = [], GAPS / GAPS.sum()
    for _ in range(runs):
        if kind == "score":
            bets, cells = make_bets(kind, math.log(1.0 / level)), draw_quiet(rng, 300)
        else:
            counts = rng.multinomial(300, shares)
            bets = make_bets(kind, math.log(2.0 / level), counts=counts, delta=level / 2)
            cells = rng.choice(len(GAPS), 300, p=shares)
        ends.append(bets.update(bets.start(), cells, rng.random(300))[0])

    alarms = np.mean([state.alarm_row is not None for state in ends])
    assert alarms <= level + 3 * math.sqrt(level * (1 - level) / runs)
    assert np.mean([state.log_restarting >= math.log(3_000) for state in ends]) <= 0.1


def shifted(rng: np.random.Generator, rows: int) -> Ints:
    """Cells after a change: the first two are half of the traffic."""
    return rng.choice(len(GAPS), rows, p=[0.2, 0.3, 0.2, 0.25, 0.05])


@pytest.mark.parametrize("kind", ["score", "class"])
def test_an_alarm_lasts_as_long_as_the_drift(kind: str) -> None:
    """The urn does not learn drifted rows: the evidence stays high for 5,000 of them, and falls when they end."""
    rng, bets = np.random.default_rng(5), make_bets(kind)
    quiet, _ = bets.update(bets.start(), draw_quiet(rng, 500), rng.random(500))
    drifted, _ = bets.update(quiet, shifted(rng, 5_000), rng.random(5_000))
    after, _ = bets.update(drifted, rng.choice(len(GAPS), 2_000, p=GAPS / GAPS.sum()), rng.random(2_000))

    assert drifted.alarm_row is not None
    assert 500 < drifted.alarm_row < 600
    assert drifted.log_evidence > THRESHOLD
    assert abs(drifted.since_row - 500) < 60
    assert after.log_evidence < THRESHOLD
    assert after.alarm_row == drifted.alarm_row
    assert after.is_learning


@pytest.mark.parametrize("kind", ["score", "class"])
def test_an_alarm_does_not_depend_on_the_division_into_calls(kind: str) -> None:
    """Learning stops and starts again within one call of many chunks, at the rows at which it does in small calls."""
    rng, bets = np.random.default_rng(8), make_bets(kind)
    cells = np.concatenate([draw_quiet(rng, 500), shifted(rng, 700), draw_quiet(rng, 3_000)])
    uniforms = rng.random(len(cells))
    whole, path = bets.update(bets.start(), cells, uniforms)
    state, paths = bets.start(), []
    for part in np.array_split(np.arange(len(cells)), 97):
        state, own = bets.update(state, cells[part], uniforms[part])
        paths.append(own)

    assert np.concatenate(paths) == pytest.approx(path, abs=1e-6)
    assert whole.numbers() == pytest.approx(state.numbers(), rel=1e-6, abs=1e-9)
    assert path.max() > THRESHOLD > path[-1]


@pytest.mark.parametrize("kind", ["score", "class"])
def test_the_most_extreme_rows_leave_finite_numbers(kind: str) -> None:
    """A thousand rows in the rarest cell, with the smallest uniform number, neither overflow nor become NaN."""
    bets = make_bets(kind, counts=np.array([1, 1_000_000]))

    state, path = bets.update(bets.start(), np.zeros(1_000, dtype=np.int64), np.full(1_000, 1e-12))

    assert np.isfinite(path).all()
    assert np.isfinite(state.capital).all()
    assert state.log_evidence > THRESHOLD


def test_the_state_is_never_changed_in_place() -> None:
    """An update leaves the state that it was given as it was."""
    rng, bets = np.random.default_rng(6), make_bets("score")
    state, _ = bets.update(bets.start(), draw_quiet(rng, 100), rng.random(100))
    before = BetState(state.rows, state.learned.copy(), state.capital.copy())

    bets.update(state, draw_quiet(rng, 100), rng.random(100))

    assert np.array_equal(state.learned, before.learned)
    assert np.array_equal(state.capital, before.capital)


def test_bets_on_classes_need_calibration_rows() -> None:
    """Without rows of any class there is nothing to compare with."""
    with pytest.raises(ConfigError, match="needs the predicted classes"):
        make_bets("class", counts=np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize("kind", ["score", "class"])
def test_the_highest_evidence_is_never_below_that_of_now(kind: str) -> None:
    """Evidence beyond the cut of the capital, reached within a chunk of rows, counts as the highest."""
    bets = make_bets(kind)

    state, path = bets.update(bets.start(), np.full(120, len(GAPS) - 1), np.full(120, 0.5))

    assert state.log_evidence > math.log(1e15)
    assert state.highest == pytest.approx(path.max())
    assert state.highest >= state.log_evidence
