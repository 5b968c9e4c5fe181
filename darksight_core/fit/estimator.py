"""DarkSight as a scikit-learn estimator, for notebooks and pipelines: from rows to a map, a bundle and explanations."""

from __future__ import annotations

import tempfile
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted, validate_data

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.bundle.summary import as_html
from darksight_core.bundle.thumbnail import thumbnail
from darksight_core.fit.config import FitConfig, Method, ScaleRule
from darksight_core.fit.map.fitting import MapFit, fit_map, place_rows
from darksight_core.fit.pipeline import fit_bundle
from darksight_core.map.student import SoftmaxStudent, Student
from darksight_core.predictions import from_arrays
from darksight_core.rows.frames import Frame, read_frame
from darksight_core.rows.simplex import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from darksight_core.pictures.notebook import MapWidget

__all__ = ["DarkSight"]

_HINT = 'If these are logits, use DarkSight(input="logits").'


class DarkSight(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A map of a classifier's predictions: each row of probabilities becomes a point in the plane.

    Parameters
    ----------
    input
        What the columns of X are: class probabilities (`probs`) or `logits`.
    method
        `fast`, `paper` or `svd`; see `FitConfig`.
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
        Epochs of `paper`.
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

    def fit(self, X: Any, y: Any = None) -> DarkSight:
        """Fit the map to rows X (n, K).

        Parameters
        ----------
        X
            Probabilities or logits, (n, K). Or a table, such as a data frame of pandas or polars or an Arrow table,
            with a column for each class: its names are the classes of the bundle, and `transform`, `fit_transform` and
            `predict_proba` of a table return a table of the same kind.
        y
            True classes (n,), if they are known. The map ignores them; `bundle` and `plot` use them.
        """
        self._fit(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the map and return the points (n, 2) of its rows."""
        return self._points_like(self._fit(X, y), self.embedding_)

    def transform(self, X: Any) -> Any:
        """Points (n, 2) of rows X (n, K), each by solving its own two-dimensional problem."""
        check_is_fitted(self)
        table = self._table(X)
        return self._points_like(table, self._place(X, table))

    def predict_proba(self, X: Any) -> Any:
        """The student's class probabilities (n, K) at the points of X: what the map says about each row."""
        check_is_fitted(self)
        table = self._table(X)
        probs = np.exp(self.student_.log_posterior(self._place(X, table)))
        if table is None:
            return probs
        return table.like({f"prob_{name}": probs[:, k] for k, name in enumerate(table.class_names)})

    def score_samples(self, X: Any) -> Floats:
        """log P(y; θ) of each row (n,): low where predictions are unusual."""
        check_is_fitted(self)
        if isinstance(self.student_, SoftmaxStudent):
            raise ValueError("method svd has no density on the map; fit with method='fast' to score rows")
        return self.student_.log_density(self._place(X, self._table(X)))

    def bundle(self, path: str | Path | None = None, *, overwrite: bool = False) -> Bundle:
        """A bundle of the fitted rows, for `Scorer.of` and for the service.

        A part of the rows must calibrate p-values and may not be fitted, so its map is fitted to the other rows and is
        not the map of `transform`.

        Parameters
        ----------
        path
            File to write; by default none.
        overwrite
            Whether an existing file may be replaced.
        """
        check_is_fitted(self)
        predictions = from_arrays(self._probs, labels=self._labels, class_names=self._class_names, source="X")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "bundle.safetensors") if path is None else path
            fit_bundle(predictions, out, config=self._config(), overwrite=overwrite)
            return read_bundle(out)

    @overload
    def plot(self, *, interactive: Literal[False] = False) -> Figure: ...

    @overload
    def plot(self, *, interactive: Literal[True]) -> MapWidget: ...

    def plot(self, *, interactive: bool = False) -> Figure | MapWidget:
        """The map: points by predicted class, crosses where the prediction is not the label.

        Parameters
        ----------
        interactive
            A widget for notebooks, with hover and lasso, in place of a picture; needs the extra `notebook`.
        """
        check_is_fitted(self)
        if isinstance(self.student_, SoftmaxStudent):
            raise ValueError("method svd has no density on the map; fit with method='fast' to draw it")
        rows = from_arrays(self._probs, labels=self._labels, class_names=self._class_names, source="X")
        predicted, names = rows.probs.argmax(axis=1), rows.class_names
        if interactive:
            from darksight_core.pictures.notebook import MapWidget

            return MapWidget(
                self.embedding_, predicted, rows.labels, class_names=names, probs=rows.probs, student=self.student_
            )
        from darksight_core.pictures.map_picture import draw_map

        title = f"{len(rows):,} predictions on the map"
        return draw_map(self.student_, self.embedding_, predicted, rows.labels, names, title=title)

    def _html_repr(self) -> str:
        """The diagram of scikit-learn and, of a fitted map, a small picture; Jupyter shows it."""
        diagram: str = super()._html_repr()
        if not hasattr(self, "embedding_") or isinstance(self.student_, SoftmaxStudent):
            return diagram
        predicted = self._probs.argmax(axis=1)
        facts = [
            ("classes", f"{self._probs.shape[1]:,}"),
            ("rows", f"{len(self._probs):,}" + ("" if self._labels is None else ", with labels")),
            ("objective", f"{self.history_[-1]:.4g}"),
        ]
        picture = thumbnail(self.student_, self.embedding_, predicted)
        return diagram + as_html("Map of the fitted rows", facts, picture)

    @property
    def _n_features_out(self) -> int:
        return 2

    def _table(self, X: Any) -> Frame | None:
        """X as a table, if it is one."""
        return read_frame(X, logits=self.input == "logits")

    def _place(self, X: Any, table: Frame | None) -> Floats:
        return place_rows(self._rows(X, table, reset=False), self._map, self._config())

    def _points_like(self, table: Frame | None, points: Floats) -> Any:
        """Points as a table, unless `set_output` says what they are."""
        if table is None or _get_output_config("transform", self)["dense"] != "default":
            return points
        return table.like(dict(zip(self.get_feature_names_out(), points.T, strict=True)))

    def _fit(self, X: Any, y: Any) -> Frame | None:
        table = self._table(X)
        rows = self._rows(X, table, reset=True)
        self._class_names = None if table is None else table.class_names
        if rows.shape[1] < 2:
            raise ValueError("a map needs at least two classes, but X has n_features = 1")
        config = self._config()
        fitted = fit_map(rows, config)
        self.student_: Student | SoftmaxStudent = fitted.student
        self.history_ = fitted.history
        # Points as `transform` gives them, so that fitted and new rows stand where the same rule puts them.
        self._map: MapFit = fitted
        self._probs, self._labels = rows, y
        self.embedding_: Floats = fitted.points if config.method == "paper" else place_rows(rows, fitted, config)
        return table

    def _rows(self, X: Any, table: Frame | None, *, reset: bool) -> NDArray[np.float32]:
        if self.input not in ("probs", "logits"):
            raise ValueError(f"input is {self.input!r}; it must be 'probs' or 'logits'")
        given = X if table is None else table.selected
        checked = validate_data(
            self, given, reset=reset, dtype=(np.float64, np.float32), ensure_min_samples=2 if reset else 1
        )
        if checked.shape[1] < 2:
            raise ValueError("a map needs at least two classes, but X has n_features = 1")
        return from_arrays(checked, kind=self.input, source="X", logits_hint=_HINT).probs

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
