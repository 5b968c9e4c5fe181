"""`darksight score`: score a file of predictions with a bundle, or by a running service, chunk by chunk."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from darksight_client import Client
from tqdm import tqdm

from darksight_core.bundle import read_bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import LOGIT_SCORES
from darksight_core.predictions import Kind, Predictions, Store, find_files, iter_predictions
from darksight_core.runtime.compilation import KERNEL
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from darksight_core.scored import Decision, Reason
from darksight_service.cli.console import print_json, require
from darksight_service.cli.remote import add_server_options, connected
from darksight_service.scoring.files.bulk import Tally, plan, score_local, score_ray
from darksight_service.scoring.files.columns import Columns, bundle_columns, lower_names
from darksight_service.scoring.files.tables import open_scores

__all__ = ["add_parser", "run"]

# A chunk is many messages, and the service may be busy.
_SERVER_SECONDS = 120.0


def add_parser(commands: Any) -> None:
    """Add `score` to the command line."""
    parser = commands.add_parser(
        "score",
        help="score predictions with a bundle, or by a running service",
        description="Places every row on the bundle's map and writes id, point, densities, fidelity and p_value, and, "
        "if the bundle has a gate, decision and reason. With --server a running service does so, which stores and "
        "counts the rows too, and BUNDLE is the name of its model. Memory does not grow with the file. Parquet files "
        "are scored into a folder, part by part; a run that was ended goes on when it is started again.",
    )
    parser.add_argument("bundle", type=str, metavar="BUNDLE", help="bundle file, or name of a model with --server")
    parser.add_argument(
        "predictions",
        nargs="+",
        metavar="FILE",
        help=".npz, .npy, .csv or .parquet; of .parquet also several, or a quoted pattern such as 'day/*.parquet'",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help=".npz, .csv or .parquet; a folder for parts of several files"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    parser.add_argument(
        "--logits", action="store_true", help="the values of FILE are logits (.npy cannot say so itself)"
    )
    parser.add_argument("--alpha", type=float, default=0.01, help="count p-values up to this as outliers (%(default)s)")
    parser.add_argument("--chunk-rows", type=int, default=65_536, help="rows in memory at a time (%(default)s)")
    parser.add_argument(
        "--engine", choices=["local", "ray"], default="local", help="who scores into a folder (%(default)s)"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes, or Ray actors (%(default)s)")
    parser.add_argument("--ray-address", metavar="HOST:PORT", help="a Ray cluster (default: Ray on this machine alone)")
    add_server_options(parser, default=None, help="a service to ask instead of reading a bundle")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score a file, or a store of files."""
    files = find_files(args.predictions)
    if args.workers < 1:
        raise ConfigError(f"--workers is {args.workers}; it must be at least 1")
    is_store = len(files) > 1 or args.workers > 1 or args.engine == "ray" or not args.out.suffix
    with tqdm(desc="scoring", unit=" rows", unit_scale=True, file=sys.stderr, disable=args.quiet) as bar:
        tally = _score_store(args, files, bar) if is_store else _score_file(args, files[0], bar)
    found: dict[str, object] = {
        "rows": tally.rows,
        "outliers": tally.outliers,
        "outlier_rate": tally.outliers / tally.rows,
        "alpha": args.alpha,
    }
    if tally.accepted is not None:
        found |= {"accepted": tally.accepted, "acceptance_rate": tally.accepted / tally.rows}
    if args.json:
        print_json({**found, "out": str(args.out)})
    else:
        gated = ""
        if tally.accepted is not None:
            gated = f", {tally.accepted:,} accepted by the gate ({tally.accepted / tally.rows:.2%})"
        share = f"{tally.outliers / tally.rows:.2%} at alpha {args.alpha}"
        print(f"{tally.rows:,} rows, {tally.outliers:,} outliers ({share}){gated}; wrote {args.out}")
    return 0


def _score_file(args: argparse.Namespace, file: Path, bar: tqdm[NoReturn]) -> Tally:
    """One file into one."""
    args.on_interrupt = f"{args.out} was not written" + (" and is as it was" if args.out.exists() else "")
    tally = Tally()
    with open_scores(args.out, overwrite=args.overwrite) as sink, _scoring(args) as (needs_logits, score):
        for chunk in iter_predictions(
            file, kind="logits" if args.logits else None, chunk_rows=args.chunk_rows, keep_logits=needs_logits
        ):
            columns = score(chunk)
            sink.write(chunk.ids, columns)
            tally += Tally.of(columns, args.alpha)
            bar.update(len(chunk))
    return tally


def _score_store(args: argparse.Namespace, files: tuple[Path, ...], bar: tqdm[NoReturn]) -> Tally:
    """Parquet files into a folder, part by part."""
    if args.server is not None:
        raise ConfigError("--server scores one file into one; name a bundle file to score into a folder")
    if any(file.suffix.lower() != ".parquet" for file in files):
        raise ConfigError("several workers, Ray and folders need .parquet files; name these, or one --out file")
    if args.engine == "ray":
        require("ray", "ray")
    elif args.ray_address is not None:
        raise ConfigError("--ray-address needs --engine ray")
    kind: Kind | None = "logits" if args.logits else None
    store = Store.open(files, kind=kind)
    left, tally = plan(store, Path(args.bundle), args.out, overwrite=args.overwrite, alpha=args.alpha)
    args.on_interrupt = f"finished parts are in {args.out}; the same command goes on"
    bar.total = len(store)
    bar.update(tally.rows)

    def report(part: Tally) -> None:
        nonlocal tally
        tally += part
        bar.update(part.rows)

    options = (str(Path(args.bundle).resolve()), int(time.time() * 1000.0), kind, args.alpha, args.chunk_rows)
    workers = min(args.workers, len(left))
    if left and args.engine == "ray":
        score_ray(left, options, workers, report, address=args.ray_address)
    elif left:
        score_local(left, options, workers, report)
    return tally


@contextmanager
def _scoring(args: argparse.Namespace) -> Iterator[tuple[bool, Callable[[Predictions], Columns]]]:
    """Whether logits are needed where there are any, and what makes columns of a chunk."""
    if args.server is None:
        KERNEL.on_event = _announce
        bundle = read_bundle(args.bundle)
        gate = None if bundle.gate is None else bundle.gate.at(int(time.time() * 1000.0))
        yield (
            gate is not None and gate.reject_score in LOGIT_SCORES,
            partial(bundle_columns, ScoringPolicy(Scorer.of(bundle), gate), gate),
        )
        return
    with connected(args, _SERVER_SECONDS) as client:
        yield True, partial(_by_server, client, args.bundle)


def _announce(event: str) -> None:
    if event == "compiling":
        tqdm.write("Compiling for this machine, once; rows are scored meanwhile, more slowly.", file=sys.stderr)


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
        "decision": lower_names(Decision, scored.decision),
        "reason": lower_names(Reason, scored.reason),
    }
