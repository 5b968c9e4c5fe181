"""The rules for rows, and the checks that make what `Predictions` promises true.

Every source, file or array, is turned into a stream of `RawRows`. `check` turns each of them into `Predictions` and
`gather` joins those, so that all formats obey the same rules and only a chunk at a time is held beside the result.

A row of probabilities becomes float32 first. Then entries down to `-CLIP` count as rounding and become zero, a sum off
one by at most `SUM_LIMIT` is repaired by division (and counted if it was off by more than `SUM_EXACT`), and entries
below the smallest normal float32 are flushed to zero. Anything worse is refused. Logits are kept as float32 and
π = softmax(logits) is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.predictions.defects import (
    ClassNamesError,
    DuplicateIdError,
    FewClassesError,
    IdValueError,
    LabelRangeError,
    LabelValueError,
    NegativeProbabilityError,
    NotFiniteError,
    NotNumericError,
    RowSumError,
    defect,
)
from darksight_core.predictions.rows import Predictions
from darksight_core.simplex import log_softmax

__all__ = [
    "CLIP",
    "SUM_EXACT",
    "SUM_LIMIT",
    "Kind",
    "Layout",
    "Progress",
    "RawRows",
    "check",
    "gather",
    "plain_text",
]

CLIP = 1e-6
"""Largest negative probability, in size, that is taken for rounding."""

SUM_LIMIT = 1e-3
"""Largest |Σ_k π_k - 1| that is repaired."""

SUM_EXACT = 1e-6
"""Largest |Σ_k π_k - 1| that is left as it is."""

Floats32: TypeAlias = NDArray[np.float32]
Kind: TypeAlias = Literal["probs", "logits"]
Progress: TypeAlias = Callable[[int, int | None], None]

_TINY = np.finfo(np.float32).tiny
_BLOCK_VALUES = 1 << 18


@dataclass(frozen=True, slots=True)
class Layout:
    """What a source says about its rows before the first of them is read.

    Parameters
    ----------
    is_logits
        Whether the values are logits.
    class_names
        K names; checked here.
    columns
        K texts that name the column of each class in messages.
    label_column, id_column
        The same for labels and ids.
    logits_hint
        How to tell this source that its values are logits.
    n_rows
        Number of rows if known.
    """

    source: str
    is_logits: bool
    class_names: tuple[str, ...]
    columns: tuple[str, ...]
    label_column: str
    id_column: str
    logits_hint: str
    n_rows: int | None = None

    def __post_init__(self) -> None:
        if len(self.columns) < 2:
            text = f"predictions of {len(self.columns)} class; at least 2 classes are needed. "
            text += "A binary classifier needs both columns, 1 - p and p."
            raise defect(FewClassesError, self.source, text, n_classes=len(self.columns))
        if len(self.class_names) != len(self.columns):
            text = f"{len(self.class_names)} class_names for {len(self.columns)} classes; give one name for each class."
            raise defect(ClassNamesError, self.source, text)
        met: set[str] = set()
        for index, name in enumerate(self.class_names):
            if not name or name in met:
                text = f"class name {name!r} is {'used twice' if name else 'empty'}; class names must be unique texts."
                raise defect(ClassNamesError, self.source, text, column=self.columns[index])
            met.add(name)

    @property
    def takes_indices(self) -> bool:
        """Whether the text of an integer may mean a class index.

        Not if classes are named "1", "2", …: there "1" is a name, and reading "0" as an index would mix both.
        """
        plain = self.class_names == tuple(map(str, range(len(self.class_names))))
        return plain or not any(name.removeprefix("-").isdecimal() for name in self.class_names)


@dataclass(frozen=True, slots=True)
class RawRows:
    """Unchecked consecutive rows of a source.

    Parameters
    ----------
    first_row
        Number of the first of these rows in the source.
    values
        Probabilities or logits, (n, K) of any dtype.
    labels
        (n,) numbers meaning class indices, or n texts meaning class names or indices, or None.
    ids
        n texts or None.
    lines
        Line of each row in a csv file, else None.
    """

    layout: Layout
    first_row: int
    values: NDArray[Any]
    labels: NDArray[Any] | Sequence[str] | None = None
    ids: Sequence[str] | None = None
    lines: Sequence[int] | None = None

    def within(self, rows: range) -> RawRows | None:
        """Those of these rows whose numbers are in a range, if there are any."""
        low = max(rows.start - self.first_row, 0)
        high = min(rows.stop - self.first_row, len(self.values))
        if low == 0 and high == len(self.values):
            return self
        if low >= high:
            return None
        part = slice(low, high)
        return RawRows(
            self.layout,
            self.first_row + low,
            self.values[part],
            None if self.labels is None else self.labels[part],
            None if self.ids is None else self.ids[part],
            None if self.lines is None else self.lines[part],
        )

    def place(self, row: int) -> dict[str, Any]:
        """Arguments of `defect` for a row of this chunk."""
        return {
            "source": self.layout.source,
            "row": self.first_row + row,
            "line": None if self.lines is None else self.lines[row],
        }


_NOT_A_LABEL, _OUTSIDE = -2, -1


class _LabelIndices(dict[str, int]):
    """Class index of a text, or `_NOT_A_LABEL` or `_OUTSIDE`; filled as texts are met."""

    def __init__(self, layout: Layout) -> None:
        super().__init__({name: index for index, name in enumerate(layout.class_names)})
        self._indices = range(len(layout.class_names))
        self._takes_indices = layout.takes_indices

    def __missing__(self, text: str) -> int:
        name = text.strip()
        if name != text:
            self[text] = self[name]
            return self[text]
        try:
            is_index = self._takes_indices and float(name).is_integer()
        except ValueError:
            is_index = False
        self[text] = _NOT_A_LABEL if not is_index else int(float(name)) if float(name) in self._indices else _OUTSIDE
        return self[text]


def _checked_labels(raw: RawRows) -> NDArray[np.int64] | None:
    labels, layout = raw.labels, raw.layout
    if labels is None:
        return None
    n_classes = len(layout.class_names)
    allowed = f"class indices 0..{n_classes - 1}"
    if isinstance(labels, np.ndarray):
        indices = labels
        wrong = np.floor(labels) != labels if labels.dtype.kind == "f" else np.zeros(len(labels), dtype=np.bool_)
    else:
        names = f"class names ({', '.join(layout.class_names[:5])}{', …' if n_classes > 5 else ''})"
        allowed = f"{allowed} or {names}" if layout.takes_indices else names
        lookup = _LabelIndices(layout)
        indices = np.array([lookup[text] for text in labels], dtype=np.int64)
        wrong = indices == _NOT_A_LABEL
    for kind, bad in ((LabelValueError, wrong), (LabelRangeError, (indices < 0) | (indices >= n_classes))):
        if bad.any():
            row = int(bad.argmax())
            found = str(labels[row]) or "empty"
            text = f"label is {found}; labels must be {allowed}. Leave all labels out if some rows have none."
            raise defect(kind, text=text, column=layout.label_column, **raw.place(row))
    return indices.astype(np.int64)


def plain_text(value: object) -> str:
    """Label or id as a text, alike for all sources: 3.0 is "3", None is empty."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode()
    return "" if value is None else str(value)


def _checked_ids(raw: RawRows, seen: dict[str, None]) -> tuple[str, ...] | None:
    if raw.ids is None:
        return None
    if "" in raw.ids:
        text = "id is empty; give every row an id, or none."
        raise defect(IdValueError, text=text, column=raw.layout.id_column, **raw.place(raw.ids.index("")))
    fresh = dict.fromkeys(raw.ids)
    if len(fresh) == len(raw.ids) and seen.keys().isdisjoint(fresh):
        seen.update(fresh)
        return tuple(raw.ids)
    start = raw.first_row - len(seen)
    rows = dict(zip(seen, range(start, raw.first_row), strict=True))
    row, name = next(
        (row, name)
        for row, name in enumerate(raw.ids)
        if rows.setdefault(name, raw.first_row + row) != raw.first_row + row
    )
    text = f"id {name!r} is already the id of row {rows[name]}; ids must be unique."
    raise defect(DuplicateIdError, text=text, column=raw.layout.id_column, first_row=rows[name], **raw.place(row))


def _softmax(logits: Floats32) -> Floats32:
    probs = np.empty_like(logits)
    step = max(1, _BLOCK_VALUES // logits.shape[1])
    for start in range(0, len(logits), step):
        block = slice(start, start + step)
        probs[block] = np.exp(log_softmax(logits[block].astype(np.float64)))
    return probs


def _repair(raw: RawRows, probs: Floats32) -> int:
    """Bring rows onto the simplex in place; the number of rows that were rescaled."""
    layout = raw.layout
    bad = probs < -CLIP
    if bad.any():
        row, column = divmod(int(bad.argmax()), probs.shape[1])
        text = f"probability is {raw.values[row, column]:g}; probabilities must be >= 0. {layout.logits_hint}"
        raise defect(NegativeProbabilityError, text=text, column=layout.columns[column], **raw.place(row))
    np.maximum(probs, 0.0, out=probs)
    sums = probs.sum(axis=1, dtype=np.float64)
    gaps = np.abs(sums - 1.0)
    if (gaps > SUM_LIMIT).any():
        row = int((gaps > SUM_LIMIT).argmax())
        text = f"probabilities sum to {sums[row]:.6g}; the sum must be 1 within {SUM_LIMIT:g}. "
        text += f"Write more decimals or normalise the rows. {layout.logits_hint}"
        raise defect(RowSumError, text=text, **raw.place(row))
    off = gaps > SUM_EXACT
    probs[off] = probs[off] / sums[off, None]
    return int(off.sum())


def check(raw: RawRows, *, keep_logits: bool, seen: dict[str, None]) -> Predictions:
    """Checked copy of raw rows.

    Parameters
    ----------
    raw
        Left unchanged.
    keep_logits
        Keep the logits, if that is what the values are.
    seen
        Ids of the rows just before these, in order; ids of these rows are added.
    """
    layout = raw.layout
    if raw.values.dtype.kind not in "biuf":
        text = f"values have dtype {raw.values.dtype}; predictions must be real numbers."
        raise defect(NotNumericError, layout.source, text)
    # A float64 beyond float32 becomes inf here and is then refused with its own value.
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array(raw.values, dtype=np.float32, order="C")
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = divmod(int(bad.argmax()), values.shape[1])
        text = f"value is {raw.values[row, column]:g}; predictions must be finite float32 numbers."
        text += " Write a large negative number such as -10000 for minus infinity." if layout.is_logits else ""
        raise defect(NotFiniteError, text=text, column=layout.columns[column], **raw.place(row))
    probs = _softmax(values) if layout.is_logits else values
    n_renormalised = 0 if layout.is_logits else _repair(raw, probs)
    probs[probs < _TINY] = 0.0
    return Predictions(
        probs=probs,
        labels=_checked_labels(raw),
        ids=_checked_ids(raw, seen),
        logits=values if keep_logits and layout.is_logits else None,
        class_names=layout.class_names,
        source=layout.source,
        n_renormalised=n_renormalised,
    )


class _Growing:
    """An array that grows at its end by `realloc`, so that no second copy of it exists."""

    def __init__(self, like: NDArray[Any]) -> None:
        self._array = np.empty_like(like)
        self._used = 0

    def append(self, rows: NDArray[Any]) -> None:
        used = self._used + len(rows)
        if used > len(self._array):
            self._array.resize((max(used, len(self._array) * 9 // 8), *rows.shape[1:]), refcheck=False)
        self._array[self._used : used] = rows
        self._used = used

    def finish(self) -> NDArray[Any]:
        self._array.resize((self._used, *self._array.shape[1:]), refcheck=False)
        return self._array


def gather(chunks: Iterable[RawRows], *, keep_logits: bool, progress: Progress | None) -> Predictions:
    """Check and join all chunks of a source, of which there is at least one."""
    seen: dict[str, None] = {}
    parts: dict[str, _Growing] = {}
    n_rows = n_renormalised = 0
    for raw in chunks:
        rows = check(raw, keep_logits=keep_logits, seen=seen)
        for name, array in (("probs", rows.probs), ("labels", rows.labels), ("logits", rows.logits)):
            if array is not None:
                if name not in parts:
                    parts[name] = _Growing(array)
                parts[name].append(array)
        n_rows += len(rows)
        n_renormalised += rows.n_renormalised
        if progress is not None:
            progress(n_rows, raw.layout.n_rows)
    joined = {name: part.finish() for name, part in parts.items()}
    return Predictions(
        probs=joined["probs"],
        labels=joined.get("labels"),
        ids=None if rows.ids is None else tuple(seen),
        logits=joined.get("logits"),
        class_names=rows.class_names,
        source=rows.source,
        n_renormalised=n_renormalised,
    )
