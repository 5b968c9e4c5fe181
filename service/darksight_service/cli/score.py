"""`darksight score`: score a file of predictions with a bundle, chunk by chunk."""

from __future__ import annotations

import argparse
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from darksight_core.bundle import read_bundle
from darksight_core.gate import LOGIT_SCORES, Decision, Reason
from darksight_core.predictions import iter_predictions
from darksight_core.scorer import Scorer, Scores
from darksight_core.simplex import log_probs
from darksight_service.cli.console import print_json
from darksight_service.tables import open_scores

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `score` to the command line."""
    parser = commands.add_parser(
        "score",
        help="score predictions with a bundle",
        description="Places every row on the bundle's map and writes id, point, densities, fidelity and p_value, and, "
        "if the bundle has a gate, decision and reason. Memory does not grow with the file.",
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
    bundle = read_bundle(args.bundle)
    scorer, gate = Scorer.of(bundle), bundle.gate
    rows = outliers = accepted = 0
    chunks = iter_predictions(
        args.predictions,
        kind="logits" if args.logits else None,
        chunk_rows=args.chunk_rows,
        keep_logits=gate is not None and gate.reject_score in LOGIT_SCORES,
    )
    with (
        open_scores(args.out, overwrite=args.overwrite) as sink,
        tqdm(desc="scoring", unit=" rows", unit_scale=True, file=sys.stderr, disable=args.quiet) as bar,
    ):
        for chunk in chunks:
            scores = scorer.score(chunk.probs)
            columns = _columns(scores)
            if gate is not None:
                logits = None if chunk.logits is None else chunk.logits.astype(np.float64)
                decided = gate.decide(log_probs(chunk.probs), scores, logits=logits)
                columns["decision"] = _lower(Decision, decided.decision)
                columns["reason"] = _lower(Reason, decided.reason)
                accepted += int((decided.decision == Decision.ACCEPT).sum())
            sink.write(chunk.ids, columns)
            rows += len(chunk)
            outliers += int((scores.p_value <= args.alpha).sum())
            bar.update(len(chunk))
    found: dict[str, object] = {
        "rows": rows,
        "outliers": outliers,
        "outlier_rate": outliers / rows,
        "alpha": args.alpha,
    }
    if gate is not None:
        found |= {"accepted": accepted, "acceptance_rate": accepted / rows}
    if args.json:
        print_json({**found, "out": str(args.out)})
    else:
        gated = f", {accepted:,} accepted by the gate ({accepted / rows:.2%})" if gate is not None else ""
        share = f"{outliers / rows:.2%} at alpha {args.alpha}"
        print(f"{rows:,} rows, {outliers:,} outliers ({share}){gated}; wrote {args.out}")
    return 0


def _columns(scores: Scores) -> dict[str, NDArray[Any]]:
    x, y = scores.points.T
    return {
        "x": x,
        "y": y,
        "log_density": scores.log_density,
        "log_kde": scores.log_kde,
        "combined": scores.combined,
        "fidelity": scores.fidelity,
        "p_value": scores.p_value,
    }


def _lower(kind: type[IntEnum], codes: NDArray[np.int8]) -> NDArray[np.str_]:
    """Names of codes, in lower case."""
    names = np.array([""] * (max(kind) + 1), dtype="U16")
    for member in kind:
        names[member] = member.name.lower()
    return names[codes]
