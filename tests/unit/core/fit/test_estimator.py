"""The estimator keeps scikit-learn's conventions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from darksight_core import DarkSight, Scorer, read_bundle
from darksight_core.rows.simplex import log_probs
from tests.support.builders import make_probs


@pytest.fixture
def probs() -> NDArray[np.float32]:
    """400 rows of 5 classes."""
    return make_probs()


def test_scikit_learns_own_checks_pass() -> None:
    """Every check of scikit-learn's suite passes on logits; none is exempted."""
    results = check_estimator(DarkSight(input="logits"), on_skip=None, on_fail=None)

    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert failed == {}
    assert sum(result["status"] == "passed" for result in results) > 30


def test_posterior_and_density_follow_the_points(probs: NDArray[np.float32]) -> None:
    """predict_proba and score_samples are the student's answers at the points of transform."""
    estimator = DarkSight().fit(probs)

    points = estimator.transform(probs)
    student = estimator.student_

    np.testing.assert_allclose(estimator.predict_proba(probs), np.exp(student.log_posterior(points)))
    np.testing.assert_allclose(estimator.score_samples(probs), student.log_density(points))  # type: ignore[union-attr]
    assert (estimator.predict_proba(probs).argmax(axis=1) == probs.argmax(axis=1)).all()


def test_logits_and_probabilities_say_the_same(probs: NDArray[np.float32]) -> None:
    """A map fitted to probabilities places the logits of the same rows at the same points."""
    estimator = DarkSight().fit(probs)
    points = estimator.transform(probs)

    estimator.set_params(input="logits")

    np.testing.assert_allclose(estimator.transform(log_probs(probs) + 3.0), points, atol=1e-3)


def test_clone_and_pipeline(probs: NDArray[np.float32]) -> None:
    """Parameters survive a clone, and output columns have names."""
    estimator = DarkSight(dof=3.0, temperature=2.0)

    assert clone(estimator).get_params() == estimator.get_params()
    assert list(make_pipeline(estimator).fit(probs)[-1].get_feature_names_out()) == ["darksight0", "darksight1"]


def test_rows_off_the_simplex_are_refused(probs: NDArray[np.float32]) -> None:
    """A defective row is named."""
    bad = probs.copy()
    bad[7, 2] = -0.5

    with pytest.raises(ValueError, match="row 7"):
        DarkSight().fit(bad)


def test_logits_taken_for_probabilities_name_the_real_parameter() -> None:
    """The hint is about the estimator, not about another function."""
    with pytest.raises(ValueError, match=r'use DarkSight\(input="logits"\)'):
        DarkSight().fit(np.random.default_rng(0).normal(size=(50, 4)))


def test_a_bundle_comes_straight_from_the_estimator(probs: NDArray[np.float32], tmp_path: Path) -> None:
    """With the labels of the fit and the classes of its table, in memory or in a file; the scorer takes it."""
    labels = probs.argmax(axis=1)
    table = pl.DataFrame({f"prob_{name}": probs[:, k] for k, name in enumerate("abcde")})
    estimator = DarkSight().fit(table, labels)

    bundle = estimator.bundle(str(tmp_path / "model.safetensors"))

    assert read_bundle(tmp_path / "model.safetensors").version == bundle.version == estimator.bundle().version
    assert (bundle.reference.labels == bundle.reference.predicted).all()
    assert bundle.class_names == tuple("abcde")
    assert Scorer.of(bundle, compiled=False).score(probs).valid.all()


def test_a_picture_comes_straight_from_the_estimator(probs: NDArray[np.float32], tmp_path: Path) -> None:
    """With a cross for each wrong prediction."""
    labels = probs.argmax(axis=1)
    labels[:7] = (labels[:7] + 1) % 5

    figure = DarkSight().fit(probs, labels).plot()

    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000
    assert 7 in {len(drawn.get_offsets()) for drawn in figure.axes[0].collections if hasattr(drawn, "get_offsets")}


def test_svd_has_points_but_no_density(probs: NDArray[np.float32]) -> None:
    """The closed form places rows and says why it cannot score them."""
    estimator = DarkSight(method="svd").fit(probs)

    np.testing.assert_allclose(estimator.transform(probs), estimator.embedding_, atol=1e-6)
    with pytest.raises(ValueError, match="no density"):
        estimator.score_samples(probs)


def test_a_notebook_shows_the_diagram_and_the_map(probs: NDArray[np.float32]) -> None:
    """The HTML is scikit-learn's diagram; once fitted, also a picture of the map."""
    estimator = DarkSight()
    before = estimator._repr_mimebundle_()["text/html"]

    after = estimator.fit(probs)._repr_mimebundle_()["text/html"]

    assert "<svg" not in before
    assert before.split("sk-container-id")[0][:20] == after[:20]
    assert "<svg" in after


def test_the_interactive_map_has_the_rows_of_the_fit(probs: NDArray[np.float32]) -> None:
    """`plot(interactive=True)` is a widget over the points of the estimator, with its labels."""
    pytest.importorskip("anywidget", reason="needs anywidget: pip install 'darksight[notebook]'")
    labels = probs.argmax(axis=1)
    estimator = DarkSight().fit(probs, labels)

    widget = estimator.plot(interactive=True)

    np.testing.assert_allclose(np.frombuffer(widget.points, "<f4").reshape(-1, 2), estimator.embedding_, rtol=1e-5)
    assert (np.frombuffer(widget.labels, "<i4") == labels).all()
