"""`darksight score`: score a file of predictions with a bundle, or by a running service, chunk by chunk."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from darksight_client import Client, DarkSightClientError
from numpy.typing import NDArray
from tqdm import tqdm

from darksight_core.bundle import read_bundle
from darksight_core.gate import LOGIT_SCORES, Decision, Gate, Reason
from darksight_core.judge import Judge
from darksight_core.predictions import Predictions, iter_predictions
from darksight_core.scorer import Scorer, Scores
from darksight_service.cli.console import print_json
from darksight_service.errors import RemoteError
from darksight_service.tables import open_scores

__all__ = ["add_parser", "run"]

Columns: TypeAlias = dict[str, NDArray[Any]]

# A chunk is many messages, and the service may be busy.
_SERVER_SECONDS = 120.0


def add_parser(commands: Any) -> None:
    """Add `score` to the command line."""
    parser = commands.add_parser(
        "score",
        help="score predictions with a bundle, or by a running service",
        description="Places every row on the bundle's map and writes id, point, densities, fidelity and p_value, and, "
        "if the bundle has a gate, decision and reason. With --server a running service does so, which stores and "
        "counts the rows too, and BUNDLE is the name of its model. Memory does not grow with the file.",
    )
    parser.add_argument("bundle", type=str, metavar="BUNDLE", help="bundle file, or name of a model with --server")
    parser.add_argument("predictions", type=Path, metavar="FILE", help=".npz, .npy, .csv or .parquet")
    parser.add_argument("--out", type=Path, required=True, help=".npz, .csv or .parquet")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--logits", action="store_true", help="the values of FILE are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--alpha", type=float, default=0.01, help="count p-values up to this as outliers (%(default)s)")
    parser.add_argument("--chunk-rows", type=int, default=65_536, help="rows in memory at a time (%(default)s)")
    parser.add_argument("--server", metavar="HOST:PORT", help="a service to ask instead of reading a bundle")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with a token for the service")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="certificates that vouch for the service, PEM")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score a file."""
    args.on_interrupt = f"{args.out} was not written" + (" and is as it was" if args.out.exists() else "")
    rows = outliers = accepted = 0
    has_gate = False
    with (
        _scoring(args) as (needs_logits, score),
        open_scores(args.out, overwrite=args.overwrite) as sink,
        tqdm(desc="scoring", unit=" rows", unit_scale=True, file=sys.stderr, disable=args.quiet) as bar,
    ):
        for chunk in iter_predictions(
            args.predictions,
            kind="logits" if args.logits else None,
            chunk_rows=args.chunk_rows,
            keep_logits=needs_logits,
        ):
            columns = score(chunk)
            if "decision" in columns:
                has_gate = True
                accepted += int((columns["decision"] == "accept").sum())
            sink.write(chunk.ids, columns)
            rows += len(chunk)
            outliers += int((columns["p_value"] <= args.alpha).sum())
            bar.update(len(chunk))
    found: dict[str, object] = {
        "rows": rows,
        "outliers": outliers,
        "outlier_rate": outliers / rows,
        "alpha": args.alpha,
    }
    if has_gate:
        found |= {"accepted": accepted, "acceptance_rate": accepted / rows}
    if args.json:
        print_json({**found, "out": str(args.out)})
    else:
        gated = f", {accepted:,} accepted by the gate ({accepted / rows:.2%})" if has_gate else ""
        share = f"{outliers / rows:.2%} at alpha {args.alpha}"
        print(f"{rows:,} rows, {outliers:,} outliers ({share}){gated}; wrote {args.out}")
    return 0


@contextmanager
def _scoring(args: argparse.Namespace) -> Iterator[tuple[bool, Callable[[Predictions], Columns]]]:
    """Whether logits are needed where there are any, and what makes columns of a chunk."""
    if args.server is None:
        bundle = read_bundle(args.bundle)
        gate = None if bundle.gate is None else bundle.gate.at(int(time.time() * 1000.0))
        yield (
            gate is not None and gate.reject_score in LOGIT_SCORES,
            partial(_by_bundle, Judge(Scorer.of(bundle), gate), gate),
        )
        return
    try:
        with Client(
            args.server,
            token_file=args.token_file,
            tls_ca=args.tls_ca,
            timeout_seconds=_SERVER_SECONDS,
        ) as client:
            yield True, partial(_by_server, client, args.bundle)
    except DarkSightClientError as error:
        raise RemoteError(f"{args.server}: {error}") from error


def _by_bundle(judge: Judge, gate: Gate | None, chunk: Predictions) -> Columns:
    judged = judge.judge(chunk.probs, logits=chunk.logits)
    columns = _columns(judged.scores)
    if gate is not None:
        columns["decision"] = _lower(Decision, judged.decisions.decision)
        columns["reason"] = _lower(Reason, judged.decisions.reason)
    return columns


def _by_server(client: Client, model: str, chunk: Predictions) -> Columns:
    is_logits = chunk.logits is not None
    scored = client.score(
        model,
        chunk.probs if chunk.logits is None else chunk.logits,
        logits=is_logits,
        prediction_ids=chunk.ids,
        partial_ok=True,
    )
    x, y = scored.points.T
    return {
        "x": x,
        "y": y,
        "log_density": scored.log_density,
        "log_kde": scored.log_kde,
        "p_value": scored.p_value,
        "decision": _lower(Decision, scored.decision),
        "reason": _lower(Reason, scored.reason),
    }


def _columns(scores: Scores) -> Columns:
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
