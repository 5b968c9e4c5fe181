"""Predictions of a classifier, read from files and checked row by row.

This package hides four file formats behind one promise: what `read_predictions`, `iter_predictions` and `from_arrays`
return lies on the simplex as float32, with labels in range and unique ids; what cannot be brought there within rounding
is refused with an exception of its own that names file, row and column (`defects`). `checks` states the rules.
"""

from __future__ import annotations

from darksight_core.predictions.checks import CLIP, SUM_EXACT, SUM_LIMIT, Kind, Progress
from darksight_core.predictions.defects import (
    ArrayShapeError,
    ClassNamesError,
    DamagedFileError,
    DirectoryError,
    DuplicateIdError,
    EmptyPredictionsError,
    FewClassesError,
    FileMissingError,
    FileUnreadableError,
    IdLengthError,
    IdValueError,
    LabelLengthError,
    LabelRangeError,
    LabelValueError,
    MissingDataError,
    MissingExtraError,
    NegativeProbabilityError,
    NotFiniteError,
    NotNumericError,
    PickledArrayError,
    RaggedRowError,
    RowSumError,
    UnknownFormatError,
)
from darksight_core.predictions.files import from_arrays, iter_predictions, read_predictions
from darksight_core.predictions.rows import Predictions, labels_among
from darksight_core.predictions.stores import Store, StoreFile, find_files, mixed_labels

__all__ = [
    "CLIP",
    "SUM_EXACT",
    "SUM_LIMIT",
    "ArrayShapeError",
    "ClassNamesError",
    "DamagedFileError",
    "DirectoryError",
    "DuplicateIdError",
    "EmptyPredictionsError",
    "FewClassesError",
    "FileMissingError",
    "FileUnreadableError",
    "IdLengthError",
    "IdValueError",
    "Kind",
    "LabelLengthError",
    "LabelRangeError",
    "LabelValueError",
    "MissingDataError",
    "MissingExtraError",
    "NegativeProbabilityError",
    "NotFiniteError",
    "NotNumericError",
    "PickledArrayError",
    "Predictions",
    "Progress",
    "RaggedRowError",
    "RowSumError",
    "Store",
    "StoreFile",
    "UnknownFormatError",
    "find_files",
    "from_arrays",
    "iter_predictions",
    "labels_among",
    "mixed_labels",
    "read_predictions",
]
