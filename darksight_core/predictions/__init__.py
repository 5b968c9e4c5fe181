"""Predictions of a classifier, read from files or arrays and checked row by row.

What `read_predictions`, `iter_predictions` and `from_arrays` return is on the simplex as float32, with labels in range
and unique ids. Anything else is refused with a PredictionsError whose code names the defect and whose message
names file, row and column.

files      reads a file, whole or in chunks; checks arrays
dataset    one file or several, read by row number
arrays     .npy, .npz and arrays in memory            tables     .csv and .parquet
raw_rows   rows before they are checked               checks     the rules for rows
labels     the rules for labels and ids               defects    one code for each defect
rows       the checked rows                           split      fit, calibration and test rows
lines      JSON lines                                 tokens     tokens of language models
class_order  whether columns look permuted
sketch     which rows two sets have in common         sizes      how much memory a file may take
"""

from __future__ import annotations

from darksight_core.predictions.checks import CLIP, SUM_EXACT, SUM_LIMIT
from darksight_core.predictions.dataset import Dataset, DatasetFile, find_files, mixed_labels
from darksight_core.predictions.files import from_arrays, iter_lines, iter_predictions, read_predictions
from darksight_core.predictions.raw_rows import Kind, RowProgress
from darksight_core.predictions.rows import Predictions, labels_among
from darksight_core.predictions.tokens import TokenClasses

__all__ = [
    "CLIP",
    "SUM_EXACT",
    "SUM_LIMIT",
    "Dataset",
    "DatasetFile",
    "Kind",
    "Predictions",
    "RowProgress",
    "TokenClasses",
    "find_files",
    "from_arrays",
    "iter_lines",
    "iter_predictions",
    "labels_among",
    "mixed_labels",
    "read_predictions",
]
