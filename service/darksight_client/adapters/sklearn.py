"""A classifier of scikit-learn that abstains where DarkSight rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError
from darksight_core.rows.schema import ScoredBatch
from darksight_core.runtime.policy import ScoringPolicy

__all__ = ["AbstainingClassifier"]


def _has_decision_function(classifier: AbstainingClassifier) -> bool:
    return hasattr(classifier.estimator, "decision_function")


class AbstainingClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier whose `predict` returns `abstention` for rows that the gate of a bundle rejects.

    The bundle is fitted to `predict_proba` of the same classifier on rows that it was not trained on, so the classifier
    is usually trained already: pass `FrozenEstimator(classifier)`, which `fit` leaves as it is.

    Parameters
    ----------
    estimator
        A classifier with `predict_proba`.
    bundle
        A bundle or its file; the classes of the estimator, as text, must be its classes or their numbers. None accepts
        every row.
    abstention
        What `predict` returns for a rejected row.

    Attributes
    ----------
    estimator_
        The fitted classifier.
    classes_
        Its classes; `abstention` is not one of them.
    """

    def __init__(self, estimator: Any, bundle: Bundle | str | Path | None = None, *, abstention: Any = -1) -> None:
        self.estimator = estimator
        self.bundle = bundle
        self.abstention = abstention

    def fit(self, X: Any, y: Any, **parameters: Any) -> AbstainingClassifier:
        """Fit the classifier, unless it is frozen, and load the bundle."""
        self.estimator_ = clone(self.estimator).fit(X, y, **parameters)
        self.classes_: NDArray[Any] = self.estimator_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        bundle = read_bundle(self.bundle, verify=True) if isinstance(self.bundle, str | Path) else self.bundle
        self._policy = None if bundle is None else ScoringPolicy.of(bundle)
        if bundle is not None:
            self._check_classes(bundle.class_names)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Classes (n,), and `abstention` for rows that are rejected."""
        probs = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[probs.argmax(axis=1)]
        if self._policy is None:
            return predicted
        accepted = self._policy.score(probs).accepted
        if np.asarray(self.abstention).dtype.kind != predicted.dtype.kind:
            predicted = predicted.astype(object)
        return np.where(accepted, predicted, self.abstention)

    def decide(self, X: Any) -> ScoredBatch:
        """Scores, decisions and reasons of rows."""
        probs = self.predict_proba(X)
        if self._policy is None:
            raise ConfigError("there is no bundle that decides; give one to AbstainingClassifier")
        return self._policy.score(probs)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probabilities (n, K) of the classifier, of all rows."""
        check_is_fitted(self)
        found: NDArray[Any] = self.estimator_.predict_proba(X)
        return found

    @available_if(_has_decision_function)
    def decision_function(self, X: Any) -> NDArray[Any]:
        """That of the classifier."""
        check_is_fitted(self)
        found: NDArray[Any] = self.estimator_.decision_function(X)
        return found

    def _check_classes(self, names: tuple[str, ...]) -> None:
        given = tuple(str(name) for name in self.classes_.tolist())
        if given != names and tuple(map(str, range(len(given)))) != names:
            raise ConfigError(
                f"the classes of the estimator are {', '.join(given[:5])}, and those of the bundle "
                f"{', '.join(names[:5])}; fit the bundle to predict_proba of this estimator"
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.input_tags = inner.input_tags
        tags.classifier_tags = inner.classifier_tags
        return tags
