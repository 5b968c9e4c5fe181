"""Predictions in one file or in many: rows by their number, read where they lie.

A store is what several processes share: each asks for the rows that are its own. Of `.parquet` files only the ends are
read to open a store, and then only the row groups that hold the rows asked for. Any other format is one file, which
every process reads whole.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from darksight_core.errors import ConfigError
from darksight_core.predictions.checks import Kind, Progress
from darksight_core.predictions.defects import (
    ClassNamesError,
    EmptyPredictionsError,
    FileMissingError,
    FileUnreadableError,
    UnknownFormatError,
    defect,
)
from darksight_core.predictions.files import check_path, iter_predictions, read_predictions
from darksight_core.predictions.rows import Predictions
from darksight_core.predictions.tables import parquet_layout

__all__ = ["Store", "StoreFile", "find_files", "mixed_labels"]


def find_files(names: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Files by their names or by patterns such as `day/*.parquet`; each once, those of a pattern by name.

    Wrong paths are refused here, so that who calls this first has them refused before long imports and long work.

    Parameters
    ----------
    names
        A name of an existing file is taken as it is, whatever characters it has.
    """
    found: dict[Path, None] = {}
    for given in names:
        name = os.fspath(given)
        if Path(name).exists() or not glob.has_magic(name):
            check_path(name)
            found[Path(name)] = None
            continue
        matches = sorted(Path(match) for match in glob.glob(name, recursive=True))
        if not matches:
            raise defect(FileMissingError, name, "no file has a name like this.")
        found.update(dict.fromkeys(matches))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a store: its number of rows, and a fingerprint of its end, where parquet has sizes and statistics."""

    path: Path
    n_rows: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Store:
    """Rows of files in their order, numbered through; made by `open`.

    Parameters
    ----------
    files
        The files.
    class_names
        Of all of them.
    kind
        What to read of them, as for `read_predictions`.
    whole
        All rows, if they had to be read at once.
    """

    files: tuple[StoreFile, ...]
    class_names: tuple[str, ...]
    kind: Kind | None
    whole: Predictions | None = None

    @classmethod
    def open(cls, paths: Sequence[Path], *, kind: Kind | None = None, progress: Progress | None = None) -> Store:
        """A store of `.parquet` files with the same classes, or of one file of any format."""
        if len(paths) == 1 and paths[0].suffix.lower() != ".parquet":
            whole = read_predictions(paths[0], kind=kind, progress=progress)
            digest = hashlib.sha256(whole.row_hashes().tobytes()).hexdigest()
            return cls((StoreFile(paths[0], len(whole), digest),), whole.class_names, kind, whole)
        files, layouts = [], []
        for path in paths:
            if path.suffix.lower() != ".parquet":
                raise defect(UnknownFormatError, str(path), "of several files every one must be .parquet.")
            if not path.is_file():
                raise defect(FileMissingError, str(path), "there is no such file.")
            try:
                with path.open("rb") as file:
                    layout, _ = parquet_layout(file, source=str(path), kind=kind)
                    files.append(StoreFile(path, layout.n_rows or 0, _fingerprint(path)))
            except OSError as error:
                raise defect(FileUnreadableError, str(path), f"the file cannot be read ({error.strerror}).") from error
            layouts.append(layout)
            if (layout.class_names, layout.is_logits) != (layouts[0].class_names, layouts[0].is_logits):
                text = f"its columns of predictions are not those of {paths[0]}, or in another order."
                raise defect(ClassNamesError, str(path), text)
        if sum(file.n_rows for file in files) == 0:
            raise defect(EmptyPredictionsError, ", ".join(map(str, paths)), "there are no rows.")
        return cls(tuple(files), layouts[0].class_names, kind)

    def __len__(self) -> int:
        return sum(file.n_rows for file in self.files)

    @property
    def source(self) -> str:
        """The store in a few words."""
        first = str(self.files[0].path)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    def parts(self, rows: range) -> Iterator[tuple[StoreFile, range]]:
        """The files that have some of these rows, and which by their number in the file."""
        ends = accumulate((file.n_rows for file in self.files), initial=0)
        for file, (start, end) in zip(self.files, pairwise(ends), strict=True):
            low, high = max(rows.start, start), min(rows.stop, end)
            if low < high:
                yield file, range(low - start, high - start)

    def read(self, rows: range, *, progress: Progress | None = None) -> Predictions | None:
        """Rows by their number, without ids; None if the range is empty.

        Parameters
        ----------
        rows
            Numbers of consecutive rows.
        progress
            Called after each chunk with the rows read so far and those in all.
        """
        if len(rows) == 0:
            return None
        if self.whole is not None:
            return self.whole if len(rows) == len(self) else self.whole.take(np.arange(rows.start, rows.stop))
        done, found = 0, []
        for file, part in self.parts(rows):
            found.append(read_predictions(file.path, kind=self.kind, rows=part))
            done += len(part)
            if progress is not None:
                progress(done, len(rows))
        return found[0] if len(found) == 1 else _joined(found, self.source)

    def chunks(self, rows: range, chunk_rows: int) -> Iterator[tuple[int, Predictions]]:
        """Rows in chunks, each with the number of its first row; memory does not grow with their number."""
        if self.whole is not None:
            for start in range(rows.start, rows.stop, chunk_rows):
                yield start, self.whole.take(np.arange(start, min(start + chunk_rows, rows.stop)))
            return
        start = rows.start
        for file, part in self.parts(rows):
            for chunk in iter_predictions(file.path, kind=self.kind, rows=part, chunk_rows=chunk_rows):
                yield start, chunk
                start += len(chunk)


def mixed_labels(source: str) -> ConfigError:
    """What is said where only some of the files of a store have labels."""
    return ConfigError(f"{source}: some files have labels and others none; give all files labels, or none")


def _fingerprint(path: Path) -> str:
    """SHA-256 of the size of a parquet file and of its footer, which has offsets and statistics of every column."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - length, 0))
        return hashlib.sha256(f"{size}:".encode() + file.read()).hexdigest()


def _joined(several: list[Predictions], source: str) -> Predictions:
    """Rows of several files in one; labels only if all files have them."""
    labels = [one.labels for one in several if one.labels is not None]
    if labels and len(labels) < len(several):
        raise mixed_labels(source)
    return Predictions(
        probs=np.concatenate([one.probs for one in several]),
        labels=np.concatenate(labels) if labels else None,
        ids=None,
        logits=None,
        class_names=several[0].class_names,
        source=source,
        n_renormalised=sum(one.n_renormalised for one in several),
    )
