"""Drift: rows to detection for every corruption of MNIST, false alarms without drift, and accuracy without labels.

Clean rows of ../shared/data/mnist_lenet (validation and test, on none of which the classifier was trained) are pooled.
Some are known to the outlier score. From the others the calibration rows and the rows of every stream are drawn with
replacement, anew for each stream, so that all are independent and of one distribution: the null hypothesis is true on
quiet streams of any length. After the change a stream has corrupted rows, or clean ones with another class mix.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstest, kstwo

from darksight_core.drift.betting import BetState
from darksight_core.drift.detector import Baseline, RowBatch
from darksight_core.drift.segments import SegmentChanges, SegmentTest, find_changes
from darksight_core.drift.stream import DriftState, DriftTest
from darksight_core.guarantees.calibration import Calibration
from darksight_core.predictions import read_predictions
from darksight_core.rows.simplex import Floats, largest_probs, log_probs
from darksight_core.scores.outlier import OutlierScore
from tests.bench import results
from tests.support.psi import p_value_counts, psi, psi_critical

Ints = NDArray[np.int64]

FOLDER = results.DATA / "mnist_lenet"
ALPHA, LEVEL, BINS = 0.01, 0.01, 20
SEGMENTS, SHARE, FALSE_DISCOVERIES = 40, 0.03, 0.05
KNOWN, CALIBRATION = 6_000, 2_999
SHORT, LONG, DRIFTED = 300, 20_000, 3_000
RESTART = 1e5
"""R of the restarting evidence at which it alarms: at least so many rows between false alarms on average."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Outlier scores, largest probabilities, predicted classes and labels of rows, (n,) each."""

    scores: Floats
    top: Floats
    classes: Ints
    labels: Ints

    def take(self, rows: Ints) -> Rows:
        """Some of the rows."""
        return Rows(self.scores[rows], self.top[rows], self.classes[rows], self.labels[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Clean rows to draw from, and rows after a change by its kind."""

    clean: Rows
    changed: Mapping[str, Rows]


def read(seed: int) -> Data | None:
    """The rows, scored by a score that knows others; None where the data is absent."""
    files = {path.stem.partition("_")[2]: path for path in sorted(FOLDER.glob("corrupt_*.npz"))}
    files |= {path.stem: path for path in sorted(FOLDER.glob("ood_*.npz"))}
    if not files or not (FOLDER / "val.npz").exists():
        return None
    clean = [read_predictions(FOLDER / f"{name}.npz") for name in ("val", "test")]
    probs = np.concatenate([each.probs for each in clean])
    labels = np.concatenate([each.labels for each in clean])
    order = np.random.default_rng(seed).permutation(len(probs))
    score = OutlierScore.fit(log_probs(probs[order[:KNOWN]]))

    def rows(given: Floats, truth: Ints | None) -> Rows:
        unknown = np.full(len(given), -1)
        known = unknown if truth is None else truth
        return Rows(score.score(log_probs(given)), largest_probs(given), given.argmax(axis=1), known)

    free = rows(probs[order[KNOWN:]], labels[order[KNOWN:]])
    changed = {}
    for name, path in files.items():
        found = read_predictions(path)
        changed[name] = rows(found.probs, found.labels)
    threes = free.labels == 3
    others = np.flatnonzero(~threes)
    half = np.concatenate([np.resize(np.flatnonzero(threes), len(others)), others])
    changed |= {"class 3 is half": free.take(half), "class 3 is gone": free.take(others)}
    return Data(free, changed)


def first_after(alarms: Ints, change: int) -> float:
    """Rows from the change to the first alarm after it, infinite without one."""
    later = alarms[alarms > change]
    return float(later[0] - change) if len(later) else np.inf


def windows(rows: int, is_alarm: Callable[[Floats], bool]) -> Callable[[Floats], Ints]:
    """A test of one window after the other."""

    def alarms(p: Floats) -> Ints:
        ends = range(rows, len(p) + 1, rows)
        return np.array([end for end in ends if is_alarm(p[end - rows : end])], dtype=np.int64)

    return alarms


def customary() -> dict[str, Callable[[Floats], Ints]]:
    """Methods that read p-values alone."""
    critical = max(psi_critical(1_000, CALIBRATION, bins=BINS, level=1e-4), 0.1)
    found: dict[str, Callable[[Floats], Ints]] = {
        "PSI > critical value and 0.1, windows of 1,000": windows(
            1_000, lambda p: float(psi(p_value_counts(p, bins=BINS))) > critical
        ),
    }
    for rows in (100, 500, 1_000):
        limit = kstwo.isf(0.05, rows)
        found[f"PSI > 0.1, windows of {rows:,}"] = windows(rows, lambda p: float(psi(p_value_counts(p))) > 0.1)
        found[f"Kolmogorov-Smirnov at 5 %, windows of {rows:,}"] = windows(
            rows, lambda p, limit=limit: float(kstest(p, "uniform").statistic) > limit
        )
    return found


ANY = "**any of the three, level 1 %**"


def follow(test: DriftTest, state: DriftState, rows: Rows, uniforms: Floats) -> tuple[DriftState, Floats]:
    """The state after more rows, and the path of the evidence."""
    return test.follow(state, RowBatch(rows.scores, rows.top, rows.classes, uniforms))


def alarm_after(test: DriftTest, state: DriftState, rows: Rows, rng: np.random.Generator) -> dict[str, float]:
    """Rows until the alarm of each evidence, of rows that follow a quiet state."""
    after, _ = follow(test, state, rows, rng.random((len(rows.scores), 3)))

    def delay(each: BetState) -> float:
        is_found = each.alarm_row is not None and each.alarm_row > state.rows
        return float(each.alarm_row - state.rows) if is_found and each.alarm_row is not None else np.inf

    delays = {f"**{name}**": delay(each) for name, each in after.kinds.items()}
    return {ANY: min(delays.values()), **delays}


def measure_delays(seeds: int, streams: int) -> dict[str, dict[str, dict[str, list[float]]]] | None:
    """Delays by lead, method and kind of change."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}

    def note(lead: int, method: str, kind: str, delay: float) -> None:
        found.setdefault(f"after {lead:,}", {}).setdefault(method, {}).setdefault(kind, []).append(delay)

    asked = customary()
    for seed in range(seeds):
        data = read(seed)
        if data is None:
            return None
        rng = np.random.default_rng(1_000 + seed)
        for _ in range(streams):
            calibration, test, lead = make_test(data, rng, LONG)
            uniforms = rng.random((LONG, 3))
            # So that the change falls anywhere in a window of the customary methods.
            short = SHORT + int(rng.integers(0, 1_000))
            before, rest = np.arange(SHORT), np.arange(SHORT, LONG)
            early, _ = follow(test, test.start(), lead.take(before), uniforms[before])
            late, _ = follow(test, early, lead.take(rest), uniforms[rest])
            p_lead = calibration.p_value(lead.scores)
            for kind, rows in data.changed.items():
                drawn = rows.take(rng.integers(0, len(rows.scores), DRIFTED))
                p_drawn = calibration.p_value(drawn.scores)
                for rows_before, state in ((SHORT, early), (LONG, late)):
                    for method, delay in alarm_after(test, state, drawn, rng).items():
                        note(rows_before, method, kind, delay)
                for method, alarms in asked.items():
                    p = np.concatenate([p_lead[:short], p_drawn])
                    note(SHORT, method, kind, first_after(alarms(p), short))
                name = next(iter(asked))
                note(LONG, name, kind, first_after(asked[name](np.concatenate([p_lead, p_drawn])), LONG))
        print(f"seed {seed + 1} of {seeds}", file=sys.stderr)
    return found


def make_test(data: Data, rng: np.random.Generator, rows: int) -> tuple[Calibration, DriftTest, Rows]:
    """A calibration set with its drift test, and quiet rows."""
    clean, n = data.clean, len(data.clean.scores)
    known = clean.take(rng.integers(0, n, CALIBRATION))
    calibration = Calibration(known.scores, top=known.top)
    test = DriftTest(calibration, np.bincount(known.classes, minlength=10), LEVEL)
    return calibration, test, clean.take(rng.integers(0, n, rows))


def measure_quiet(streams: int) -> dict[str, list[bool]] | None:
    """Whether each alarm rings on quiet streams of 20,000 rows."""
    data = read(0)
    if data is None:
        return None
    rng, asked = np.random.default_rng(77), customary()
    found: dict[str, list[bool]] = {}

    def note(method: str, is_alarm: bool) -> None:
        found.setdefault(method, []).append(bool(is_alarm))

    for number in range(streams):
        calibration, test, rows = make_test(data, rng, LONG)
        uniforms = rng.random((LONG, 3))
        state, _ = follow(test, test.start(), rows, uniforms)
        note(ANY, state.alarm_row is not None)
        for name, each in state.kinds.items():
            note(f"**{name}**", each.alarm_row is not None)
        note("**mean of 3 replicas, any of the three**", replicas_alarm(test, rows, uniforms, rng))
        note(
            "**2 workers, restarts, and a hot swap every 2,000 rows or so, any of the three**",
            swaps_alarm(data, test, rows, uniforms, rng),
        )
        p = calibration.p_value(rows.scores)
        for method, alarms in asked.items():
            note(method, len(alarms(p)) > 0)
        if number % 50 == 49:
            print(f"quiet stream {number + 1} of {streams}", file=sys.stderr)
    return found


def replicas_alarm(test: DriftTest, rows: Rows, uniforms: Floats, rng: np.random.Generator) -> bool:
    """Whether the mean evidence of three replicas, restarted from their bytes, ever reaches the threshold."""
    owner = rng.integers(0, 3, len(rows.scores))
    latest = np.ones((len(owner), 3, 3))
    for replica in range(3):
        own = np.flatnonzero(owner == replica)
        state, paths = test.start(), []
        for part in np.array_split(own, 3):
            state, path = follow(test, state, rows.take(part), uniforms[part])
            state = test.decode(test.encode(state))
            paths.append(path)
        steps = np.searchsorted(own, np.arange(len(owner)), side="right")
        latest[:, replica] = np.vstack([np.ones((1, 3)), np.exp(np.concatenate(paths))])[steps]
    return bool((latest.mean(axis=1) >= np.exp(test.threshold)).any())


def swaps_alarm(data: Data, test: DriftTest, rows: Rows, uniforms: Floats, rng: np.random.Generator) -> bool:
    """Whether either of two versions that take turns has an alarm, each of its own rows at half of the level.

    The rows come in batches of two workers, each worker's in order, and states are restarted from their bytes.
    """
    other = DriftTest(make_test(data, rng, 0)[0], test.class_counts, LEVEL / 2)
    tests = DriftTest(test.calibration, test.class_counts, LEVEL / 2), other
    states = [each.start() for each in tests]
    of_worker = np.array_split(np.arange(len(rows.scores)), 2)
    batches = [np.array_split(own, 200)[::-1] for own in of_worker]
    active = 0
    while any(batches):
        queue = batches[int(rng.integers(0, 2))] or batches[0] or batches[1]
        part = queue.pop()
        states[active], _ = follow(tests[active], states[active], rows.take(part), uniforms[part])
        if rng.random() < 0.05:
            states = [each.decode(each.encode(state)) for each, state in zip(tests, states, strict=True)]
        if rng.random() < 0.025:
            active = 1 - active
    return any(state.alarm_row is not None for state in states)


def measure_restarting(streams: int, rows: int) -> list[float] | None:
    """Rows until the restarting evidence of quiet streams first reaches its limit, infinite if it does not."""
    data = read(0)
    if data is None:
        return None
    rng, found = np.random.default_rng(78), []
    for _ in range(streams):
        _, test, quiet = make_test(data, rng, rows)
        state, seen = test.start(), np.inf
        for part in np.array_split(np.arange(rows), rows // 100):
            state, _ = follow(test, state, quiet.take(part), rng.random((len(part), 3)))
            if max(each.log_restarting for each in state.kinds.values()) >= np.log(RESTART):
                seen = float(state.rows)
                break
        found.append(seen)
    return found


def as_batch(rows: Rows, rng: np.random.Generator) -> RowBatch:
    """Rows for a detector."""
    return RowBatch(rows.scores, rows.top, rows.classes, rng.random((len(rows.scores), 3)))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentStream:
    """Rows of `SEGMENTS` cameras, of which the first has a share `SHARE`, and the evidence of each camera."""

    test: SegmentTest
    rng: np.random.Generator

    def follow(self, states: list[DriftState], rows: Rows, cameras: Ints) -> list[DriftState]:
        """The states after rows of these cameras."""
        uniforms, after = self.rng.random((len(cameras), 3)), list(states)
        for camera in np.unique(cameras).tolist():
            own = cameras == camera
            after[camera] = self.test.update(
                states[camera], RowBatch(rows.scores[own], rows.top[own], rows.classes[own], uniforms[own])
            )
        return after

    def cameras(self, rows: int) -> Ints:
        """The camera of each row."""
        others = self.rng.integers(1, SEGMENTS, rows)
        return np.where(self.rng.random(rows) < SHARE, 0, others)

    def found(self, states: list[DriftState], rows: RowBatch, cameras: Ints) -> SegmentChanges:
        """Cameras that have changed, explained by these rows."""
        by_camera = {("camera", str(k)): [each] for k, each in enumerate(states)}
        return find_changes(self.test, by_camera, rows, {"camera": cameras.astype(str)})


def measure_segments(quiet: int, streams: int) -> tuple[list[bool], dict[str, list[tuple[float, bool]]]] | None:
    """Whether quiet runs have a discovery; of each change rows to the discovery, and whether the camera is named."""
    data = read(0)
    if data is None:
        return None
    rng, false, delays = np.random.default_rng(79), [], {}
    for number in range(quiet):
        calibration, all_rows, rows = make_test(data, rng, SHORT * SEGMENTS)
        stream = SegmentStream(SegmentTest(Baseline(calibration, all_rows.class_counts), FALSE_DISCOVERIES), rng)
        states, cameras = [stream.test.start()] * SEGMENTS, stream.cameras(len(rows.scores))
        is_false = False
        for part in np.array_split(np.arange(len(cameras)), 10):
            states = stream.follow(states, rows.take(part), cameras[part])
            is_false |= bool(stream.found(states, as_batch(rows.take(part), rng), cameras[part]).found)
        false.append(is_false)
        if number >= streams:
            continue
        for kind, changed in data.changed.items():
            delays.setdefault(kind, []).append(_delay(stream, states, rows, changed))
    return false, delays


def _delay(stream: SegmentStream, states: list[DriftState], clean: Rows, changed: Rows) -> tuple[float, bool]:
    """Rows of the first camera from its change to its discovery, and whether it alone is named then."""
    rng, seen = stream.rng, 0
    parts: list[Rows] = []
    at: list[Ints] = []
    while seen < DRIFTED // 10:
        cameras = stream.cameras(100)
        rows, bad = clean.take(rng.integers(0, len(clean.scores), 100)), cameras == 0
        drawn = changed.take(rng.integers(0, len(changed.scores), int(bad.sum())))
        rows.scores[bad], rows.top[bad], rows.classes[bad] = drawn.scores, drawn.top, drawn.classes
        states = stream.follow(states, rows, cameras)
        parts.append(rows)
        at.append(cameras)
        seen += int(bad.sum())
        joined = Rows(
            *(
                np.concatenate([getattr(each, name) for each in parts])
                for name in ("scores", "top", "classes", "labels")
            )
        )
        found = stream.found(states, as_batch(joined, rng), np.concatenate(at))
        if ("camera", "0") in found.found:
            return float(seen), found.explanation[0] == (("camera", "0"),)
    return np.inf, False


def save_segments(found: tuple[list[bool], dict[str, list[tuple[float, bool]]]]) -> None:
    """Save the table of segments."""
    false, delays = found
    rows = [
        (kind, delay_text([delay for delay, _ in each]), f"{np.mean([named for _, named in each]):.0%}")
        for kind, each in delays.items()
    ]
    results.save(
        "drift: segments",
        (
            f"{SEGMENTS} segments; one with {SHARE:.0%} of the traffic changes after {SHORT * SEGMENTS:,} quiet rows. "
            f"Rows of that segment to its discovery: median [5 %, 95 %]; a dash: not within {DRIFTED // 10:,}. Quiet "
            f"runs with a false discovery, read ten times each: {share_text(sum(false), len(false))}; the bound is "
            f"{FALSE_DISCOVERIES:.0%}.",
            results.Table(("change", "rows of the segment to its discovery", "named first"), rows),
        ),
    )


def delay_text(delays: list[float]) -> str:
    """Median with the 5 % and 95 % points of the streams; a dash is a stream without detection."""
    low, middle, high = np.quantile(delays, [0.05, 0.5, 0.95], method="higher")
    low_text, text, high_text = (f"{value:,.0f}" if np.isfinite(value) else "-" for value in (low, middle, high))
    return f"{text} [{low_text}, {high_text}]"


def share_text(hits: int, n: int) -> str:
    """A share with its 95 % interval (Wilson)."""
    z = 1.96
    centre, half = (hits + z * z / 2) / (n + z * z), z * np.sqrt(hits * (n - hits) / n + z * z / 4) / (n + z * z)
    return f"{100 * hits / n:.1f} % [{100 * max(centre - half, 0.0):.1f}, {100 * min(centre + half, 1.0):.1f}]"


def main(argv: list[str]) -> int:
    """Measure every method on every change and on quiet streams."""
    parser = argparse.ArgumentParser(prog="./dev bench drift", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="choices of the rows that the score knows (default 3)")
    parser.add_argument("--streams", type=int, default=40, help="streams of each kind for each (default 40)")
    parser.add_argument("--quiet-streams", type=int, default=500, help="quiet streams of 20,000 rows (default 500)")
    args = parser.parse_args(argv)
    if not (FOLDER / "val.npz").exists():
        print(f"skipped: {FOLDER} has no val.npz with corrupt_*.npz beside it", file=sys.stderr)
        return 0
    quiet, delays = measure_quiet(args.quiet_streams), measure_delays(args.seeds, args.streams)
    waits = measure_restarting(max(args.quiet_streams // 25, 2), 50_000)
    assert quiet is not None
    assert delays is not None
    assert waits is not None
    save_detection(quiet, delays, waits, args.seeds * args.streams)
    segments = measure_segments(min(args.quiet_streams, 200), min(args.streams, 20))
    assert segments is not None
    save_segments(segments)
    return 0


def save_detection(
    quiet: dict[str, list[bool]],
    delays: dict[str, dict[str, dict[str, list[float]]]],
    waits: list[float],
    streams: int,
) -> None:
    """Save the tables of false alarms and of delays."""
    rung = sum(np.isfinite(waits))
    results.save(
        "drift: false alarms",
        (
            f"Quiet streams of {LONG:,} rows with {CALIBRATION:,} calibration rows, all drawn anew; ours in bold, "
            f"whose bound is {LEVEL:.0%} for ever, all three together. Replicas share the calibration rows; "
            f"their states are written and read back. Restarting evidence at R = {RESTART:,.0f}: {rung} alarms in "
            f"{len(waits)} quiet streams of 50,000 rows; the bound allows {len(waits) * 50_000 * 3 / RESTART:.0f}.",
            results.Table(
                ("alarm", "quiet streams with a false alarm"),
                [(name, share_text(sum(found), len(found))) for name, found in quiet.items()],
            ),
        ),
    )
    for lead, by_method in delays.items():
        kinds = list(next(iter(by_method.values())))
        results.save(
            f"drift: rows to detection {lead} quiet rows",
            (
                f"Rows from the change to the alarm: median [5 %, 95 %] of {streams} streams; a dash: not within "
                f"{DRIFTED:,} rows. Ours in bold. Windows of the customary methods start up to 1,000 rows before the "
                "change.",
                results.Table(
                    ("alarm", *kinds),
                    [(name, *(delay_text(found[kind]) for kind in kinds)) for name, found in by_method.items()],
                ),
            ),
        )
