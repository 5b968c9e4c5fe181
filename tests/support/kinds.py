"""Kinds of predictions that people bring: classifiers of several families, numbers of classes and degenerate rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from darksight_core.rows.simplex import Floats, log_softmax

__all__ = ["KINDS", "KindOfData"]

Labelled: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]
Draw: TypeAlias = Callable[[int, np.random.Generator], Labelled]


@dataclass(frozen=True)
class KindOfData:
    """Predictions of one kind.

    Parameters
    ----------
    draw
        Independent rows (n, K) with their labels (n,), of a fixed distribution.
    rows, labelled
        Rows to fit, and labelled rows for the other commands.
    warnings
        How the warnings of a fit begin, in their order.
    pool
        Rows that stand for the whole population.
    options
        Options of the fit.
    """

    draw: Draw
    rows: int = 700
    labelled: int = 600
    warnings: tuple[str, ...] = ()
    pool: int = 2_000
    options: tuple[str, ...] = ()


def _inputs(n: int, classes: int, rng: np.random.Generator, shares: Floats | None = None) -> tuple[Floats, Any]:
    """Points of Gaussian clusters that overlap, (n, 6), and their classes."""
    centres = 1.6 * np.random.default_rng(7).normal(size=(classes, 6))
    labels = rng.choice(classes, size=n, p=shares)
    return centres[labels] + rng.normal(size=(n, 6)), labels


def _classifier(model: Any, classes: int = 4, *, copies: int = 1, train: int = 800, shares: Any = None) -> Draw:
    """Predictions of a scikit-learn classifier on new inputs; copies of its features make naive Bayes overconfident."""

    @cache
    def trained() -> Any:
        inputs, labels = _inputs(train, classes, np.random.default_rng(1), shares)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(np.tile(inputs, copies), labels)

    def draw(n: int, rng: np.random.Generator) -> Labelled:
        inputs, labels = _inputs(n, classes, rng, shares)
        return trained().predict_proba(np.tile(inputs, copies)).astype(np.float32), labels

    return draw


def _softmax(classes: int, predicted: int | None = None, *, sharpness: float = 6.0) -> Draw:
    """A calibrated softmax classifier of many classes, of which it predicts the first `predicted`."""
    likely = classes if predicted is None else predicted

    def draw(n: int, rng: np.random.Generator) -> Labelled:
        centre = rng.integers(likely, size=n)
        logits = rng.normal(size=(n, classes))
        logits[:, likely:] -= 5.0
        logits[np.arange(n), centre] += np.log(classes) + sharpness * rng.beta(2.0, 1.0, size=n)
        logits[np.arange(n), (centre + 1) % likely] += 0.5 * np.log(classes) + 3.0 * rng.beta(1.0, 2.0, size=n)
        probs = np.exp(log_softmax(logits))
        labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
        return probs.astype(np.float32), labels

    return draw


def _duplicated(n: int, rng: np.random.Generator) -> Labelled:
    """Rows of only twenty contents, as a file of rounded or cached predictions has."""
    contents = _softmax(4)(20, np.random.default_rng(3))[0]
    probs = contents[rng.integers(20, size=n)]
    return probs, (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


KINDS: dict[str, KindOfData] = {
    "softmax net": KindOfData(_classifier(MLPClassifier((24,), max_iter=60, random_state=0))),
    "boosting": KindOfData(_classifier(HistGradientBoostingClassifier(max_iter=15, random_state=0))),
    "forest": KindOfData(_classifier(RandomForestClassifier(25, random_state=0))),
    "tree": KindOfData(
        _classifier(DecisionTreeClassifier(random_state=0)),
        warnings=("duplicated rows", "hard probabilities", "tied p-values"),
    ),
    "naive Bayes": KindOfData(_classifier(GaussianNB(), copies=8)),
    "binary": KindOfData(_classifier(LogisticRegression(), 2)),
    "binary 1:1000": KindOfData(
        _classifier(LogisticRegression(), 2, train=4_000, shares=np.array([0.999, 0.001])),
    ),
    "K = 5": KindOfData(_softmax(5)),
    "K = 20": KindOfData(_softmax(20)),
    "K = 80": KindOfData(_softmax(80), warnings=("classes without rows",)),
    "K = 1000": KindOfData(
        _softmax(1_000),
        warnings=("classes without rows", "poor map", "classes without a place"),
        rows=450,
        labelled=200,
        pool=500,
        options=("--starts", "1"),
    ),
    "40 rows": KindOfData(_softmax(5), rows=40, warnings=("few calibration rows",)),
    "duplicated rows": KindOfData(_duplicated, warnings=("duplicated rows", "tied p-values")),
    "classes absent": KindOfData(_softmax(10, 7), warnings=("classes without rows",)),
}
"""The kinds by name."""
