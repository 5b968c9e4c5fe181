"""Checks of labels, ids and tags."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import did_you_mean
from darksight_core.predictions.defects import Code, defect
from darksight_core.predictions.raw_rows import Layout, RawRows, is_text
from darksight_core.rows.tags import COLUMN_PREFIX, find_problem

__all__ = ["check_ids", "check_labels", "check_tags"]

_NOT_A_LABEL, _OUTSIDE = -2, -1


class _LabelIndices(dict[str, int]):
    """Class index of a text, or `_NOT_A_LABEL` or `_OUTSIDE`; texts are added when they are first looked up."""

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


def check_labels(raw: RawRows) -> NDArray[np.int64] | None:
    """Labels of raw rows as class indices, (n,); None without labels."""
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
    defects: tuple[tuple[Code, NDArray[np.bool_]], ...] = (
        ("predictions_label_value", wrong),
        ("predictions_label_range", (indices < 0) | (indices >= n_classes)),
    )
    for code, bad in defects:
        if bad.any():
            row = int(bad.argmax())
            found = str(labels[row]) or "empty"
            text = f"label is {found}; labels must be {allowed}. Omit all labels if some rows have none."
            if isinstance(labels, np.ndarray) and code == "predictions_label_value" and np.isfinite(labels[row]):
                text += " Fractions, as a regression has, are not supported."
            elif not isinstance(labels, np.ndarray) and code == "predictions_label_value":
                # A blank: no list of all names, which the message has.
                text = f"{text} {did_you_mean(found, layout.class_names, ' ')}".rstrip()
            raise defect(code, text=text, column=layout.label_column, **raw.location(row))
    return indices.astype(np.int64)


def check_ids(raw: RawRows, seen: dict[str, None]) -> tuple[str, ...] | None:
    """Ids of raw rows; None without ids.

    Parameters
    ----------
    raw
        The rows.
    seen
        Ids of the rows just before these, in order; ids of these rows are added.
    """
    if raw.ids is None:
        return None
    if "" in raw.ids:
        text = "the id is empty; give every row an id, or no row."
        raise defect("predictions_id_value", text=text, column=raw.layout.id_column, **raw.location(raw.ids.index("")))
    bad = next((row for row, name in enumerate(raw.ids) if not is_text(name)), None)
    if bad is not None:
        text = "the id has a NUL or a lone surrogate, which cannot be stored."
        raise defect("predictions_id_value", text=text, column=raw.layout.id_column, **raw.location(bad))
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
    text = f"id {name!r} is also the id of row {rows[name]}; ids must be unique."
    raise defect(
        "predictions_id_duplicate", text=text, column=raw.layout.id_column, first_row=rows[name], **raw.location(row)
    )


def check_tags(raw: RawRows) -> dict[str, tuple[str, ...]]:
    """Values of each key of tags; equal values are one object."""
    found = {}
    for key, texts in raw.tags.items():
        known = dict.fromkeys(texts)
        for value in known:
            if value and (problem := find_problem({key: value})):
                row = list(texts).index(value)
                column = f"column {COLUMN_PREFIX}{key[:40]}"
                raise defect("predictions_tag_value", text=f"{problem}.", column=column, **raw.location(row))
        same = {value: value for value in known}
        found[key] = tuple(same[text] for text in texts)
    return found
