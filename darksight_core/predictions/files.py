"""Read predictions from a file or from arrays, whole or in chunks."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, cast, get_args

from numpy.typing import ArrayLike

from darksight_core.errors import ConfigError
from darksight_core.predictions.arrays import HINT_KIND, array_rows, npy_rows, npz_rows
from darksight_core.predictions.checks import check, check_logits, gather
from darksight_core.predictions.defects import defect
from darksight_core.predictions.lines import line_rows
from darksight_core.predictions.raw_rows import Kind, RawRows, RowProgress
from darksight_core.predictions.rows import Predictions
from darksight_core.predictions.tables import csv_rows, parquet_rows
from darksight_core.predictions.tokens import TokenClasses

__all__ = ["check_path", "from_arrays", "iter_lines", "iter_predictions", "read_predictions"]

_FORMATS = {
    ".npz": npz_rows,
    ".npy": npy_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
    ".jsonl": line_rows,
    ".csv.gz": csv_rows,
    ".jsonl.gz": line_rows,
}

# 8,192 csv rows of ten classes take about 7 MB as Python objects; larger chunks leave the cache and are slower.
_READ_ROWS = 8_192


def read_predictions(
    path: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    rows: range | None = None,
    class_names: Sequence[str] = (),
    token_classes: TokenClasses = (),
    keep_logits: bool = False,
    progress: RowProgress | None = None,
) -> Predictions:
    """Read and check a predictions file; memory holds the result and one chunk.

    Parameters
    ----------
    path
        `.npz` with arrays `probs` or `logits` (n, K) and optional `labels` (n,), `ids` (n,), `class_names` (K,),
        `tag_<key>` (n,); `.npy` with one array (n, K); `.csv` or `.parquet` with columns `prob_<class>` or
        `logit_<class>` and optional `label`, `id` and `tag_<key>`; `.jsonl` with an object per line that has these
        members, or a list `probs` or `logits`; `.csv.gz` or `.jsonl.gz`. Or `.jsonl` or `.parquet` with the likeliest
        tokens of a language model; see `darksight_core.predictions.tokens`. Integer labels of arrays are class indices.
        Labels as text, and all labels of tables, are class names, or class indices unless the classes are named by
        other integers.
    kind
        What to read, "probs" or "logits". By default what the file has, logits if it has both, and logits that are
        probabilities are refused; a `.npy` file has probabilities.
    rows
        Numbers of consecutive rows to read; by default all. Of a parquet file only their row groups are read.
    class_names
        The classes in the order of the result. Named columns are reordered, and a file without class names takes
        these. By default the classes and the order of the file.
    token_classes
        The classes of tokens, if the file does not name them. Default: `class_names`.
    keep_logits
        Whether to keep the logits too.
    progress
        Called after each chunk with the number of rows read so far and in all, None if not known (csv).
    """
    found = gather(
        _rows(path, kind, _READ_ROWS, rows, class_names, token_classes), keep_logits=keep_logits, progress=progress
    )
    return found.in_order(class_names)


def iter_predictions(
    path: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    rows: range | None = None,
    class_names: Sequence[str] = (),
    token_classes: TokenClasses = (),
    chunk_rows: int = 65_536,
    keep_logits: bool = False,
) -> Iterator[Predictions]:
    """Read and check a predictions file in chunks; memory use does not depend on the size of the file.

    Chunks before a defect are returned, then it is raised. Ids are compared only within a chunk, because remembering
    all ids would need memory.

    Parameters
    ----------
    path, kind, rows, class_names, token_classes, keep_logits
        As for `read_predictions`.
    chunk_rows
        Most rows of a chunk.
    """
    if chunk_rows < 1:
        raise ConfigError(f"chunk_rows must be at least 1, not {chunk_rows}")
    found = _rows(path, kind, chunk_rows, rows, class_names, token_classes)
    return (check(raw, keep_logits=keep_logits, seen={}).in_order(class_names) for raw in found)


def iter_lines(
    stream: IO[bytes],
    *,
    source: str,
    kind: Kind | None = None,
    token_classes: TokenClasses = (),
    chunk_rows: int = 65_536,
    keep_logits: bool = False,
) -> Iterator[Predictions]:
    """Read and check JSON lines of a stream in chunks, as `iter_predictions` does those of a `.jsonl` file.

    Parameters
    ----------
    stream
        Of bytes, such as the standard input.
    source
        Name of the stream in messages.
    kind, token_classes, chunk_rows, keep_logits
        As for `iter_predictions`.
    """
    _check_kind(kind)
    found = line_rows(stream, source=source, kind=kind, chunk_rows=chunk_rows, classes=token_classes)
    rows = _checked_start(found, source, kind)
    return (check(raw, keep_logits=keep_logits, seen={}) for raw in rows)


def from_arrays(
    values: ArrayLike,
    *,
    kind: Kind = "probs",
    labels: ArrayLike | None = None,
    ids: ArrayLike | None = None,
    tags: Mapping[str, ArrayLike] | None = None,
    class_names: Sequence[str] | None = None,
    source: str = "array",
    keep_logits: bool = False,
    logits_hint: str = HINT_KIND,
) -> Predictions:
    """Check arrays by the rules for files; the result shares no memory with them.

    Parameters
    ----------
    values
        Probabilities or logits, (n, K).
    kind
        Which of the two: "probs" or "logits".
    labels
        (n,) class indices or class names.
    ids
        (n,) unique texts or integers.
    tags
        Values (n,) by key, empty where a row has none.
    class_names
        K names; "0".."K-1" by default.
    source
        Name of the arrays in messages.
    keep_logits
        Whether to keep the logits too.
    logits_hint
        What a message tells to do if the values are logits.

    >>> from_arrays([[0.0, 0.0]], kind="logits").probs
    array([[0.5, 0.5]], dtype=float32)
    """
    _check_kind(kind)
    rows = array_rows(
        values,
        source=source,
        kind=kind,
        labels=labels,
        ids=ids,
        tags=tags or {},
        class_names=class_names,
        hint=logits_hint,
        chunk_rows=_READ_ROWS,
    )
    return gather(_checked_start(rows, source, kind), keep_logits=keep_logits, progress=None)


def _check_kind(kind: Kind | None) -> None:
    if kind is not None and kind not in get_args(Kind):
        raise ConfigError(f"kind must be 'probs' or 'logits', not {kind!r}")


def _checked_start(rows: Iterator[RawRows], source: str, kind: Kind | None) -> Iterator[RawRows]:
    """The same rows; refused if there are none, or if the first are probabilities although they are named logits."""
    first = next(rows, None)
    if first is None:
        raise defect("predictions_empty", source, "there are no rows; give at least one prediction.")
    if kind is None:
        check_logits(first)
    return chain([first], rows)


def _rows(
    path: str | os.PathLike[str],
    kind: Kind | None,
    chunk_rows: int,
    rows: range | None,
    class_names: Sequence[str],
    token_classes: TokenClasses,
) -> Iterator[RawRows]:
    """Rows of a file; a wrong path is refused at once, everything else when rows are read."""
    _check_kind(kind)
    check_path(path)
    found = _open_rows(os.fspath(path), kind, chunk_rows, rows, token_classes or class_names)
    return (raw.named(class_names) for raw in found) if class_names else found


def _format_of(source: str) -> str:
    """The extension that decides the format, such as ".csv" or ".csv.gz"."""
    suffixes = [suffix.lower() for suffix in Path(source).suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path that is missing, a directory, or has an unsupported extension."""
    source = os.fspath(path)
    if Path(source).is_dir():
        raise defect("predictions_directory", source, "this is a directory; give a predictions file in it.")
    suffix = _format_of(source)
    if suffix not in _FORMATS:
        found = f"extension {suffix!r}" if suffix else "no extension"
        raise defect("predictions_unknown_format", source, f"{found}; predictions files end in {', '.join(_FORMATS)}.")
    if not Path(source).exists():
        raise defect("predictions_file_missing", source, "the file does not exist.")


def _open_rows(
    source: str, kind: Kind | None, chunk_rows: int, rows: range | None, token_classes: TokenClasses
) -> Iterator[RawRows]:
    suffix = _format_of(source)
    read: Callable[..., Iterator[RawRows]] = _FORMATS[suffix]
    if read is parquet_rows:
        read = partial(parquet_rows, rows=rows, classes=token_classes)
    elif read is line_rows:
        read = partial(line_rows, classes=token_classes)
    try:
        with open(source, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise defect("predictions_empty", source, "the file has no content; give at least one prediction.")
            data = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if suffix.endswith(".gz") else file
            found = _checked_start(read(data, source=source, kind=kind, chunk_rows=chunk_rows), source, kind)
            yield from found if rows is None else (part for raw in found if (part := raw.within(rows)) is not None)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise defect("predictions_damaged", source, f"the file is damaged or not compressed ({error}).") from error
    except OSError as error:
        raise defect("predictions_file_unreadable", source, f"the file cannot be read ({error.strerror}).") from error
