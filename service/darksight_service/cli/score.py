"""`darksight score`: score files of predictions with a bundle, or by a running service, chunk by chunk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import Group, Parameter
from darksight_client import Client
from tqdm import tqdm

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.predictions import Dataset, Kind, Predictions, TokenClasses, find_files, iter_predictions
from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_core.runtime.compilation import KERNEL
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from darksight_service.cli.connection import CONNECTION, Credentials, class_names_of, connect
from darksight_service.cli.console import on_interrupt, print_json, require
from darksight_service.cli.options import DEFAULT_ALPHA, INPUT, OUTPUT, AsJson, Logits, Overwrite, Quiet
from darksight_service.scoring.files.bulk import Tally, plan, score_local, score_ray
from darksight_service.scoring.files.columns import Columns, bundle_columns, score_columns
from darksight_service.scoring.files.tables import open_scores

__all__ = ["score"]

# A chunk is sent in many messages, and the service may be busy.
_SERVER_SECONDS = 120.0
_WORKERS = Group("Workers", sort_key=5)


@dataclass(frozen=True, slots=True)
class _Job:
    """What to score with, and how."""

    bundle: str
    out: Path
    overwrite: bool
    kind: Kind | None
    alpha: float | None
    chunk_rows: int
    untagged: bool


def score(
    bundle: str,
    files: list[str],
    /,
    *,
    logits: Logits = False,
    alpha: float | None = None,
    untagged: Annotated[Literal["refuse", "pooled"], Parameter(group=INPUT)] = "refuse",
    chunk_rows: int = 65_536,
    engine: Annotated[Literal["local", "ray"], Parameter(group=_WORKERS)] = "local",
    workers: Annotated[int, Parameter(group=_WORKERS)] = 1,
    ray_address: Annotated[str | None, Parameter(group=_WORKERS, metavar="HOST:PORT")] = None,
    server: Annotated[str | None, Parameter(group=CONNECTION, metavar="HOST:PORT")] = None,
    credentials: Annotated[Credentials, Parameter(name="*", group=CONNECTION)] = Credentials(),
    out: Annotated[Path, Parameter(group=OUTPUT)],
    overwrite: Overwrite = False,
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score predictions in files.

    Places every row on the map of the bundle and writes id, point, densities, fidelity, outlier score, p-value, the
    predicted class with its probability (top), the prediction set and, if the bundle has a gate, decision and reason.
    Prints how many rows are outliers, how many the gate accepts, and how many it rejects for each reason. Memory use
    does not grow with the file, unless --out is an .npz file. With --server a running service scores, stores and counts
    the rows; fidelity and outlier score are not in its response.

    Several .parquet files, or several workers, write a directory with one file per part. If such a run is interrupted,
    the same command continues it.

    Parameters
    ----------
    bundle
        Bundle file or, with --server, the name of a model.
    files
        Predictions: one .npz, .npy, .csv, .parquet or .jsonl file, several .parquet files, or a quoted pattern such as
        'day/*.parquet'.
    alpha
        Count rows with a p-value up to this as outliers. Default: the rule of the bundle's gate, or 0.01 without one.
    untagged
        A file without the tag column of a gate by segment: refuse it, or use the pooled threshold for all rows.
    chunk_rows
        Rows in memory at a time.
    engine
        Score in processes of this machine, or on Ray.
    workers
        Processes, or Ray actors.
    ray_address
        Ray cluster. Default: Ray on this machine alone.
    server
        Service to ask instead of reading a bundle.
    out
        File to write, .npz, .csv or .parquet, or a directory for several files or workers.
    """
    found = find_files(files)
    if workers < 1:
        raise ConfigError(f"--workers is {workers}; it must be at least 1")
    rule = None
    if alpha is None:
        gate = None if server is not None else read_bundle(bundle, verify=False).gate
        rule = None if gate is None else gate.outlier
        alpha = DEFAULT_ALPHA if rule is None else None
    job = _Job(bundle, out, overwrite, "logits" if logits else None, alpha, chunk_rows, untagged == "pooled")
    with tqdm(desc="scoring", unit=" rows", unit_scale=True, file=sys.stderr, disable=quiet) as bar:
        if len(found) > 1 or workers > 1 or engine == "ray" or not out.suffix:
            if server is not None:
                raise ConfigError("--server scores one file into one file; use a bundle to score into a directory")
            if engine != "ray" and ray_address is not None:
                raise ConfigError("--ray-address needs --engine ray")
            tally = _score_parts(job, found, engine, workers, ray_address, bar)
        else:
            tally = _score_file(job, found[0], server, credentials, bar)
    _print_tally(tally, job.out, rule.alpha if rule is not None else alpha, json=json)


def _print_tally(tally: Tally, out: Path, alpha: float | None, *, json: bool) -> None:
    rate = tally.outliers / tally.rows
    result: dict[str, object] = {"rows": tally.rows, "outliers": tally.outliers, "outlier_rate": rate, "alpha": alpha}
    text = f"{tally.rows:,} rows, {tally.outliers:,} outliers ({rate:.2%} at alpha {alpha})"
    if tally.accepted is not None:
        accepted = tally.accepted / tally.rows
        result |= {"accepted": tally.accepted, "acceptance_rate": accepted, "rejected": dict(tally.reasons)}
        text += f", {tally.accepted:,} accepted by the gate ({accepted:.2%})"
        if tally.reasons:
            counts = (f"{count:,} {reason}" for reason, count in sorted(tally.reasons.items()))
            text += f", rejected: {', '.join(counts)}"
    if json:
        print_json({**result, "out": str(out)})
    else:
        print(f"{text}; wrote {out}")


def _score_file(job: _Job, file: Path, server: str | None, credentials: Credentials, bar: tqdm[NoReturn]) -> Tally:
    """Score one file into one file."""
    tally = Tally()
    with (
        on_interrupt(f"{job.out} was not {'changed' if job.out.exists() else 'written'}"),
        open_scores(job.out, overwrite=job.overwrite) as sink,
        _scoring(job, server, credentials) as (bundle, classes, needs_logits, score_chunk),
    ):
        for chunk in iter_predictions(
            file,
            kind=job.kind,
            class_names=() if bundle is None else bundle.class_names,
            token_classes=classes,
            chunk_rows=job.chunk_rows,
            keep_logits=needs_logits,
        ):
            _check_tags(None if bundle is None else bundle.gate, chunk, job)
            columns = score_chunk(chunk)
            sink.write(chunk.ids, columns)
            tally += Tally.of(columns, job.alpha)
            bar.update(len(chunk))
    return tally


def _score_parts(
    job: _Job, files: tuple[Path, ...], engine: str, workers: int, ray_address: str | None, bar: tqdm[NoReturn]
) -> Tally:
    """Score parquet files into a directory, part by part."""
    if any(file.suffix.lower() != ".parquet" for file in files):
        raise ConfigError("several files or workers, Ray and an --out directory need .parquet files")
    if engine == "ray":
        require("ray", "ray")
    dataset = Dataset.open(files, kind=job.kind)
    _check_tags(read_bundle(job.bundle, verify=False).gate, next(dataset.chunks(range(1), 1))[1], job)
    left, tally = plan(dataset, Path(job.bundle), job.out, overwrite=job.overwrite, alpha=job.alpha)
    bar.total = len(dataset)
    bar.update(tally.rows)

    def report(part: Tally) -> None:
        nonlocal tally
        tally += part
        bar.update(part.rows)

    options = (str(Path(job.bundle).resolve()), int(time.time() * 1000.0), job.kind, job.alpha, job.chunk_rows)
    workers = min(workers, len(left))
    with on_interrupt(f"finished parts are in {job.out}; rerun the same command to continue"):
        if left and engine == "ray":
            score_ray(left, options, workers, report, address=ray_address)
        elif left:
            score_local(left, options, workers, report)
    return tally


def _check_tags(gate: Gate | None, chunk: Predictions, job: _Job) -> None:
    """Refuse a file without the tag that a gate by segment needs, unless all rows may have the pooled threshold."""
    if gate is not None and gate.segments is not None and not job.untagged and gate.segments.key not in chunk.tags:
        raise ConfigError(
            f"{chunk.source} has no column {COLUMN_PREFIX}{gate.segments.key}, by which the gate of {job.bundle} has "
            "its thresholds; add it, or use the pooled threshold for all rows with --untagged pooled"
        )


@contextmanager
def _scoring(
    job: _Job, server: str | None, credentials: Credentials
) -> Iterator[tuple[Bundle | None, TokenClasses, bool, Callable[[Predictions], Columns]]]:
    """The bundle if it is read here, its classes, whether logits are needed, and a function that scores a chunk."""
    if server is not None:
        with connect(server, credentials, _SERVER_SECONDS) as client:
            classes = partial(class_names_of, client, job.bundle)
            yield None, classes, True, partial(_score_remotely, client, job.bundle)
        return
    KERNEL.on_event = _announce
    bundle = read_bundle(job.bundle)
    gate = None if bundle.gate is None else bundle.gate.at(int(time.time() * 1000.0))
    needs_logits = gate is not None and gate.needs_logits
    policy = ScoringPolicy(Scorer.of(bundle), gate)
    yield bundle, bundle.class_names, needs_logits, partial(bundle_columns, policy, gate)


def _announce(event: str) -> None:
    if event == "compiling":
        tqdm.write("Compiling for this machine, once; rows are scored meanwhile, more slowly.", file=sys.stderr)


def _score_remotely(client: Client, model: str, chunk: Predictions) -> Columns:
    scored = client.score(
        model,
        chunk.rows if chunk.logits is None else chunk.logits,
        logits=chunk.logits is not None,
        prediction_ids=chunk.ids,
        partial_ok=True,
        tags=chunk.tag_dicts(),
    )
    return score_columns(scored, chunk, chunk.class_names)
