"""Witnesses of drift: slow changes with and without them, false alarms, and what they cost.

As in `./dev bench drift`, clean rows of ../shared/data/mnist_lenet are drawn with replacement, anew for each stream. In
a slow change the share of corrupted rows rises evenly from 0 during 10,000 rows.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from darksight_core.drift.detector import RowBatch
from darksight_core.drift.row_features import RowFeatures
from darksight_core.drift.stream import DriftTest
from darksight_core.drift.witnesses import WitnessState, WitnessTest
from darksight_core.guarantees.calibration import Calibration
from darksight_core.predictions import read_predictions
from darksight_core.rows.simplex import Floats, log_probs
from darksight_core.scores.outlier import OutlierScore
from tests.bench import results
from tests.bench.drift import CALIBRATION, FOLDER, KNOWN, delay_text, share_text

ROWS, RAMP, QUIET = 12_000, 10_000, 20_000
CHANGES = (("gauss010", 1.0), ("rot15", 0.2), ("gauss030", 0.2))


def read(name: str) -> Floats:
    """Log-probabilities of a file."""
    return log_probs(read_predictions(FOLDER / f"{name}.npz").probs)


def batch_of(rows: Floats, score: OutlierScore, rng: np.random.Generator) -> RowBatch:
    """Rows as detectors take them."""
    probs = np.exp(rows).astype(np.float32)
    return RowBatch(score.score(rows), probs.max(axis=1), probs.argmax(axis=1), rng.random((len(rows), 3)), probs)


def follow(test: WitnessTest, rows: RowBatch) -> WitnessState:
    """The state after rows, restarted from its bytes twice."""
    state = test.start()
    for part in np.array_split(np.arange(len(rows)), 3):
        state = test.decode(test.encode(test.update(state, rows.take(part))))
    return state


def main(argv: list[str]) -> int:
    """Measure slow changes and quiet streams."""
    parser = argparse.ArgumentParser(prog="./dev bench witnesses", description=__doc__)
    parser.add_argument("--streams", type=int, default=24, help="streams of each change (default 24)")
    parser.add_argument("--quiet-streams", type=int, default=500, help="quiet streams of 20,000 rows (default 500)")
    args = parser.parse_args(argv)
    if not (FOLDER / "val.npz").exists():
        print(f"skipped: {FOLDER} has no val.npz with corrupt_*.npz beside it", file=sys.stderr)
        return 0
    pool = np.concatenate([read("val"), read("test")])
    bad = {name: read(f"corrupt_{name}") for name, _ in CHANGES}
    delays: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for seed in range(args.streams):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(pool))
        known, free = pool[order[:KNOWN]], pool[order[KNOWN:]]
        score = OutlierScore.fit(known)
        held = free[rng.integers(0, len(free), CALIBRATION)]
        calibration = Calibration(score.score(held), top=np.exp(held.max(axis=1)))
        others = DriftTest(calibration, np.bincount(held.argmax(axis=1), minlength=held.shape[1]))
        test = WitnessTest(RowFeatures.fit(known, held, score.log_ratios.means))
        for change in CHANGES:
            drawn = bad[change[0]][rng.integers(0, len(bad[change[0]]), ROWS)]
            is_bad = rng.random(ROWS) < change[1] * np.minimum(np.arange(ROWS) / RAMP, 1.0)
            rows = batch_of(np.where(is_bad[:, None], drawn, free[rng.integers(0, len(free), ROWS)]), score, rng)
            alarms = [others.update(others.start(), rows).alarm_row, follow(test, rows).alarm_row]
            without, witness = (np.inf if row is None else float(row) for row in alarms)
            delays.setdefault(change, []).append((without, min(without, witness)))
    table = results.Table(
        ("change", "without witnesses", "with witnesses"),
        [
            (f"{name}, 0 to {share:.0%}", *map(delay_text, zip(*each, strict=True)))
            for (name, share), each in delays.items()
        ],  # type: ignore[arg-type]  # tuples of floats
    )
    quiet = []
    for count in (CALIBRATION, 300):
        alarms, seconds = 0, 0.0
        for seed in range(args.quiet_streams):
            rng = np.random.default_rng(10_000 + seed)
            if seed % 25 == 0:
                order = rng.permutation(len(pool))
                known, free = pool[order[:KNOWN]], pool[order[KNOWN:]]
                score = OutlierScore.fit(known)
            held = free[rng.integers(0, len(free), count)]
            test = WitnessTest(RowFeatures.fit(known, held, score.log_ratios.means))
            rows = batch_of(free[rng.integers(0, len(free), QUIET)], score, rng)
            started = time.process_time()
            alarms += follow(test, rows).alarm_row is not None
            seconds += time.process_time() - started
        shown = share_text(alarms, args.quiet_streams)
        quiet.append(
            (
                f"{count:,}",
                f"{alarms} of {args.quiet_streams}",
                shown,
                f"{1e6 * seconds / args.quiet_streams / QUIET:.1f}",
            )
        )
    results.save(
        "witnesses: slow changes",
        (
            "Row of the alarm: median [5 %, 95 %] of the streams; a dash: not within 12,000. Both have the thresholds "
            "of four kinds of evidence.",
            table,
        ),
    )
    results.save(
        "witnesses: quiet streams of 20,000 rows",
        (
            "Restarted from their bytes twice in each stream. The level is 0.22 %.",
            results.Table(("calibration rows", "alarms", "share", "CPU, us a row"), quiet),
        ),
    )
    return 0
