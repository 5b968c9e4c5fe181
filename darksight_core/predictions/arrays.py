"""Rows of `.npy` and `.npz` files, and of arrays in memory.

`numpy.load` would hold a whole array, and a second time as float32. Here rows are read and decompressed a chunk at a
time, after numpy has parsed the npy header. Nothing is unpickled.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from darksight_core.predictions.defects import Code, damage, defect
from darksight_core.predictions.raw_rows import Kind, Layout, RawRows, check_classes, plain_text
from darksight_core.predictions.sizes import check_expansion, rows_of_chunk
from darksight_core.rows.tags import COLUMN_PREFIX

__all__ = ["HINT_KIND", "array_rows", "npy_rows", "npz_rows"]

HINT_KIND = 'If these are logits, pass kind="logits" (--logits on the command line).'
"""What to do about logits in an array without a name."""

_HINT_ARRAY = "If these are logits, name the array logits."

# A longer text is not a name, and an array of fixed-width texts allocates this much for every row.
_MAX_TEXT_BYTES = 4096

# All class names together: 20,000 names of 200 characters in UTF-32 take half of it.
_MAX_NAMES_BYTES = 1 << 25

_VECTORS: dict[str, tuple[Code, Code, str]] = {
    "labels": ("predictions_label_length", "predictions_label_value", "biufUS"),
    "ids": ("predictions_id_length", "predictions_id_value", "iuUS"),
    "class_names": ("predictions_class_names", "predictions_class_names", "iuUS"),
}
_TAGS: tuple[Code, Code, str] = ("predictions_tag_value", "predictions_tag_value", "iuUS")


class _NpyStream:
    """One npy array, read a chunk of rows at a time."""

    def __init__(self, stream: IO[bytes], n_bytes: int, *, source: str, name: str) -> None:
        self._stream, self._source, self._row = stream, source, 0
        with damage(source):
            version = np.lib.format.read_magic(stream)
            # Version 3 is for structured arrays with non-latin field names, which cannot be predictions.
            parse = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = parse(stream)
            self._start = stream.tell()
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = dtype
        if dtype.hasobject:
            text = "the array holds Python objects, which are not unpickled. Save it with a numeric or text dtype."
            raise defect("predictions_pickled", source, text, column=f"array {name}")
        needed = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or n_bytes - self._start != needed:
            text = f"{n_bytes - self._start} bytes of data where shape {shape} of {dtype} needs {needed}; "
            raise defect(
                "predictions_damaged", source, text + "the file is damaged or truncated.", column=f"array {name}"
            )
        self._by_columns = fortran and len(shape) == 2

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def spool(self, stack: ExitStack) -> None:
        """Copy a column-major array to a temporary file, because seeking in a compressed stream is slow."""
        if self._by_columns:
            copy = stack.enter_context(tempfile.TemporaryFile())
            with damage(self._source):
                shutil.copyfileobj(self._stream, copy)
            self._stream, self._start = copy, 0

    def read(self, rows: int) -> NDArray[Any]:
        """The next rows, at most this many; none at the end."""
        rows = min(rows, self.shape[0] - self._row)
        with damage(self._source):
            array = self._read_columns(rows) if self._by_columns else self._read_rows(rows)
            self._row += rows
            if self._row == self.shape[0] and not self._by_columns and self._stream.read(1):
                # Reading to the end also verifies the checksum of a zip member.
                raise ValueError("more data than the header says")
        return array

    def _read_rows(self, rows: int) -> NDArray[Any]:
        shape = (rows, *self.shape[1:])
        return np.frombuffer(self._exactly(math.prod(shape) * self.dtype.itemsize), dtype=self.dtype).reshape(shape)

    def _read_columns(self, rows: int) -> NDArray[Any]:
        n_rows, n_columns = self.shape
        array = np.empty((rows, n_columns), dtype=self.dtype)
        for column in range(n_columns):
            self._stream.seek(self._start + (column * n_rows + self._row) * self.dtype.itemsize)
            array[:, column] = np.frombuffer(self._exactly(rows * self.dtype.itemsize), dtype=self.dtype)
        return array

    def _exactly(self, n_bytes: int) -> bytes:
        data = self._stream.read(n_bytes)
        if len(data) != n_bytes:
            raise EOFError(f"{n_bytes - len(data)} bytes are missing")
        return data


def _layout(
    array: _NpyStream | NDArray[Any], *, source: str, name: str, is_logits: bool, names: Sequence[str] | None, hint: str
) -> Layout:
    """Layout of a matrix (n, K) with this name, and with class names if there are any."""
    shape, dtype = array.shape, array.dtype
    if len(shape) != 2:
        text = f"the array has shape {shape}; predictions must have shape (n, K), one row per prediction."
        raise defect("predictions_shape", source, text, column=f"array {name}")
    if dtype.kind not in "biuf":
        text = f"the array has dtype {dtype}; predictions must be real numbers."
        raise defect("predictions_not_numeric", source, text, column=f"array {name}")
    check_classes(shape[1], source)
    titles = names if names is not None and len(names) == shape[1] else range(shape[1])
    return Layout(
        source=source,
        is_logits=is_logits,
        class_names=tuple(map(str, range(shape[1]))) if names is None else tuple(names),
        columns=tuple(f"class {title}" for title in titles),
        label_column="array labels",
        id_column="array ids",
        logits_hint=hint,
        n_rows=shape[0],
    )


def _check_vector(array: _NpyStream | NDArray[Any], n_rows: int | None, *, source: str, name: str) -> None:
    """Refuse labels, ids or class names that are not n_rows numbers or texts; None for any length."""
    wrong_length, wrong_value, kinds = _VECTORS.get(name, _TAGS)
    column = f"array {name}"
    if len(array.shape) != 1:
        text = f"the array has shape {array.shape}; {name} must have one dimension."
        text += " Several labels for a row are not supported." if name == "labels" else ""
        raise defect("predictions_shape", source, text, column=column)
    if n_rows is not None and array.shape[0] != n_rows:
        what = "classes; give one name for each class" if name == "class_names" else "rows; give one for each row"
        text = f"{array.shape[0]} {name} for {n_rows} {what}."
        raise defect(wrong_length, source, text, column=column)
    if array.dtype.kind not in kinds:
        text = f"the array has dtype {array.dtype}; {name} must be integers or text."
        raise defect(wrong_value, source, text, column=column)
    if name == "class_names" and array.shape[0] * array.dtype.itemsize > _MAX_NAMES_BYTES:
        text = f"the names take {array.shape[0] * array.dtype.itemsize} bytes; the limit is {_MAX_NAMES_BYTES}."
        raise defect(wrong_value, source, text, column=column)
    if array.dtype.kind in "US" and array.dtype.itemsize > _MAX_TEXT_BYTES:
        text = f"the texts take {array.dtype.itemsize} bytes each; the limit is {_MAX_TEXT_BYTES}."
        raise defect(wrong_value, source, text, column=column)


def _texts(values: NDArray[Any]) -> list[str]:
    return [item.decode() if isinstance(item, bytes) else str(item) for item in values.tolist()]


def _named(labels: NDArray[Any]) -> NDArray[Any] | list[str]:
    return _texts(labels) if labels.dtype.kind in "US" else labels


def npy_rows(file: IO[bytes], *, source: str, kind: Kind | None, chunk_rows: int) -> Iterator[RawRows]:
    """Rows of a file with one array (n, K): probabilities, unless `kind` is logits."""
    n_bytes = file.seek(0, 2)
    file.seek(0)
    name = kind or "probs"
    values = _NpyStream(file, n_bytes, source=source, name=name)
    is_logits = kind == "logits"
    layout = _layout(values, source=source, name=name, is_logits=is_logits, names=None, hint=HINT_KIND)
    chunk_rows = rows_of_chunk(chunk_rows, values.row_bytes)
    for start in range(0, values.shape[0], chunk_rows):
        yield RawRows(layout, start, values.read(chunk_rows))


def npz_rows(file: IO[bytes], *, source: str, kind: Kind | None, chunk_rows: int) -> Iterator[RawRows]:
    """Rows of an archive with `logits` or `probs` (n, K).

    Optional are `labels`, `ids` and `tag_<key>` (n,), and `class_names` (K,).
    """
    with ExitStack() as stack:
        with damage(source):
            archive = stack.enter_context(zipfile.ZipFile(file))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        named_tags = [name for name in members if name.startswith(COLUMN_PREFIX)]
        known = [info for name, info in members.items() if name in ("probs", "logits", *_VECTORS, *named_tags)]
        check_expansion(sum(info.file_size for info in known), file.seek(0, 2), source)

        def stream(name: str) -> _NpyStream | None:
            if name not in members:
                return None
            with damage(source):
                member = stack.enter_context(archive.open(members[name]))
            return _NpyStream(member, members[name].file_size, source=source, name=name)

        name = next((name for name in ((kind,) if kind else ("logits", "probs")) if name in members), "")
        values = stream(name)
        if values is None:
            wanted = kind or "probs or logits"
            text = f"no array {wanted}; found {', '.join(sorted(members)) or 'nothing'}. Name the predictions {wanted}."
            raise defect("predictions_missing_data", source, text)
        labels, ids, titles = stream("labels"), stream("ids"), stream("class_names")
        names = None
        if titles is not None:
            # Before the names are read: as many as columns, which are limited.
            n_classes = values.shape[1] if len(values.shape) == 2 else None
            if n_classes is not None:
                check_classes(n_classes, source)
            _check_vector(titles, n_classes, source=source, name="class_names")
            with damage(source):
                names = _texts(titles.read(titles.shape[0]))
        is_logits = name == "logits"
        layout = _layout(values, source=source, name=name, is_logits=is_logits, names=names, hint=_HINT_ARRAY)
        values.spool(stack)
        tags = {name: found for name in named_tags if (found := stream(name)) is not None}
        vectors = {"labels": labels, "ids": ids, **tags}
        for title, vector in vectors.items():
            if vector is not None:
                _check_vector(vector, layout.n_rows, source=source, name=title)
        chunk_rows = rows_of_chunk(
            chunk_rows, sum(each.row_bytes for each in (values, *vectors.values()) if each is not None)
        )
        for start in range(0, values.shape[0], chunk_rows):
            with damage(source):
                named = None if labels is None else _named(labels.read(chunk_rows))
                raw_ids = None if ids is None else _texts(ids.read(chunk_rows))
                raw_tags = {
                    name.removeprefix(COLUMN_PREFIX): _texts(each.read(chunk_rows)) for name, each in tags.items()
                }
            yield RawRows(layout, start, values.read(chunk_rows), named, raw_ids, tags=raw_tags)


def array_rows(
    values: ArrayLike,
    *,
    source: str,
    kind: Kind,
    labels: ArrayLike | None,
    ids: ArrayLike | None,
    tags: Mapping[str, ArrayLike],
    class_names: Sequence[str] | None,
    hint: str,
    chunk_rows: int,
) -> Iterator[RawRows]:
    """Rows of arrays in memory, as views if possible."""

    def vector(entries: ArrayLike | None, name: str) -> NDArray[Any] | None:
        if entries is None:
            return None
        array = np.asarray(entries)
        if array.dtype.hasobject and array.ndim == 1:
            array = np.array(list(map(plain_text, array.tolist())), dtype=np.str_)
        _check_vector(array, layout.n_rows, source=source, name=name)
        return array

    try:
        matrix = np.asarray(values)
    except ValueError as error:
        text = "the rows differ in length; predictions must have shape (n, K)."
        raise defect("predictions_shape", source, text, column=f"array {kind}") from error
    is_logits = kind == "logits"
    layout = _layout(matrix, source=source, name=kind, is_logits=is_logits, names=class_names, hint=hint)
    raw_labels, raw_ids = vector(labels, "labels"), vector(ids, "ids")
    raw_tags = {
        key: found for key, each in tags.items() if (found := vector(each, f"{COLUMN_PREFIX}{key}")) is not None
    }
    for start in range(0, len(matrix), chunk_rows):
        chunk = slice(start, start + chunk_rows)
        named = None if raw_labels is None else _named(raw_labels[chunk])
        texts = {key: _texts(each[chunk]) for key, each in raw_tags.items()}
        ids_of = None if raw_ids is None else _texts(raw_ids[chunk])
        yield RawRows(layout, start, matrix[chunk], named, ids_of, tags=texts)
