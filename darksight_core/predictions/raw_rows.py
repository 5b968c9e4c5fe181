"""Rows as a source gives them, before they are checked.

Every source, file or array, becomes a stream of `RawRows`, so that all formats obey the same rules (`checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from darksight_core.predictions.defects import defect

__all__ = ["MAX_CLASSES", "Kind", "Layout", "RawRows", "RowProgress", "check_classes", "is_text", "plain_text"]

MAX_CLASSES = 32_768
"""Most classes: a bundle stores them as int16."""

_MAX_NAME = 1_024

Kind: TypeAlias = Literal["probs", "logits"]

RowProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with the number of rows read so far, and the number of all rows if it is known."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known about a source before its first row is read.

    Parameters
    ----------
    is_logits
        Whether the values are logits.
    class_names
        K names, checked here.
    columns
        Name of the column of each class in messages, K texts.
    label_column, id_column
        Names of the columns of labels and ids in messages.
    logits_hint
        What to do if the values are logits, for messages.
    n_rows
        Number of rows, if it is known.
    has_tokens
        Whether the values are tokens of a language model; see `darksight_core.predictions.tokens`.
    """

    source: str
    is_logits: bool
    class_names: tuple[str, ...]
    columns: tuple[str, ...]
    label_column: str
    id_column: str
    logits_hint: str
    n_rows: int | None = None
    has_tokens: bool = False

    def __post_init__(self) -> None:
        if len(self.columns) < 2:
            text = f"number of classes is {len(self.columns)}; predictions need at least 2. "
            text += "A binary classifier needs both columns, 1 - p and p. A regression is not supported."
            raise defect("predictions_few_classes", self.source, text, n_classes=len(self.columns))
        if len(self.class_names) != len(self.columns):
            text = f"{len(self.class_names)} class_names for {len(self.columns)} classes; give one name for each class."
            raise defect("predictions_class_names", self.source, text)
        check_classes(len(self.columns), self.source)
        seen: set[str] = set()
        for index, name in enumerate(self.class_names):
            if len(name) > _MAX_NAME or not is_text(name):
                text = f"a class name must have at most {_MAX_NAME} characters, none of them NUL or a lone surrogate."
                raise defect("predictions_class_names", self.source, text, column=f"class {index}")
            if not name or name in seen:
                text = (
                    f"class name {name!r} is {'repeated' if name else 'empty'}; class names must be unique, not empty."
                )
                raise defect("predictions_class_names", self.source, text, column=self.columns[index])
            seen.add(name)

    @property
    def takes_indices(self) -> bool:
        """Whether a label written as an integer may be a class index.

        Not if classes are named "1", "2", ...: then "1" is a name, and "0" as an index would be ambiguous.
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
        Probabilities or logits, (n, K) of any dtype; tokens are objects (n,).
    labels
        Class indices as numbers (n,), or class names or indices as n texts, or None.
    ids
        n texts or None.
    lines
        Line number of each row in a csv file, else None.
    tags
        Values of each key of tags, n texts, empty where a row has none.
    """

    layout: Layout
    first_row: int
    values: NDArray[Any]
    labels: NDArray[Any] | Sequence[str] | None = None
    ids: Sequence[str] | None = None
    lines: Sequence[int] | None = None
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def within(self, rows: range) -> RawRows | None:
        """The rows whose numbers are in a range; None if there are none."""
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
            {key: values[part] for key, values in self.tags.items()},
        )

    def named(self, class_names: Sequence[str]) -> RawRows:
        """The same rows with these class names, if the source has as many classes and no names."""
        numbers = tuple(map(str, range(len(class_names))))
        if self.layout.class_names != numbers:
            return self
        return replace(self, layout=replace(self.layout, class_names=tuple(class_names)))

    def location(self, row: int) -> dict[str, Any]:
        """Where a row of this chunk is, as arguments of `defect`."""
        return {
            "source": self.layout.source,
            "row": self.first_row + row,
            "line": None if self.lines is None else self.lines[row],
        }


def check_classes(n_classes: int, source: str) -> None:
    """Refuse more classes than `MAX_CLASSES`, before anything is allocated for each."""
    if n_classes > MAX_CLASSES:
        text = f"number of classes is {n_classes}; the limit is {MAX_CLASSES}."
        raise defect("predictions_many_classes", source, text, n_classes=n_classes)


def is_text(text: str) -> bool:
    """Whether databases and files can store a text: it has neither NUL nor a lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def plain_text(value: object) -> str:
    """A label or id as text, the same for all sources: 3.0 is "3", None is empty."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode()
    return "" if value is None else str(value)
