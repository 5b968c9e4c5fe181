"""Audit of accepted rows: labels until the accuracy is known and until a broken certificate is found.

Half of each file fits the probability of being wrong and finds the threshold that accepts rows with a promised
accuracy. Streams are accepted rows of the other half, drawn again and again with replacement, or accepted rows of
corrupted images. Labels arrive in the order of the rows.

    width     labels until the 95% interval of the accuracy has a width of 0.04, beside those of a uniform sample
              with the same bets, one rate and no probabilities of being wrong
    broken    labels until the certificate is called broken, if rows are wrong 3 points more often than promised
    coverage  share of streams in which all intervals hold the accuracy, with all labels and without a tenth of them
    alarms    share of streams exactly at the promise whose certificate is ever called broken, at a level of 1%
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darksight_core.drift.audit import (
    LEVEL,
    MARGIN,
    WIDTH,
    AuditedRows,
    audit_odds,
    audited_accuracy,
    certificate_evidence,
    error_chances,
)
from darksight_core.drift.isotonic import fit_isotonic
from darksight_core.rows.simplex import Floats
from tests.bench import results
from tests.bench.accuracy import read

PROMISES = {
    "cifar10_resnet56": 0.97,
    "cifar10_resnet20": 0.97,
    "cifar10_vgg16": 0.97,
    "cifar100_resnet56": 0.85,
    "mnist_lenet": 0.995,
    "mnist_paper": 0.995,
    "news20": 0.95,
    "imdb": 0.93,
}
RATE = 0.03
STAKES = np.array([0.03, 0.06, 0.11, 0.2, 0.33, 0.5, 0.7, 0.95])


@dataclass(frozen=True, slots=True)
class Source:
    """Accepted rows: f of each, whether it is wrong, and the promise of the gate."""

    name: str
    chances: Floats
    is_wrong: NDArray[np.bool_]
    promised: float


def sources(names: Sequence[str]) -> Iterator[Source]:
    """The accepted rows of each file."""
    for name in names:
        probs, labels = read(f"{name}/test.npz")
        order = np.random.default_rng(0).permutation(len(probs))
        known, fresh = order[: len(order) // 2], order[len(order) // 2 :]
        top, wrong = np.minimum(probs.max(axis=1), 1.0), probs.argmax(axis=1) != labels
        curve = fit_isotonic(top[known], 1.0 - wrong[known])
        ranked = known[np.argsort(-top[known], kind="stable")]
        accuracy = 1.0 - np.cumsum(wrong[ranked]) / np.arange(1, len(ranked) + 1)
        threshold = top[ranked[np.flatnonzero(accuracy >= PROMISES[name])[-1]]]
        parts = {name: (top[fresh], wrong[fresh])}
        for path in sorted((results.DATA / name).glob("corrupt_*.npz")):
            other, truth = read(f"{name}/{path.name}")
            parts[f"{name} {path.stem.removeprefix('corrupt_')}"] = other.max(axis=1), other.argmax(axis=1) != truth
        for part, (best, errors) in parts.items():
            accepted = best >= threshold
            # Where most accepted rows are wrong, nobody asks for a width of 0.04.
            if accepted.sum() >= 200 and errors[accepted].mean() < 0.3:
                yield Source(part, error_chances(curve, best[accepted]), errors[accepted], PROMISES[name])


@dataclass(frozen=True, slots=True)
class Stream:
    """Rows in their order with the draw: f, o, u / o, whether wrong, and whether a drawn row gets a label."""

    chances: Floats
    odds: Floats
    keys: Floats
    is_wrong: NDArray[np.bool_]
    is_answered: NDArray[np.bool_]

    @property
    def drawn(self) -> NDArray[np.int64]:
        """Numbers of the drawn rows."""
        return np.flatnonzero(self.keys < 1.0)

    def first(self, labels: int) -> AuditedRows:
        """The rows up to the one with this number of drawn rows, as of one day."""
        drawn = self.drawn[:labels]
        end = int(drawn[-1]) + 1
        known = self.is_answered[drawn]
        return AuditedRows(
            0,
            np.array([end]),
            np.array([self.chances[:end].sum()]),
            np.zeros(labels, dtype=np.int64),
            self.keys[drawn],
            self.chances[drawn],
            self.odds[drawn],
            known,
            known & self.is_wrong[drawn],
        )


def stream(source: Source, labels: int, seed: int, *, error: float | None = None, missing: float = 0.0) -> Stream:
    """A stream with about so many drawn rows; with `error`, rows are made wrong at random until that share is."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(source.chances), math.ceil(labels / RATE))
    chances, is_wrong = source.chances[rows].astype(np.float32).astype(np.float64), source.is_wrong[rows]
    if error is not None:
        share = float(source.is_wrong.mean())
        is_wrong = is_wrong | (rng.random(len(rows)) < (error - share) / (1.0 - share))
        if error < share:
            is_wrong &= rng.random(len(rows)) < error / share
    odds = audit_odds(chances, RATE, float(np.sqrt(chances * (1.0 - chances)).mean()))
    return Stream(chances, odds, rng.random(len(rows)) / odds, is_wrong, rng.random(len(rows)) >= missing)


def grid(labels: int, step: float = 1.05) -> list[int]:
    """Numbers of labels at which a stream is looked at."""
    count = math.ceil(math.log(labels / 30) / math.log(step))
    return sorted({min(round(30 * step**number), labels) for number in range(count + 1)})


def labels_to_width(found: Stream) -> float:
    """Labels until the interval is narrow."""
    for labels in grid(len(found.drawn)):
        accuracy = audited_accuracy(found.first(labels))
        if accuracy is not None and accuracy.interval is not None and np.ptp(accuracy.interval) <= WIDTH:
            return labels
    return math.inf


def uniform_labels(source: Source, labels: int, seed: int) -> float:
    """Labels until a uniform sample has a narrow interval: the same bets with the whole level and f = 0."""
    rng = np.random.default_rng(seed)
    is_wrong = source.is_wrong[rng.integers(0, len(source.is_wrong), labels)]
    wrong, stakes = np.cumsum(is_wrong), STAKES * RATE
    numbers = np.array(grid(labels))
    bets = np.concatenate((np.log1p(STAKES), np.log1p(-STAKES)))
    signed, limit = np.concatenate((stakes, -stakes)), math.log(len(bets) / 0.05)
    shares = np.linspace(0.0, 1.0, 4001)
    for number in numbers.tolist():
        capital = bets * wrong[number - 1] - signed * shares[:, None] * number / RATE
        inside = shares[np.logaddexp.reduce(capital, axis=1) < limit]
        if len(inside) and inside[-1] - inside[0] <= WIDTH:
            return number
    return math.inf


def labels_to_broken(found: Stream, promised: float, step: float = 1.05) -> float:
    """Labels until the certificate is called broken."""
    for labels in grid(len(found.drawn), step):
        if certificate_evidence(found.first(labels), promised).max() >= -math.log(LEVEL):
            return labels
    return math.inf


def is_covered(found: Stream) -> bool:
    """Whether all intervals hold the accuracy of the rows up to their end."""
    errors, drawn = np.cumsum(found.is_wrong), found.drawn
    for labels in grid(len(drawn), 1.3):
        accuracy = audited_accuracy(found.first(labels))
        if accuracy is not None and accuracy.interval is not None:
            end = int(drawn[labels - 1])
            true = 1.0 - float(errors[end]) / (end + 1)
            if not accuracy.interval[0] - 1e-9 <= true <= accuracy.interval[1] + 1e-9:
                return False
    return True


def main(argv: list[str]) -> int:
    """Measure every file."""
    parser = argparse.ArgumentParser(prog="./dev bench audit", description=__doc__)
    parser.add_argument("--streams", type=int, default=16, help="streams whose labels are counted (default 16)")
    parser.add_argument("--checked", type=int, default=500, help="streams for coverage and alarms (default 500)")
    parser.add_argument("--files", nargs="*", default=[], help="files for coverage and alarms (default: two)")
    args = parser.parse_args(argv)
    names = [name for name in PROMISES if (results.DATA / name).exists()]
    if not names:
        print(f"skipped: {results.DATA} has none of {', '.join(PROMISES)}", file=sys.stderr)
        return 0
    found = list(sources(names))
    lines = []
    for source in found:
        most = 12_000 if source.is_wrong.mean() > 0.1 else 3_000
        turns = range(args.streams if source.is_wrong.mean() <= 0.1 else max(args.streams // 4, 1))
        plain = float(np.mean([uniform_labels(source, 2 * most, seed) for seed in turns]))
        active = float(np.mean([labels_to_width(stream(source, most, seed)) for seed in turns]))
        broken = None
        if " " not in source.name:
            error = 1.0 - source.promised + MARGIN
            streams = (stream(source, 6_000, seed, error=error) for seed in turns)
            broken = float(np.mean([labels_to_broken(each, source.promised) for each in streams]))
        lines.append((source.name, float(source.is_wrong.mean()), plain, active, active / plain, broken))
        print(*lines[-1], file=sys.stderr)
    checks = []
    chosen = args.files or ["cifar10_resnet56", "mnist_lenet"]
    for source in (each for each in found if each.name in chosen):
        for missing in (0.0, 0.1):
            usual = (stream(source, 400, 1_000 + seed, missing=missing) for seed in range(args.checked))
            covered = float(np.mean([is_covered(each) for each in usual]))
            error = 1.0 - source.promised
            null = (stream(source, 400, seed, error=error, missing=missing) for seed in range(args.checked))
            alarms = float(np.mean([labels_to_broken(each, source.promised, 1.2) < math.inf for each in null]))
            checks.append((source.name, missing, args.checked, covered, alarms))
            print(*checks[-1], file=sys.stderr)
    text = f"Means over {args.streams} streams, over a quarter of them where a tenth is wrong; drawn at {RATE:.0%}."
    header = ("accepted rows of", "wrong", "labels of a uniform sample", "**labels**", "against uniform", "to broken")
    held = ("accepted rows of", "labels missing", "streams", "**coverage** (goal 0.95)", "alarms (goal 0.01)")
    tables = (results.Table(header, tuple(lines)), results.Table(held, tuple(checks)))
    results.save("drift: audit", (text, *tables))
    return 0
