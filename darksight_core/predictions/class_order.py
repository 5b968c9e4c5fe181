"""Whether the columns of labelled rows are in another order than their labels.

A file that was written with its classes in another order is valid row by row, but nearly every prediction in it is
wrong. The labels show it: each predicted class then has one label that nearly all its rows have. The label of each
predicted class is learned on every other row, and the accuracy after the exchange measured on the rest, so that few
rows of many classes do not look permuted by chance.
"""

from __future__ import annotations

import numpy as np

from darksight_core.predictions.rows import Predictions

__all__ = ["describe_permutation"]

_LEAST_ROWS = 40
# Accuracy that other columns must add, and must reach. Two of ten classes exchanged cost 0.2.
_GAIN, _GOOD = 0.15, 0.5


def describe_permutation(rows: Predictions) -> str | None:
    """A hint that the columns look permuted, with the accuracies before and after; None if they do not."""
    if rows.labels is None or len(rows) < _LEAST_ROWS:
        return None
    predicted, labels = rows.probs.argmax(axis=1), rows.labels
    counts = np.zeros((rows.n_classes, rows.n_classes), dtype=np.int64)
    np.add.at(counts, (predicted[::2], labels[::2]), 1)
    # A class that is never predicted keeps its label.
    label_of = np.where(counts.any(axis=1), counts.argmax(axis=1), np.arange(rows.n_classes))
    now, then = (float((each[1::2] == labels[1::2]).mean()) for each in (predicted, label_of[predicted]))
    moved = np.flatnonzero(label_of != np.arange(rows.n_classes))
    if then < max(now + _GAIN, _GOOD) or len({*label_of.tolist()}) < rows.n_classes - len(moved) // 2:
        return None
    pairs = [f"{rows.class_names[k]} is {rows.class_names[label_of[k]]}" for k in moved]
    shown = ", ".join(pairs[:2]) + (", ..." if len(pairs) > 2 else "")
    return (
        f"the classes look permuted: {now:.1%} of the predictions are right as the columns are, and {then:.1%} if "
        f"column {shown}"
    )
