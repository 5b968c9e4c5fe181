"""What is wrong with predictions: one stable code for each defect.

A message names the file, the row (from 0; for csv also the line, from 1), the column or class, what was found and what
to do. `details` holds the same facts under `source`, `row`, `line` and `column`, as far as they are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from darksight_core.errors import PredictionsError

__all__ = ["Code", "damage", "defect"]

Code: TypeAlias = Literal[
    "predictions_file_missing",  # there is no such file
    "predictions_directory",  # the path names a directory
    "predictions_file_unreadable",  # the file cannot be opened
    "predictions_unknown_format",  # the file extension is not supported
    "predictions_missing_extra",  # the format needs a package that is not installed
    "predictions_damaged",  # the file is truncated, altered, or not of the format of its extension
    "predictions_pickled",  # the array holds Python objects, which could only be read by running code of the file
    "predictions_empty",  # there are no rows
    "predictions_missing_data",  # the array or the columns with the predictions are missing
    "predictions_shape",  # an array has the wrong number of dimensions
    "predictions_ragged_row",  # a csv row has more or fewer cells than the header
    "predictions_few_classes",  # there are fewer than two classes
    "predictions_many_classes",  # there are more classes than a bundle can hold
    "predictions_expansion",  # the file is far smaller than the arrays that it declares
    "predictions_class_names",  # the number of class names is wrong, or they are not unique
    "predictions_not_numeric",  # a prediction is not a real number
    "predictions_not_finite",  # a prediction is NaN, infinite, or too large for float32
    "predictions_negative",  # a probability is below zero by more than rounding
    "predictions_row_sum",  # the probabilities of a row do not sum to one
    "predictions_logits_sum",  # the logits are probabilities
    "predictions_top_logprobs",  # log-probabilities of tokens are missing, not valid, or of no class
    "predictions_not_supported",  # the rows are of a multi-label classifier
    "predictions_label_length",  # there are more or fewer labels than rows
    "predictions_label_value",  # a label is neither a class index nor a class name
    "predictions_label_range",  # a label is an integer that is not a class index
    "predictions_id_length",  # there are more or fewer ids than rows
    "predictions_id_value",  # an id is empty or not text
    "predictions_tag_value",  # a tag is not valid
    "predictions_id_duplicate",  # two rows have the same id
]


def defect(
    code: Code,
    source: str,
    text: str,
    *,
    row: int | None = None,
    line: int | None = None,
    column: str | None = None,
    **details: object,
) -> PredictionsError:
    """An error with this code whose message says where the defect is.

    >>> print(defect("predictions_row_sum", "a.csv", "the sum is 2.", row=0, line=2))
    a.csv, row 0 (line 2): the sum is 2.
    """
    where = source
    if row is not None:
        where += f", row {row}" + (f" (line {line})" if line is not None else "")
    if column is not None:
        where += f", {column}"
    known = {name: value for name, value in (("row", row), ("line", line), ("column", column)) if value is not None}
    error = PredictionsError(f"{where}: {text}", source=source, **known, **details)
    error.code = code
    return error


@contextmanager
def damage(source: str) -> Iterator[None]:
    """Report any exception of a parser as "predictions_damaged".

    The parsers of zip, deflate, npy and parquet do not document which exceptions they raise. Wrap only calls of them,
    not our own checks.
    """
    try:
        yield
    except PredictionsError:
        raise
    except Exception as error:
        text = f"the file is damaged, truncated or of another format ({type(error).__name__}: {error})."
        raise defect("predictions_damaged", source, f"{text} Write it again.") from error
