"""Scoring a dataset of parquet files into a directory of parquet files, by processes of this machine or on Ray.

The dataset is cut into parts of consecutive rows of one file. One worker scores a part, reading only its rows, and
writes one file, complete or not at all. So files that exist are finished: the same command resumes a run that was
stopped. Workers share only the two directories, which on a cluster must be the same for every machine. `_manifest.json`
names the bundle and the files of the scores; readers of a directory of parquet files skip a name that starts with an
underscore. Every engine calls `Worker`, so scores do not depend on it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import read_bundle
from darksight_core.errors import ConfigError, DarkSightError
from darksight_core.predictions import Dataset, Kind, Predictions, iter_predictions
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from darksight_service.errors import BulkError
from darksight_service.scoring.files.columns import bundle_columns
from darksight_service.scoring.files.tables import atomic, open_scores, read_columns

__all__ = ["Part", "Tally", "Worker", "plan", "score_local", "score_ray"]

PART_ROWS = 1 << 18
"""Rows of a part: enough that the cost of starting one is small, few enough that a stopped run loses little."""

Report: TypeAlias = Callable[["Tally"], None]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `first` to `last` of a file, and the file of their scores."""

    source: str
    first: int
    last: int
    out: str


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of scored rows; `accepted` is None without a gate, and `reasons` count rejected rows by reason."""

    rows: int = 0
    outliers: int = 0
    accepted: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], alpha: float | None) -> Tally:
        """Counts of a chunk of scores.

        Parameters
        ----------
        columns
            The columns of the chunk.
        alpha
            p-values up to this are counted as outliers; None to count those of the gate's own rule.
        """
        accepted, reasons = None, {}
        if "decision" in columns:
            rejected = columns["decision"] != "accept"
            accepted = int((~rejected).sum())
            names, counts = np.unique(columns["reason"][rejected], return_counts=True)
            reasons = dict(zip(names.tolist(), counts.tolist(), strict=True))
        outliers = reasons.get("outlier", 0) if alpha is None else int((columns["p_value"] <= alpha).sum())
        return cls(len(columns["p_value"]), outliers, accepted, reasons)

    def __add__(self, other: Tally) -> Tally:
        counts = [count for count in (self.accepted, other.accepted) if count is not None]
        reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        return Tally(self.rows + other.rows, self.outliers + other.outliers, sum(counts) if counts else None, reasons)


def plan(
    dataset: Dataset, bundle: Path, out: Path, *, overwrite: bool, alpha: float | None
) -> tuple[list[Part], Tally]:
    """The parts that are not finished, and the counts of those that are.

    Parameters
    ----------
    dataset
        Rows to score.
    bundle
        The bundle file.
    out
        Directory to write to: new, empty, or started with the same bundle and files, to which others may be added.
    overwrite
        Whether to empty a directory of other scores. A directory of anything else is never changed.
    alpha
        As for `Tally.of`.
    """
    manifest = out / "_manifest.json"
    files = {str(file.path.resolve()): [file.n_rows, file.fingerprint] for file in dataset.files}
    settings = {"bundle": read_bundle(bundle).version, "logits": dataset.kind == "logits", "part_rows": PART_ROWS}
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; the scores of several files, or of several workers, need a directory")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent}: directory does not exist")
    if out.exists() and any(out.iterdir()) and not _can_resume(manifest, settings, files):
        if not manifest.exists():
            raise ConfigError(f"{out} has files that are not scores; name a new or an empty directory")
        if not overwrite:
            raise ConfigError(f"{out} has scores of another bundle or of other files; use --overwrite or another name")
        shutil.rmtree(out)
    out.mkdir(exist_ok=True)
    with atomic(manifest) as partial:
        partial.write_text(json.dumps({**settings, "files": files}, indent=2), encoding="utf-8")
    left, done = [], Tally()
    for file in dataset.files:
        source = str(file.path.resolve())
        # Files of one name in several directories may have the same content.
        name = f"{file.path.stem}-{hashlib.sha256(f'{source}:{file.fingerprint}'.encode()).hexdigest()[:8]}"
        for first in range(0, file.n_rows, PART_ROWS):
            path = out / f"{name}-{first:010d}.parquet"
            if path.exists():
                done += Tally.of(read_columns(path, ("p_value", "decision", "reason")), alpha)
            else:
                left.append(Part(source, first, min(first + PART_ROWS, file.n_rows), str(path.resolve())))
    return left, done


def _can_resume(manifest: Path, settings: Mapping[str, Any], files: Mapping[str, Any]) -> bool:
    """Whether a directory was started with this bundle and with files that have not changed."""
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        before = found.pop("files")
    except (OSError, ValueError, KeyError):
        return False
    return bool(found == settings and all(files.get(name) == facts for name, facts in before.items()))


class Worker:
    """Scores parts with a bundle that is loaded once."""

    def __init__(self, bundle: str, now_ms: int, kind: Kind | None, alpha: float | None, chunk_rows: int) -> None:
        found = read_bundle(bundle)
        # Regions may expire: every worker decides by the same time.
        self._gate = None if found.gate is None else found.gate.at(now_ms)
        self._policy = ScoringPolicy(Scorer.of(found), self._gate)
        self._kind, self._alpha, self._chunk_rows = kind, alpha, chunk_rows

    def score(self, part: Part) -> Tally:
        """Score a part into its file."""
        gate, tally = self._gate, Tally()
        with open_scores(Path(part.out), overwrite=True, first_row=part.first) as sink:
            for chunk in self._chunks(part, gate is not None and gate.needs_logits):
                columns = bundle_columns(self._policy, gate, chunk)
                sink.write(chunk.ids, columns)
                tally += Tally.of(columns, self._alpha)
        return tally

    def _chunks(self, part: Part, keep_logits: bool) -> Iterator[Predictions]:
        return iter_predictions(
            part.source,
            kind=self._kind,
            rows=range(part.first, part.last),
            class_names=self._policy.scorer.class_names,
            chunk_rows=self._chunk_rows,
            keep_logits=keep_logits,
        )

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The same for Ray: parts as columns, counts as JSON; errors are texts, for the caller to raise."""
        found: dict[str, list[Any]] = {"tally": [], "error": []}
        for source, first, last, out in zip(*(batch[name] for name in ("source", "first", "last", "out")), strict=True):
            error = ""
            try:
                tally = self.score(Part(str(source), int(first), int(last), str(out)))
            except DarkSightError as defect:
                tally, error = Tally(), defect.message
            found["tally"].append(json.dumps(asdict(tally)))
            found["error"].append(error)
        return {name: np.array(values) for name, values in found.items()}


_worker: Worker | None = None


def _start(*options: Any) -> None:
    """Load the bundle in a process of the pool."""
    global _worker
    _worker = Worker(*options)


def _score(part: Part) -> Tally:
    assert _worker is not None
    return _worker.score(part)


def score_local(parts: Sequence[Part], options: tuple[Any, ...], workers: int, report: Report) -> None:
    """Score parts in processes of this machine, each with one thread of linear algebra; `options` make a `Worker`."""
    if workers == 1:
        worker = Worker(*options)
        for part in parts:
            report(worker.score(part))
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start, initargs=options) as pool:
        try:
            for done in as_completed([pool.submit(_score, part) for part in parts]):
                report(done.result())
        except BrokenProcessPool as error:
            raise BulkError("a worker was killed; rerun the same command to resume") from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def score_ray(
    parts: Sequence[Part], options: tuple[Any, ...], workers: int, report: Report, *, address: str | None = None
) -> None:
    """Score parts by a pool of Ray Data's actors, on a cluster at `address` or on this machine alone."""
    # Before the import, where Ray reads it: no usage statistics are sent.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if address is None:
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )
    else:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # Progress and errors are reported here, and Ray creates its loggers when it starts.
        logging.disable(logging.WARNING)
        rows = ray.data.from_items([asdict(part) for part in parts], override_num_blocks=len(parts))
        found = rows.map_batches(
            Worker, fn_constructor_args=options, batch_size=1, compute=ray.data.ActorPoolStrategy(size=workers)
        )
        for row in found.iter_rows():
            if row["error"]:
                raise BulkError(str(row["error"]))
            report(Tally(**json.loads(row["tally"])))
    except ray.exceptions.RayError as error:
        raise BulkError(f"Ray failed ({type(error).__name__}); rerun the same command to resume") from error
    finally:
        logging.disable(logging.NOTSET)
        ray.shutdown()
