"""One exception with a stable code for each defect of predictions.

A message names the file, the row (from 0; for csv also the line, from 1), the column or class, what was found and what
to do. `details` holds the same facts under `source`, `row`, `line` and `column`, as far as they are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from darksight_core.errors import PredictionsError

__all__ = [
    "ArrayShapeError",
    "ClassNamesError",
    "DamagedFileError",
    "DirectoryError",
    "DuplicateIdError",
    "EmptyPredictionsError",
    "ExpansionError",
    "FewClassesError",
    "FileMissingError",
    "FileUnreadableError",
    "IdLengthError",
    "IdValueError",
    "LabelLengthError",
    "LabelRangeError",
    "LabelValueError",
    "ManyClassesError",
    "MissingDataError",
    "MissingExtraError",
    "NegativeProbabilityError",
    "NotFiniteError",
    "NotNumericError",
    "NotSupportedError",
    "PickledArrayError",
    "RaggedRowError",
    "RowSumError",
    "TagValueError",
    "UnknownFormatError",
    "damage",
    "defect",
]


class FileMissingError(PredictionsError):
    """There is no such file."""

    code = "predictions_file_missing"


class DirectoryError(PredictionsError):
    """The path names a directory."""

    code = "predictions_directory"


class FileUnreadableError(PredictionsError):
    """The file cannot be opened."""

    code = "predictions_file_unreadable"


class UnknownFormatError(PredictionsError):
    """The file extension is not supported."""

    code = "predictions_unknown_format"


class MissingExtraError(PredictionsError):
    """The format needs a package that is not installed."""

    code = "predictions_missing_extra"


class DamagedFileError(PredictionsError):
    """The file is truncated, altered, or not of the format of its extension."""

    code = "predictions_damaged"


class PickledArrayError(PredictionsError):
    """The array holds Python objects, which could only be read by running code of the file."""

    code = "predictions_pickled"


class EmptyPredictionsError(PredictionsError):
    """There are no rows."""

    code = "predictions_empty"


class MissingDataError(PredictionsError):
    """The array or the columns with the predictions are missing."""

    code = "predictions_missing_data"


class ArrayShapeError(PredictionsError):
    """An array has the wrong number of dimensions."""

    code = "predictions_shape"


class RaggedRowError(PredictionsError):
    """A csv row has more or fewer cells than the header."""

    code = "predictions_ragged_row"


class FewClassesError(PredictionsError):
    """There are fewer than two classes."""

    code = "predictions_few_classes"


class ManyClassesError(PredictionsError):
    """There are more classes than a bundle can hold."""

    code = "predictions_many_classes"


class ExpansionError(PredictionsError):
    """The file is far smaller than the arrays that it declares."""

    code = "predictions_expansion"


class ClassNamesError(PredictionsError):
    """The number of class names is wrong, or they are not unique."""

    code = "predictions_class_names"


class NotNumericError(PredictionsError):
    """A prediction is not a real number."""

    code = "predictions_not_numeric"


class NotFiniteError(PredictionsError):
    """A prediction is NaN, infinite, or too large for float32."""

    code = "predictions_not_finite"


class NegativeProbabilityError(PredictionsError):
    """A probability is below zero by more than rounding."""

    code = "predictions_negative"


class RowSumError(PredictionsError):
    """The probabilities of a row do not sum to one."""

    code = "predictions_row_sum"


class NotSupportedError(PredictionsError):
    """The rows are not of a classifier that gives each input one class, but of a multi-label one."""

    code = "predictions_not_supported"


class LabelLengthError(PredictionsError):
    """There are more or fewer labels than rows."""

    code = "predictions_label_length"


class LabelValueError(PredictionsError):
    """A label is neither a class index nor a class name."""

    code = "predictions_label_value"


class LabelRangeError(PredictionsError):
    """A label is an integer that is not a class index."""

    code = "predictions_label_range"


class IdLengthError(PredictionsError):
    """There are more or fewer ids than rows."""

    code = "predictions_id_length"


class IdValueError(PredictionsError):
    """An id is empty or not text."""

    code = "predictions_id_value"


class TagValueError(PredictionsError):
    """A tag is not valid."""

    code = "predictions_tag_value"


class DuplicateIdError(PredictionsError):
    """Two rows have the same id."""

    code = "predictions_id_duplicate"


Defect = TypeVar("Defect", bound=PredictionsError)


def defect(
    kind: type[Defect],
    source: str,
    text: str,
    *,
    row: int | None = None,
    line: int | None = None,
    column: str | None = None,
    **details: object,
) -> Defect:
    """An exception of this kind whose message says where the defect is.

    >>> print(defect(RowSumError, "a.csv", "the sum is 2.", row=0, line=2))
    a.csv, row 0 (line 2): the sum is 2.
    """
    where = source
    if row is not None:
        where += f", row {row}" + (f" (line {line})" if line is not None else "")
    if column is not None:
        where += f", {column}"
    known = {name: value for name, value in (("row", row), ("line", line), ("column", column)) if value is not None}
    return kind(f"{where}: {text}", source=source, **known, **details)


@contextmanager
def damage(source: str) -> Iterator[None]:
    """Report any exception of a parser as `DamagedFileError`.

    The parsers of zip, deflate, npy and parquet do not document which exceptions they raise. Wrap only calls of them,
    not our own checks.
    """
    try:
        yield
    except PredictionsError:
        raise
    except Exception as error:
        text = f"the file is damaged, truncated or of another format ({type(error).__name__}: {error})."
        raise defect(DamagedFileError, source, f"{text} Write it again.") from error
