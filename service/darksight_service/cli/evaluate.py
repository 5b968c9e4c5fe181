"""`darksight evaluate`: how faithful a bundle's map is, and which score finds errors and foreign rows best."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.evaluation.compare import Comparison, compare
from darksight_core.evaluation.failure import FailureFigures, OodFigures
from darksight_core.evaluation.measures import MapMeasures, measure_map
from darksight_core.gate.certify import ScoredRows
from darksight_core.predictions import Predictions, labels_among
from darksight_core.predictions.split import MAX_LEAK
from darksight_core.runtime.scorer import Scorer
from darksight_core.simplex import Floats, log_probs
from darksight_service.cli.console import print_json, print_table, say
from darksight_service.cli.labelled import fit_share, held_out, read_rows
from darksight_service.scoring.files.tables import atomic, check_place

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `evaluate` to the command line."""
    parser = commands.add_parser(
        "evaluate",
        help="measure a bundle's map and compare all scores on predictions",
        description="Places the rows of FILE as the served scorer does and measures the map: KL_sym, agreement with "
        "the classifier and with the labels, neighbours, clusters and their arrangement. Then compares all scores: "
        "which finds the wrong predictions, and which finds the rows of each --ood file. A quarter of FILE, drawn by "
        "seed and at most 2,500 rows, makes the scores that remember rows; all are measured on the rest.",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("predictions", type=Path, metavar="FILE", help=".npz, .npy, .csv or .parquet, with labels")
    parser.add_argument(
        "--ood", type=Path, nargs="+", default=[], action="extend", metavar="FILE", help="predictions for foreign input"
    )
    parser.add_argument(
        "--logits", action="store_true", help="the values of the files are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--held-out", action="store_true", help="FILE is the file of the fit: leave its rows out")
    parser.add_argument("--fast", action="store_true", help="leave out the densities that are slow to fit")
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap intervals (%(default)s)")
    parser.add_argument(
        "--max-rows", type=int, default=10_000, help="rows whose neighbours are looked at (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of samples and splits (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="JSON", help="write the result to this file too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure a bundle on files."""
    if args.out is not None:
        check_place(args.out, overwrite=True)
    bundle = read_bundle(args.bundle, verify=False)
    predictions = read_rows(args.predictions, bundle, logits=args.logits)
    foreign = {str(path): read_rows(path, bundle, logits=args.logits) for path in args.ood}
    if args.held_out:
        predictions = held_out(bundle, predictions)
    shared = fit_share(bundle, predictions)
    warning = None
    if shared > MAX_LEAK:
        warning = (
            f"{shared:.1%} or more of the rows of {args.predictions} were fitted by {args.bundle}, so figures of the "
            "map's densities are better than they will be on new rows; --held-out leaves these rows out"
        )
        say(warning)
    scorer = Scorer.load(args.bundle)
    known = ScoredRows.of(predictions, scorer.score(predictions.probs))
    strange = {name: ScoredRows.of(rows, scorer.score(rows.probs)) for name, rows in foreign.items()}
    found = _measure(bundle, predictions, known.scores.points, max_rows=args.max_rows, seed=args.seed)
    compared = compare(bundle, known, strange, fast=args.fast, resamples=args.resamples, seed=args.seed)
    result = {
        "bundle": str(args.bundle),
        "version": bundle.version,
        **found.as_dict(),
        **compared.as_dict(),
        "fit_share": shared,
        "warning": warning,
    }
    if args.out is not None:
        with atomic(args.out) as partial:
            partial.write_text(
                json.dumps(result, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        say(f"wrote {args.out}")
    if args.json:
        print_json(result)
    else:
        _print(found)
        _print_comparison(compared)
    return 0


def _measure(bundle: Bundle, predictions: Predictions, points: Floats, *, max_rows: int, seed: int) -> MapMeasures:
    """The map's own figures."""
    embedder = bundle.embedder
    return measure_map(
        np.ascontiguousarray(embedder.shown(log_probs(predictions.probs))),
        embedder.student.log_posterior(points),
        points,
        embedder.student.means,
        labels_among(predictions.labels, embedder.columns),
        max_rows=max_rows,
        seed=seed,
    )


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


def _print_comparison(found: Comparison) -> None:
    if found.failure is not None and found.choice is not None:
        first = next(iter(found.failure.values()))
        print(f"\nWhich score finds wrong predictions? {first.errors:,} errors among {first.n:,} rows.")
        print_table(
            _lines(found.failure, ("augrc", "aurc", "e_aurc"), ("auroc", "fpr95"), best="augrc"),
            ("score", "AUGRC x1000", "AURC x1000", "E-AURC x1000", "AUROC", "FPR95"),
        )
        print(f"* best AUGRC. Chosen as reject score: {found.choice.chosen}, by AUGRC among those a gate can serve and")
        print("  only if better than msp by more than a standard error. In brackets 95% intervals; where they overlap,")
        print("  the order of two scores says little.")
    for file, figures in found.ood.items():
        first_out = next(iter(figures.values()))
        print(f"\nWhich score finds the rows of {file}? {first_out.n_out:,} foreign and {first_out.n_in:,} known rows.")
        print_table(_lines(figures, (), ("auroc", "fpr95"), best="auroc"), ("score", "AUROC", "FPR95"))
        print(f"* best AUROC. The bundle's p-values are made from {found.outlier}.")
    print(
        "\nThese figures are of these files. A score that finds errors need not find foreign rows, and foreign rows of"
    )
    print("another kind may rank the scores otherwise. No figure here is a threshold: darksight calibrate makes one.")
    for note in found.notes:
        print(f"note: {note}")


def _lines(
    figures: Mapping[str, FailureFigures] | Mapping[str, OodFigures],
    small: tuple[str, ...],
    shares: tuple[str, ...],
    *,
    best: str,
) -> list[tuple[object, ...]]:
    """Rows of a table, best first; `small` figures times a thousand."""
    known = {name: getattr(found, best) for name, found in figures.items()}
    sign = -1.0 if best == "auroc" else 1.0
    order = sorted(figures, key=lambda name: sign * known[name] if known[name] is not None else 0.0)
    lines: list[tuple[object, ...]] = []
    for name in order:
        cells = [_cell(figures[name], figure, 1000.0, 2) for figure in small]
        cells += [_cell(figures[name], figure, 1.0, 3) for figure in shares]
        lines.append((name + (" *" if known[name] == known[order[0]] else ""), *cells))
    return lines


def _cell(found: FailureFigures | OodFigures, figure: str, scale: float, digits: int) -> str | None:
    value = getattr(found, figure)
    if value is None:
        return None
    text = f"{scale * value:.{digits}f}"
    if figure not in found.intervals:
        return text
    low, high = found.intervals[figure]
    return f"{text} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
