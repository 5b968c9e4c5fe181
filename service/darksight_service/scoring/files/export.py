"""Stored points as parquet files, for warehouses and notebooks.

    TARGET/model=digits/day=2026-11-18/hour-05.parquet    the points of one hour, by the time in their ids
    TARGET/_export.json                                    how many points and labels each file has

A file holds all points of its hour and none of another, and is replaced as a whole. So a reader never sees a point
twice, whenever an export is killed and however often it runs. An export writes the hours that have more points or
labels than at the last one, or other labels: late points, late labels and corrected labels rewrite their hour. An hour
of which retention has deleted points since then keeps its file.

The target is a directory or a URL that fsspec knows, such as s3://bucket/points.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.rows.schema import Decision, Reason, stored_name
from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_service.store.points import LISTED_COLUMNS, PointTable, is_missing, score_values
from darksight_service.store.read.hours import HOUR_MS, Hour
from darksight_service.store.store import Store

__all__ = ["Exported", "export_points"]

_STATE, _STATE_VERSION = "_export.json", 1


@dataclass(slots=True)
class Exported:
    """What an export did: points and files written, files left as they were, and hours that retention has cut."""

    points: int = 0
    written: int = 0
    unchanged: int = 0
    incomplete: int = 0


def export_points(
    store: Store,
    target: str,
    *,
    models: Sequence[str] = (),
    since_ms: int = 0,
    with_probs: bool = True,
    report: Callable[[str], None] = lambda path: None,
) -> Exported:
    """Write the points of all hours that have changed since the last export.

    Parameters
    ----------
    store
        Where the points are.
    target
        A directory, or a URL of fsspec.
    models
        Names of models; all if there are none.
    since_ms
        Hours before this time are left as they are.
    with_probs
        Whether to write probabilities.
    report
        Called with the path of each file that was written.
    """
    known = store.model_names()
    unknown = sorted(set(models) - set(known))
    if unknown:
        raise ConfigError(f"there are no points of model {unknown[0]!r}; there are {', '.join(known) or 'no models'}")
    folder = _Folder(target)
    done = folder.read_state()
    exported = Exported()
    for name in models or known:
        classes, keys = store.bundle_classes(name), store.tag_keys(name)
        for hour in store.stored_hours(name, since_ms=since_ms):
            path = _path(name, hour.number)
            before = done.get(path, {"points": 0, "labels": 0})
            if not _has_changed(hour, before):
                exported.unchanged += 1
                continue
            with folder.replacing(path) as replace:
                parts = (_columns(part, classes, keys, with_probs) for part in store.points_of_hour(name, hour.number))
                rows, is_thinned = _write(parts, replace.file)
                points = max(hour.points, rows)
                # Counts outlive points. If more of them are gone than at the last export, the file has what the store
                # has not. A file of no rows is not a parquet file.
                is_cut = path in done and points - rows > before["points"] - before.get("rows", before["points"])
                if is_thinned:
                    # Rows that were left out were counted too, so only fewer rows show a loss.
                    is_cut = rows < before.get("rows", 0)
                replace.is_kept = is_cut or not rows
            if replace.is_kept:
                exported.incomplete += 1
                continue
            done[path] = {"points": points, "labels": hour.labels, "rows": rows, "revision": hour.revision}
            folder.write_state(done)
            exported.points, exported.written = exported.points + rows, exported.written + 1
            report(path)
    return exported


def _has_changed(hour: Hour, before: Mapping[str, int]) -> bool:
    """Whether an hour has points or labels that its file does not have; fewer labels are those of deleted points."""
    if hour.points > before["points"] or hour.labels > before["labels"]:
        return True
    return hour.labels == before["labels"] and hour.revision != before.get("revision", hour.revision)


def _path(model: str, hour: int) -> str:
    moment = datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)
    return f"model={quote(model, safe='')}/day={moment:%Y-%m-%d}/hour-{moment:%H}.parquet"


@dataclass(slots=True)
class _Replacement:
    """A file that is written beside the one that it replaces; `is_kept` if the old one stays."""

    file: Any
    is_kept: bool = False


class _Folder:
    """The target."""

    def __init__(self, target: str) -> None:
        try:
            import fsspec
            import pyarrow  # noqa: F401  # needed later; said now
        except ModuleNotFoundError as error:
            raise ConfigError(f"db export needs {error.name}; install it with: pip install darksight[export]") from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(target)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{target}: {error}") from None

    def read_state(self) -> dict[str, dict[str, int]]:
        """Points and labels by path of the files that are there."""
        path = posixpath.join(self._root, _STATE)
        if not self._files.exists(path):
            return {}
        try:
            found = json.loads(self._files.cat_file(path))
            if found["version"] != _STATE_VERSION:
                raise ValueError(f"its version is {found['version']}")
            files: dict[str, dict[str, int]] = found["files"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not the state of an export: {error}; export to another directory") from None
        return files

    def write_state(self, files: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the state."""
        with self.replacing(_STATE) as replace:
            replace.file.write(json.dumps({"version": _STATE_VERSION, "files": files}, indent=1).encode())

    @contextmanager
    def replacing(self, path: str) -> Iterator[_Replacement]:
        """A file that gets its name when it is complete; until then readers skip it, as its name starts with _."""
        whole = posixpath.join(self._root, path)
        parent, name = posixpath.split(whole)
        self._files.makedirs(parent, exist_ok=True)
        partial = posixpath.join(parent, f"_{name.lstrip('_')}.partial")
        try:
            with self._files.open(partial, "wb") as file:
                replace = _Replacement(file)
                yield replace
            if not replace.is_kept:
                self._files.mv(partial, whole)
        finally:
            if self._files.exists(partial):
                self._files.rm_file(partial)


def _write(parts: Iterable[dict[str, Any]], file: Any) -> tuple[int, bool]:
    """Write the points of an hour, a row group for each part; returns their number, and whether rows were left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    points, is_thinned, writer = 0, False, None
    with ExitStack() as stack:
        for columns in parts:
            table = pa.table(columns)
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(file, table.schema, compression="zstd"))
            writer.write_table(table)
            points += len(table)
            is_thinned |= table["odds"].null_count < len(table)
    return points, is_thinned


def _columns(
    table: PointTable, classes: Mapping[str, Sequence[str]], keys: Sequence[str], with_probs: bool
) -> dict[str, Any]:
    import pyarrow as pa

    moment = pa.timestamp("ms", tz="UTC")
    tags = table.tag_dicts()
    values = score_values(table)
    scores = {name: (values[name].astype(each.stored), each) for name, each in LISTED_COLUMNS.items()}
    columns = {
        "prediction_id": pa.array(table.prediction_ids()),
        "point_id": pa.array([each.hex() for each in table.id_bytes()]),
        "version": pa.array([table.versions[number] for number in table.bundle.tolist()]),
        "received_at": pa.array(table.received_ms, type=pa.int64()).cast(moment),
        "event_time": pa.array(table.event_ms, type=pa.int64(), mask=np.equal(table.event_ms, 0)).cast(moment),
        "is_shadow": pa.array(table.is_shadow),
        "decision": _texts(stored_name(Decision, each).lower() for each in table.decision.tolist()),
        "reason": _texts(stored_name(Reason, each).lower() for each in table.reason.tolist()),
        "predicted": _texts(_class_names(table, table.predicted.tolist(), classes)),
        "label": _texts(_class_names(table, table.label.tolist(), classes)),
        "is_correct": pa.array(np.equal(table.predicted, table.label), mask=~table.is_labelled),
        **{name: pa.array(each, mask=is_missing(each, column)) for name, (each, column) in scores.items()},
        "tags": pa.array([list(each.items()) for each in tags], type=pa.map_(pa.string(), pa.string())),
        **{f"{COLUMN_PREFIX}{key}": _texts(each.get(key) for each in tags) for key in keys},
        "reference": pa.array(table.references.tolist(), type=pa.string()),
        "trace_id": pa.array([each.hex() if any(each) else None for each in table.trace_bytes()], type=pa.string()),
    }
    if with_probs:
        known = ~np.isnan(table.probs).all(axis=1) & (table.probs.shape[1] > 0)
        rows = [row if is_known else None for row, is_known in zip(table.probs, known.tolist(), strict=True)]
        columns["probs"] = pa.array(rows, type=pa.list_(pa.float32()))
    return columns


def _texts(values: Iterable[str | None]) -> Any:
    import pyarrow as pa

    return pa.array(list(values), type=pa.string())


def _class_names(
    table: PointTable, numbers: Sequence[int], classes: Mapping[str, Sequence[str]]
) -> Iterator[str | None]:
    """Classes by name, or by number if the names are not known; None for no class."""
    names = [classes.get(version, ()) for version in table.versions]
    for number, version in zip(numbers, table.bundle.tolist(), strict=True):
        yield None if number < 0 else names[version][number] if number < len(names[version]) else str(number)
