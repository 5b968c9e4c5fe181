"""Prediction sets of rejected rows: coverage and size, against plain top-k with the same promise.

Each file is split by seed into halves. One half makes the gate, which accepts 85% of the rows by their largest
probability, and its sets, as `darksight calibrate --coverage 0.85 --sets 0.95` does: a third of it calibrates the sets,
the rest finds the threshold and chooses the penalty. The other half measures. Plain top-k has the same number of
classes for every row, the smallest that covers 95% by the same conformal argument on the same calibration rows.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from darksight_core.evaluation.set_coverage import set_coverage
from darksight_core.gate.certify import Targets, certify
from darksight_core.gate.certify_sets import SET_SHARE, rejected_rows, split_for_sets
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.prediction_sets import calibrate_sets, class_ranks, set_rank
from darksight_core.predictions import Predictions
from darksight_core.rows.schema import ScoredBatch
from tests.bench import results
from tests.bench.confidence import data_sets

ACCEPTED, COVERAGE = 0.85, 0.95


@dataclass(frozen=True, slots=True)
class Run:
    """One file and seed: figures on the rejected rows of the half that measures."""

    rejected: int
    accuracy: float
    coverage: float
    size: float
    plain_size: float
    penalty: float
    top_k: int
    top_k_coverage: float


def scored(predictions: Predictions) -> ScoredPredictions:
    """Predictions as a gate on the largest probability reads them: it needs no map."""
    scores = ScoredBatch.unscored(len(predictions))
    scores.p_value[:] = 1.0
    return ScoredPredictions.of(predictions, scores)


def run(rows: ScoredPredictions, seed: int) -> Run:
    """Calibrate on one half, measure on the other."""
    order = np.random.default_rng(seed).permutation(len(rows))
    half, rest = rows.take(order[: len(rows) // 2]), rows.take(order[len(rows) // 2 :])
    gate = certify(half, Targets(coverage=ACCEPTED, score="msp", sets=COVERAGE, seed=seed), 0).gate
    found = set_coverage(gate, rest)
    assert found is not None
    assert gate.sets is not None
    known = rejected_rows(gate, split_for_sets(half, SET_SHARE, seed)[0])
    new = rejected_rows(gate, rest)
    assert known.labels is not None
    assert new.labels is not None
    top = int(np.sort(class_ranks(known.log_pi, known.labels))[set_rank(len(known), COVERAGE) - 1]) + 1
    plain = calibrate_sets(known.log_pi, known.labels, COVERAGE)
    return Run(
        found.rows,
        found.accuracy,
        found.coverage,
        found.mean_size,
        float(plain.sizes(new.log_pi).mean()),
        gate.sets.penalty,
        top,
        float((class_ranks(new.log_pi, new.labels) < top).mean()),
    )


def table(found: dict[str, list[Run]], classes: dict[str, int]) -> results.Parts:
    """Means over seeds."""
    rows: list[Sequence[object]] = []
    for name, runs in found.items():
        size, top = (float(np.mean([getattr(each, part) for each in runs])) for part in ("size", "top_k"))
        picks = Counter(each.penalty for each in runs)
        rows.append(
            (
                name,
                classes[name],
                round(np.mean([each.rejected for each in runs])),
                float(np.mean([each.accuracy for each in runs])),
                float(np.mean([each.coverage for each in runs])),
                round(size, 2),
                round(float(np.mean([each.plain_size for each in runs])), 2),
                float(np.mean([each.top_k_coverage for each in runs])),
                round(top, 2),
                f"{size / top - 1.0:+.0%}",
                ", ".join(f"{penalty:g} {count}" for penalty, count in picks.most_common(2)),
            )
        )
    header = (
        "file", "classes", "rejected", "top-1 right", "coverage of sets", "classes in a set", "without penalty",
        "coverage of top-k", "k", "sets against top-k", "penalty, times",
    )  # fmt: skip
    seeds = max(len(runs) for runs in found.values())
    return (
        f"Rejected rows of a gate that accepts {ACCEPTED:.0%}; promised: {COVERAGE:.0%}. Means of {seeds} seeds.",
        results.Table(header, rows),
    )


def main(argv: list[str]) -> int:
    """Measure every file and write the table."""
    parser = argparse.ArgumentParser(prog="./dev bench sets", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="seeds of the split (default 40)")
    args = parser.parse_args(argv)
    found, classes = {}, {}
    for name, (predictions, _) in data_sets().items():
        rows = scored(predictions)
        found[name], classes[name] = [run(rows, seed) for seed in range(args.seeds)], predictions.n_classes
        print(f"{name}: {np.mean([each.size for each in found[name]]):.2f} classes in a set", file=sys.stderr)
    results.save("sets: prediction sets of rejected rows", table(found, classes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
