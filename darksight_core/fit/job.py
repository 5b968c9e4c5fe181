"""A fit as a job: options in, a bundle out, in one process or in the many that torchrun starts.

darksight fit ...                                          one process
darksight fit --nproc 4 ...                                four on this machine
torchrun --nnodes 2 --nproc-per-node 4 -m darksight_core.fit ...     four on each of two
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from darksight_core.bundle import refuse_existing
from darksight_core.errors import FitError
from darksight_core.evaluation.progress import Progress, Report, silent
from darksight_core.fit.checkpoints import Checkpoints
from darksight_core.fit.context import FitContext
from darksight_core.fit.distributed.process_group import ProcessGroup, assign_blocks
from darksight_core.fit.distributed.shards import Shard
from darksight_core.fit.figures import FitReport
from darksight_core.fit.options import FitOptions
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.fit.sample import Sample, draw_sample
from darksight_core.predictions import Dataset, Predictions, find_files, mixed_labels
from darksight_core.rows.resolution import finest
from darksight_core.rows.version import __version__

__all__ = ["checkpoint_folder", "launch", "run_fit"]

_KEPT_FROM = 1 << 18
"""Rows from which a single process keeps checkpoints; fewer take seconds."""

_CHUNK_ROWS = 1 << 16


def checkpoint_folder(out: Path) -> Path:
    """Directory of the checkpoints of a fit until it succeeds."""
    return out.with_name(out.name + ".checkpoints")


def run_fit(options: FitOptions, report: Report = silent) -> FitReport | None:
    """Fit as one of the processes that torchrun started, if it did; the report is None except on the first."""
    out, rows, bundle = options.out(), options.rows, options.bundle
    refuse_existing(out, overwrite=bundle.overwrite)
    group = ProcessGroup.join(options.config.device)
    try:
        dataset = Dataset.open(
            find_files(options.predictions), kind="logits" if rows.logits else None, token_classes=rows.class_names()
        )
        columns = rows.columns(dataset.class_names, dataset.source)
        identity = _identity(options, dataset, columns)
        kept = group.size > 1 or bundle.resume or len(dataset) >= _KEPT_FROM
        checkpoints = Checkpoints(group, checkpoint_folder(out) if kept else None, identity, resume=bundle.resume)
        predictions, shard, sample = _rows(options, dataset, group, report)
        found = fit_bundle(
            predictions,
            out,
            config=options.config,
            columns=columns,
            shares=rows.shares(),
            refine_steps=bundle.refine_steps,
            top_k=bundle.tops(),
            overwrite=bundle.overwrite,
            sample=sample,
            context=FitContext(shard, checkpoints, report),
        )
    finally:
        group.leave()
    return found if group.is_first else None


def launch(command: list[str], processes: int, out: Path) -> int:
    """Run a command in several processes on this machine, by torchrun; the status of the first that failed, or 0.

    Parameters
    ----------
    command
        Python module and its arguments, which joins the group in `run_fit`.
    processes
        How many.
    out
        The bundle, to say what a broken fit left.
    """
    import logging
    import sys

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What it logs is what the sentence below says.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        run_id="darksight",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", *command)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return int(failure.exitcode)
        name = signal.Signals(-failure.exitcode).name
        raise FitError(
            f"process {rank} of {processes} was killed by {name}; {out} was not written. Rerun the same command with "
            "--resume to continue from the last checkpoint",
            rank=rank,
        ) from error
    return 0


def _rows(
    options: FitOptions, dataset: Dataset, group: ProcessGroup, report: Report
) -> tuple[Predictions, Shard, Sample | None]:
    """The rows of this process, and how they were drawn if only a sample is to be fitted."""

    def progress(done: int, total: int | None) -> None:
        report(Progress("read", done, total or done, float("nan")))

    own = assign_blocks(len(dataset), group.rank, group.size)
    if options.rows.sample is None:
        return _alike(dataset.read(own, progress=progress), dataset, group), Shard(group, own, len(dataset)), None
    like = _alike(dataset.read(range(own.start, min(own.start + 1, own.stop))), dataset, group)
    nothing, found = like.take(np.empty(0, dtype=np.int64)), set[int]()

    def chunks() -> Iterator[tuple[int, Predictions]]:
        for start, chunk in dataset.chunks(own, _CHUNK_ROWS):
            found.add(chunk.resolution)
            yield start, chunk
            progress(start + len(chunk) - own.start, len(own))

    drawn, sample = draw_sample(
        chunks(),
        options.rows.sample,
        len(dataset),
        options.config.seed,
        options.rows.shares(),
        like=nothing,
        group=group,
    )
    drawn = replace(drawn, resolution=finest(group.gather(np.array([*found], dtype=np.int64)).tolist()))
    shard = Shard(group, assign_blocks(len(drawn), group.rank, group.size), len(drawn))
    mine = drawn if group.size == 1 else drawn.take(np.arange(shard.rows.start, shard.rows.stop))
    return mine, shard, sample


def _alike(rows: Predictions | None, dataset: Dataset, group: ProcessGroup) -> Predictions:
    """Rows, or none of the same kind: with labels if another process has some."""
    labelled = bool(group.gather(np.array([rows is not None and rows.labels is not None])).any())
    if rows is None:
        probs, labels = np.empty((0, len(dataset.class_names)), np.float32), np.empty(0, np.int64) if labelled else None
        return Predictions(probs, labels, None, None, dataset.class_names, dataset.source)
    if labelled and rows.labels is None:
        raise mixed_labels(rows.source)
    return replace(rows, ids=None)


def _identity(options: FitOptions, dataset: Dataset, columns: tuple[int, ...] | None) -> dict[str, Any]:
    """What tells this fit from others."""
    return {
        "darksight": __version__,
        "files": [[file.path.name, file.n_rows, file.fingerprint] for file in dataset.files],
        "config": options.config.as_dict(),
        "columns": None if columns is None else list(columns),
        "split": list(options.rows.shares()),
        "sample": options.rows.sample,
        "refine_steps": options.bundle.refine_steps,
        "top_k": options.bundle.top_k,
        "logits": options.rows.logits,
    }
