"""Outputs of Hugging Face pipelines as rows of probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darksight_core.errors import PredictionsError, did_you_mean

__all__ = ["PipelineOutputError", "pipeline_probs"]


class PipelineOutputError(PredictionsError):
    """An output of a pipeline does not have the classes that are needed."""

    code = "pipeline_output"


def pipeline_probs(outputs: Sequence[Any], class_names: Sequence[str]) -> NDArray[np.float64]:
    """Probabilities (n, K) in the order of the classes, from the output of a classification pipeline with `top_k=None`.

    Parameters
    ----------
    outputs
        A list of `{"label": ..., "score": ...}` for each input, or one such list. Pipelines for text, image and audio
        classification return them, sorted by score.
    class_names
        The classes of the bundle, such as `Scorer.class_names`.

    Raises
    ------
    PipelineOutputError
        If a label is unknown or missing; the latter is so without `top_k=None`.

    >>> pipeline_probs([[{"label": "spam", "score": 0.9}, {"label": "ham", "score": 0.1}]], ["ham", "spam"])
    array([[0.1, 0.9]])
    """
    rows = [outputs] if outputs and isinstance(outputs[0], Mapping) else outputs
    numbers = {name: number for number, name in enumerate(class_names)}
    probs = np.full((len(rows), len(numbers)), np.nan)
    for i, row in enumerate(rows):
        for entry in [row] if isinstance(row, Mapping) else row:
            label = str(entry["label"])
            if label not in numbers:
                hint = did_you_mean(label, class_names)
                raise PipelineOutputError(f"row {i}: {label!r} is not a class of the bundle; {hint}", row=i)
            probs[i, numbers[label]] = entry["score"]
        missing = np.flatnonzero(np.isnan(probs[i]))
        if missing.size:
            name = class_names[int(missing[0])]
            text = f"row {i}: has no score of class {name!r}; call the pipeline with top_k=None"
            raise PipelineOutputError(text, row=i)
    return probs
