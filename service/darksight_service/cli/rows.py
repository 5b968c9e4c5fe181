"""Rows to evaluate a bundle on: with the classes of the bundle, and not among the rows that the map was fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.predictions import Kind, Predictions, read_predictions
from darksight_core.predictions.class_order import describe_permutation
from darksight_core.predictions.sketch import RowSketch, leak
from darksight_core.predictions.split import make_split
from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_service.cli.console import say

__all__ = ["fit_share", "held_out_rows", "read_rows", "values_of"]


def read_rows(path: Path, bundle: Bundle, *, logits: bool = False) -> Predictions:
    """Read a file, with the classes in the order of the bundle; ConfigError unless it has as many classes."""
    kind: Kind | None = "logits" if logits else None
    predictions = read_predictions(path, kind=kind, class_names=bundle.class_names, keep_logits=True)
    if predictions.n_classes != bundle.embedder.n_inputs:
        raise ConfigError(
            f"{path} has {predictions.n_classes} classes, but {bundle.path} was fitted to {bundle.embedder.n_inputs}"
        )
    hint = describe_permutation(predictions)
    if hint is not None:
        say(f"warning: {path}: {hint}")
    return predictions


def values_of(predictions: Predictions, key: str) -> NDArray[np.str_]:
    """Value of a tag for each row, empty without it; ConfigError if the file does not have the tag."""
    if key not in predictions.tags:
        found = (
            f"it has {', '.join(COLUMN_PREFIX + each for each in predictions.tags)}"
            if predictions.tags
            else "it has no tags"
        )
        raise ConfigError(f"{predictions.source} has no column {COLUMN_PREFIX}{key}; {found}")
    return np.array(predictions.tags[key], dtype=np.str_)


def fit_share(bundle: Bundle, predictions: Predictions) -> float:
    """Share of the rows that are fit rows of the bundle, beyond what chance explains."""
    return leak(bundle.splits.fit, RowSketch.of(predictions.row_hashes()))


def held_out_rows(bundle: Bundle, predictions: Predictions) -> Predictions:
    """The calibration and test rows of the file that the bundle was fitted to.

    The split is drawn again by its seed and compared with the hashes in the bundle.
    """
    config = bundle.manifest["fit_config"]
    refusal = ConfigError(
        f"{predictions.source} is not the file that {bundle.path} was fitted to, so it is not known which of its rows "
        "were held out; omit --held-out"
    )
    try:
        fit, calibrate, test = config["shares"]
        split = make_split(len(predictions), config["seed"], (fit, calibrate, test))
    except (ConfigError, KeyError, TypeError, ValueError):
        raise refusal from None
    if RowSketch.of(predictions.row_hashes()[split.fit]).sha256 != bundle.splits.fit.sha256:
        raise refusal
    rows = np.sort(np.concatenate([split.calibrate, split.test]))
    if len(rows) == 0:
        raise ConfigError(f"{bundle.path} was fitted to all rows of {predictions.source}; none is held out")
    return predictions.take(rows)
