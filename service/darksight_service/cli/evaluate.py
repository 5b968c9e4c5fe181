"""`darksight evaluate`: how well a bundle's map reproduces the classifier on a file of predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from darksight_core.bundle import read_bundle
from darksight_core.errors import ConfigError
from darksight_core.measures import MapMeasures, measure_map
from darksight_core.predictions import Predictions, read_predictions
from darksight_core.scorer import Scorer
from darksight_core.simplex import log_probs
from darksight_service.cli.console import print_json, print_table

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `evaluate` to the command line."""
    parser = commands.add_parser(
        "evaluate",
        help="measure how faithful a bundle's map is on predictions",
        description="Places the rows of FILE as the served scorer does and measures the map: KL_sym, agreement with "
        "the classifier and with the labels, neighbours, clusters and their arrangement.",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("predictions", type=Path, metavar="FILE", help=".npz, .npy, .csv or .parquet")
    parser.add_argument(
        "--logits", action="store_true", help="the values of FILE are logits (.npy cannot say so itself)"
    )
    parser.add_argument(
        "--max-rows", type=int, default=10_000, help="rows whose neighbours are looked at (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that sample (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure a bundle on a file."""
    bundle = read_bundle(args.bundle)
    predictions = read_predictions(args.predictions, kind="logits" if args.logits else None)
    if predictions.n_classes != bundle.embedder.n_inputs:
        raise ConfigError(
            f"{args.predictions} has {predictions.n_classes} classes, but {args.bundle} was fitted "
            f"to {bundle.embedder.n_inputs}"
        )
    scorer = Scorer(bundle.embedder, bundle.kde, bundle.calibration)
    points = scorer.score(predictions.probs).points
    embedder = bundle.embedder
    classes = embedder.student.n_classes
    log_pi = np.ascontiguousarray(embedder.prepare(log_probs(predictions.probs))[:, classes : 2 * classes])
    found = measure_map(
        log_pi,
        embedder.student.log_posterior(points),
        points,
        embedder.student.means,
        _labels(predictions, embedder.columns),
        max_rows=args.max_rows,
        seed=args.seed,
    )
    if args.json:
        print_json({"bundle": str(args.bundle), "version": bundle.version, **_as_json(found)})
    else:
        _print(found)
    return 0


def _labels(predictions: Predictions, columns: tuple[int, ...] | None) -> np.ndarray | None:
    """True classes in the map's numbering, if every row has one there."""
    if predictions.labels is None or columns is None:
        return predictions.labels
    number = np.full(predictions.n_classes, -1)
    number[list(columns)] = np.arange(len(columns))
    found = number[predictions.labels]
    return None if (found < 0).any() else found


def _as_json(found: MapMeasures) -> dict[str, object]:
    return found.as_dict()


def _print(found: MapMeasures) -> None:
    figures = found.fidelity
    rows: list[tuple[object, ...]] = [("rows", found.rows, "")]
    if figures is not None:
        rows += [
            ("KL_sym", figures.kl_sym, "mean over rows; 0 is a perfect map"),
            ("KL(classifier, map)", figures.kl_teacher_student, ""),
            ("KL(map, classifier)", figures.kl_student_teacher, ""),
            ("Acc#teacher", figures.acc_teacher, "rows where the map predicts what the classifier predicts"),
            ("Acc#ground", figures.acc_ground, "rows where the map predicts the label"),
            ("classifier accuracy", figures.teacher_acc_ground, ""),
        ]
    local = found.local_fidelity
    if local is not None:
        for i, k in enumerate(local.neighbours):
            rows.append(
                (f"M_{k}, p of classifier", local.teacher[i], "Jensen-Shannon distance to neighbours; small is good")
            )
            if local.student is not None:
                rows.append((f"M_{k}, p of map", local.student[i], ""))
    if found.trustworthiness is not None:
        rows.append(("trustworthiness", found.trustworthiness.value, "neighbours on the map are neighbours; 1 is best"))
    rows += [
        (
            "cluster monotonicity",
            found.cluster_monotonicity.mean,
            "rank correlation of entropy and distance from centre",
        ),
        ("global fidelity, soft", found.global_fidelity.soft, "close centres are confused more; rank correlation"),
        ("global fidelity, labels", found.global_fidelity.ground, ""),
    ]
    print_table([(name, value) for name, value, _ in rows], ("measure", "value"))
    for note in found.notes:
        print(note)
