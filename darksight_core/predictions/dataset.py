"""Predictions in one file or several, read by row number.

Several processes can share a dataset: each reads its own rows. Opening `.parquet` files reads only their footers, and
reading rows only the row groups that hold them. Of the other formats a dataset is one file, which every process reads
whole.
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
from darksight_core.predictions.defects import defect
from darksight_core.predictions.files import check_path, iter_predictions, read_predictions
from darksight_core.predictions.raw_rows import Kind, RowProgress
from darksight_core.predictions.rows import Predictions
from darksight_core.predictions.tables import parquet_layout
from darksight_core.predictions.tokens import TokenClasses
from darksight_core.rows.partial import TopRows

__all__ = ["Dataset", "DatasetFile", "find_files", "mixed_labels"]


def find_files(names: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Files by their names or by patterns such as `day/*.parquet`; each once, those of a pattern in order of name.

    Wrong paths are refused here, before long imports and long work.

    Parameters
    ----------
    names
        Names and patterns; the name of an existing file is never read as a pattern.
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
            raise defect("predictions_file_missing", name, "no file matches this pattern.")
        found.update(dict.fromkeys(matches))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file of a dataset: its number of rows and a fingerprint of its footer or, without one, of its rows."""

    path: Path
    n_rows: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows of several files, numbered consecutively; made by `open`.

    Parameters
    ----------
    files
        The files in order.
    class_names
        Class names, the same in all files.
    kind
        What to read, as for `read_predictions`.
    whole
        All rows, if the format has to be read whole.
    """

    files: tuple[DatasetFile, ...]
    class_names: tuple[str, ...]
    kind: Kind | None
    whole: Predictions | None = None

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        *,
        kind: Kind | None = None,
        token_classes: TokenClasses = (),
        progress: RowProgress | None = None,
    ) -> Dataset:
        """A dataset of `.parquet` files with the same classes, or of one file of any format."""
        if len(paths) == 1 and paths[0].suffix.lower() != ".parquet":
            whole = read_predictions(paths[0], kind=kind, token_classes=token_classes, progress=progress)
            digest = hashlib.sha256(whole.row_hashes().tobytes()).hexdigest()
            return cls((DatasetFile(paths[0], len(whole), digest),), whole.class_names, kind, whole)
        files, layouts = [], []
        for path in paths:
            if path.suffix.lower() != ".parquet":
                raise defect("predictions_unknown_format", str(path), "several files must all be .parquet.")
            if not path.is_file():
                raise defect("predictions_file_missing", str(path), "the file does not exist.")
            try:
                with path.open("rb") as file:
                    layout, _ = parquet_layout(file, source=str(path), kind=kind, classes=token_classes)
                    files.append(DatasetFile(path, layout.n_rows or 0, _fingerprint(path)))
            except OSError as error:
                raise defect(
                    "predictions_file_unreadable", str(path), f"the file cannot be read ({error.strerror})."
                ) from error
            layouts.append(layout)
            if (layout.class_names, layout.is_logits) != (layouts[0].class_names, layouts[0].is_logits):
                text = f"the prediction columns differ from those of {paths[0]}, or are in another order."
                raise defect("predictions_class_names", str(path), text)
        if sum(file.n_rows for file in files) == 0:
            raise defect("predictions_empty", ", ".join(map(str, paths)), "there are no rows.")
        return cls(tuple(files), layouts[0].class_names, kind)

    def __len__(self) -> int:
        return sum(file.n_rows for file in self.files)

    @property
    def source(self) -> str:
        """Name of the dataset for messages."""
        first = str(self.files[0].path)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    def parts(self, rows: range) -> Iterator[tuple[DatasetFile, range]]:
        """The files that hold some of these rows, and the numbers of these rows in each file."""
        ends = accumulate((file.n_rows for file in self.files), initial=0)
        for file, (start, end) in zip(self.files, pairwise(ends), strict=True):
            low, high = max(rows.start, start), min(rows.stop, end)
            if low < high:
                yield file, range(low - start, high - start)

    def read(self, rows: range, *, progress: RowProgress | None = None) -> Predictions | None:
        """Rows by number, without ids; None if the range is empty.

        Parameters
        ----------
        rows
            Numbers of consecutive rows.
        progress
            Called after each file with the number of rows read so far and in all.
        """
        if len(rows) == 0:
            return None
        if self.whole is not None:
            return self.whole if len(rows) == len(self) else self.whole.take(np.arange(rows.start, rows.stop))
        done, found = 0, []
        for file, part in self.parts(rows):
            found.append(read_predictions(file.path, kind=self.kind, rows=part, token_classes=self.class_names))
            done += len(part)
            if progress is not None:
                progress(done, len(rows))
        return found[0] if len(found) == 1 else _joined(found, self.source)

    def chunks(self, rows: range, chunk_rows: int) -> Iterator[tuple[int, Predictions]]:
        """Rows in chunks, each with the number of its first row; memory use does not depend on the number of rows."""
        if self.whole is not None:
            for start in range(rows.start, rows.stop, chunk_rows):
                yield start, self.whole.take(np.arange(start, min(start + chunk_rows, rows.stop)))
            return
        start = rows.start
        for file, part in self.parts(rows):
            for chunk in iter_predictions(
                file.path, kind=self.kind, rows=part, token_classes=self.class_names, chunk_rows=chunk_rows
            ):
                yield start, chunk
                start += len(chunk)


def mixed_labels(source: str) -> ConfigError:
    """The error for a dataset in which only some files have labels."""
    return ConfigError(f"{source}: some files have labels and others do not; give labels in all files or in none")


def _fingerprint(path: Path) -> str:
    """SHA-256 of the size of a parquet file and its footer, which holds offsets and statistics of every column."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - length, 0))
        return hashlib.sha256(f"{size}:".encode() + file.read()).hexdigest()


def _joined(several: list[Predictions], source: str) -> Predictions:
    """Rows of several files together; labels only if all files have them."""
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
        tags={
            key: tuple(value for one in several for value in one.tags.get(key, ("",) * len(one)))
            for key in sorted({key for one in several for key in one.tags})
        },
        top=TopRows.join([one.top for one in several if one.top is not None]) if several[0].top is not None else None,
    )
