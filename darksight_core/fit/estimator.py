"""DarkSight as a scikit-learn estimator, for notebooks and pipelines."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from darksight_core.fit.config import FitConfig, Method, ScaleRule
from darksight_core.fit.map.fitting import MapFit, fit_map, place_rows
from darksight_core.map.student import SoftmaxStudent, Student
from darksight_core.predictions import from_arrays
from darksight_core.simplex import Floats

__all__ = ["DarkSight"]


class DarkSight(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A map of a classifier's predictions: each row of probabilities becomes a point in the plane.

    Parameters
    ----------
    input
        What the columns of X are: class probabilities (`probs`) or `logits`.
    method
        `fast`, `paper`, `paper-cd` or `svd`; see `FitConfig`.
    dof
        Degrees of freedom of the class densities.
    scale
        `fixed`, `shared` or `per-class` scale of the class densities.
    temperature
        Softens rows before they are mapped; above 1 spreads points apart.
    spread_penalty
        Larger values give a more compact map at a higher KL_sym.
    faithful
        Keep every row where the student predicts the same class as the watched classifier.
    epochs
        Epochs of the `paper` methods.
    device
        `auto`, `cpu` or `cuda`.
    random_state
        Seed of the fit.

    Attributes
    ----------
    student_
        θ, a `Student` (or `SoftmaxStudent` for `svd`).
    embedding_
        Points of the fitted rows, (n, 2).
    history_
        The objective as it fell.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.random.default_rng(0).normal(size=(200, 3)) * 4
    >>> points = DarkSight(input="logits", random_state=0).fit_transform(logits)
    >>> points.shape
    (200, 2)
    """

    def __init__(
        self,
        *,
        input: Literal["probs", "logits"] = "probs",
        method: Method = "fast",
        dof: float = 2.0,
        scale: ScaleRule = "fixed",
        temperature: float = 1.0,
        spread_penalty: float = 4e-7,
        faithful: bool = True,
        epochs: int = 1_000,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.input = input
        self.method = method
        self.dof = dof
        self.scale = scale
        self.temperature = temperature
        self.spread_penalty = spread_penalty
        self.faithful = faithful
        self.epochs = epochs
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> DarkSight:
        """Fit the map to rows X (n, K); y is ignored."""
        self._fit(X)
        return self

    def fit_transform(self, X: ArrayLike, y: object = None, **fit_params: Any) -> Floats:
        """Fit the map and return the points (n, 2) of its rows."""
        self._fit(X)
        return self.embedding_

    def transform(self, X: ArrayLike) -> Floats:
        """Points (n, 2) of rows X (n, K), each by solving its own two-dimensional problem."""
        check_is_fitted(self)
        return place_rows(self._rows(X, reset=False), self._map, self._config())

    def predict_proba(self, X: ArrayLike) -> Floats:
        """The student's class probabilities (n, K) at the points of X: what the map says about each row."""
        points = self.transform(X)
        return np.exp(self.student_.log_posterior(points))

    def score_samples(self, X: ArrayLike) -> Floats:
        """log P(y; θ) of each row (n,): low where predictions are unusual."""
        check_is_fitted(self)
        if isinstance(self.student_, SoftmaxStudent):
            raise ValueError("method svd has no density on the map; fit with method='fast' to score rows")
        return self.student_.log_density(self.transform(X))

    @property
    def _n_features_out(self) -> int:
        return 2

    def _fit(self, X: ArrayLike) -> None:
        rows = self._rows(X, reset=True)
        if rows.shape[1] < 2:
            raise ValueError("a map needs at least two classes, but X has n_features = 1")
        config = self._config()
        fitted = fit_map(rows, config)
        self.student_: Student | SoftmaxStudent = fitted.student
        self.history_ = fitted.history
        # Points as `transform` gives them, so that fitted and new rows stand where the same rule puts them.
        self._map: MapFit = fitted
        self.embedding_: Floats = (
            fitted.points if config.method.startswith("paper") else place_rows(rows, fitted, config)
        )

    def _rows(self, X: ArrayLike, *, reset: bool) -> NDArray[np.float32]:
        if self.input not in ("probs", "logits"):
            raise ValueError(f"input is {self.input!r}; it must be 'probs' or 'logits'")
        checked = validate_data(
            self, X, reset=reset, dtype=(np.float64, np.float32), ensure_min_samples=2 if reset else 1
        )
        if checked.shape[1] < 2:
            raise ValueError("a map needs at least two classes, but X has n_features = 1")
        return from_arrays(checked, kind=self.input, source="X").probs

    def _config(self) -> FitConfig:
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = int(check_random_state(seed).randint(2**31))
        return FitConfig(
            method=self.method,
            dof=self.dof,
            scale=self.scale,
            temperature=self.temperature,
            seed=int(seed),
            device=self.device,
            spread_penalty=self.spread_penalty,
            faithful=self.faithful,
            epochs=self.epochs,
        )
