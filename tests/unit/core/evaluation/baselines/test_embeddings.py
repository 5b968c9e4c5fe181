"""Maps by other methods, and their cache."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.evaluation.baselines.embeddings import Recipe, embed, recipes
from darksight_core.evaluation.classes import class_medians, cluster_monotonicity
from darksight_core.evaluation.neighbourhoods import local_fidelity
from darksight_core.evaluation.progress import Progress
from darksight_core.rows.simplex import log_probs
from tests.support.builders import make_probs

ROWS = make_probs(150, 4)


def test_pca_keeps_the_axes_of_largest_variance() -> None:
    """Closed form: of independent columns of unequal spread the two widest remain, up to sign."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(60, 4))
    rows = np.linalg.qr(noise - noise.mean(axis=0))[0] * [1.0, 5.0, 2.0, 0.1]

    made = embed(Recipe("pca", "prob"), rows)

    np.testing.assert_allclose(np.abs(made.points), np.abs(rows[:, [1, 2]]), atol=1e-9)


def test_tsne_shows_neighbours_together_and_tells_its_progress() -> None:
    """On its map neighbours are far more alike than on a shuffled one, and progress ends at its total."""
    heard: list[Progress] = []

    made = embed(Recipe("tsne", "prob", 10.0), ROWS, report=heard.append)

    log_pi = log_probs(ROWS)
    near = local_fidelity(log_pi, None, made.points, neighbours=[5]).teacher[0]
    shuffled = local_fidelity(log_pi, None, np.random.default_rng(0).permutation(made.points), neighbours=[5]).teacher[
        0
    ]
    assert near < 0.5 * shuffled
    assert heard[-1].done == heard[-1].total
    assert cluster_monotonicity(log_pi, made.points, class_medians(log_pi, made.points)).mean is not None


def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without umap-learn the sentence says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"umap-learn.*darksight\[compare\]"):
        embed(Recipe("umap", "prob"), ROWS)


def test_without_opentsne_scikit_learn_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """t-SNE has two makers, and says which it was."""
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openTSNE" else real(name))

    made = embed(Recipe("tsne", "prob", 10.0), ROWS[:60])

    assert made.library.startswith("scikit-learn")
    assert made.points.shape == (60, 2)


def test_few_rows_are_refused_and_lower_the_perplexity() -> None:
    """Ten rows are too few; thirty make do with a smaller perplexity."""
    with pytest.raises(ConfigError, match="at least 20"):
        embed(Recipe("pca", "prob"), ROWS[:10])

    assert embed(Recipe("pca", "prob", 30.0), ROWS[:31]).recipe.perplexity == 10.0


def test_levels() -> None:
    """quick reads probabilities alone; full sweeps three perplexities over every source."""
    assert recipes("none", ["prob"]) == []
    assert [recipe.key for recipe in recipes("quick", ["prob", "logit"])] == ["pca_prob", "tsne_prob_30"]
    assert len(recipes("full", ["prob", "logit", "features"])) == 15
