"""`darksight score`: score a file of predictions with a bundle, chunk by chunk."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from darksight_core.predictions import iter_predictions
from darksight_core.scorer import Scorer
from darksight_service.cli.console import print_json
from darksight_service.tables import open_scores

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `score` to the command line."""
    parser = commands.add_parser(
        "score",
        help="score predictions with a bundle",
        description="Places every row on the bundle's map and writes id, point, log_density, log_kde, fidelity and "
        "p_value, one row for each row. Memory does not grow with the file.",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("predictions", type=Path, metavar="FILE", help=".npz, .npy, .csv or .parquet")
    parser.add_argument("--out", type=Path, required=True, help=".npz, .csv or .parquet")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--logits", action="store_true", help="the values of FILE are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--alpha", type=float, default=0.01, help="count p-values up to this as outliers (%(default)s)")
    parser.add_argument("--chunk-rows", type=int, default=65_536, help="rows in memory at a time (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score a file."""
    args.on_interrupt = f"{args.out} was not written" + (" and is as it was" if args.out.exists() else "")
    scorer = Scorer.load(args.bundle)
    rows = outliers = 0
    chunks = iter_predictions(args.predictions, kind="logits" if args.logits else None, chunk_rows=args.chunk_rows)
    with (
        open_scores(args.out, overwrite=args.overwrite) as sink,
        tqdm(desc="scoring", unit=" rows", unit_scale=True, file=sys.stderr, disable=args.quiet) as bar,
    ):
        for chunk in chunks:
            scores = scorer.score(chunk.probs)
            sink.write(chunk.ids, scores)
            rows += len(chunk)
            outliers += int((scores.p_value <= args.alpha).sum())
            bar.update(len(chunk))
    if args.json:
        share = outliers / rows
        print_json(
            {"rows": rows, "outliers": outliers, "outlier_rate": share, "alpha": args.alpha, "out": str(args.out)}
        )
    else:
        print(f"{rows:,} rows, {outliers:,} outliers ({outliers / rows:.2%} at alpha {args.alpha}); wrote {args.out}")
    return 0
