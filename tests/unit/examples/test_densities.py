"""Comparison densities: mass one, known parameters, the edge of the simplex."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import dirichlet, multivariate_normal

from darksight_core.errors import ConfigError
from darksight_core.rows.simplex import Floats
from examples.densities import DirichletMixture, MapMixture, RowKde
from tests.support.builders import make_probs


def simplex_grid(steps: int) -> tuple[Floats, float]:
    """Midpoints of a grid on the simplex of three classes, (m, 3), and the area of a cell in p₁, p₂."""
    ticks = (np.arange(steps) + 0.5) / steps
    first, second = (axis.ravel() for axis in np.meshgrid(ticks, ticks))
    inside = first + second < 1.0
    grid = np.stack([first, second, 1.0 - first - second], axis=1)[inside]
    return grid, 1.0 / steps**2


def draw_dirichlet(n: int = 2000) -> Floats:
    """Rows of two Dirichlet densities, 0.3 : 0.7."""
    rng = np.random.default_rng(0)
    split = int(0.3 * n)
    return np.concatenate([rng.dirichlet([20.0, 3.0, 4.0], split), rng.dirichlet([2.0, 6.0, 30.0], n - split)])


def test_dirichlet_mixture_recovers_its_parameters() -> None:
    """Weights are found to 0.03 and concentrations to a fifth."""
    mixture = DirichletMixture.fit(draw_dirichlet(), 2)

    order = np.argsort(mixture.log_weights)

    np.testing.assert_allclose(np.exp(mixture.log_weights[order]), [0.3, 0.7], atol=0.03)
    np.testing.assert_allclose(mixture.alphas[order], [[20.0, 3.0, 4.0], [2.0, 6.0, 30.0]], rtol=0.2)


def test_single_dirichlet_equals_scipys_density() -> None:
    """With one component the log density is scipy's."""
    mixture = DirichletMixture.fit(draw_dirichlet(), 1)
    rows = draw_dirichlet(10)

    expected = [dirichlet(mixture.alphas[0]).logpdf(row) for row in rows]

    np.testing.assert_allclose(mixture.log_density(rows), expected, atol=1e-6)


def test_dirichlet_mixture_integrates_to_one() -> None:
    """The mass on a grid of the simplex is one for K = 2 and K = 3."""
    grid, area = simplex_grid(400)
    ticks = (np.arange(20_000) + 0.5) / 20_000
    pairs = np.random.default_rng(1).dirichlet([3.0, 2.0], 500)

    mass_3 = np.exp(DirichletMixture.fit(draw_dirichlet(), 2).log_density(grid)).sum() * area
    mass_2 = np.exp(DirichletMixture.fit(pairs).log_density(np.stack([ticks, 1.0 - ticks], axis=1))).mean()

    assert mass_3 == pytest.approx(1.0, abs=0.01)
    assert mass_2 == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("kind", [DirichletMixture, RowKde])
def test_densities_of_rows_are_finite_on_one_hot_rows(kind: type[DirichletMixture] | type[RowKde]) -> None:
    """Known rows may be mostly one-hot, new ones too, and usual rows stay denser than foreign ones."""
    probs = make_probs()
    one_hot = np.eye(5, dtype=np.float32)
    known = np.concatenate([probs, np.repeat(one_hot, 100, axis=0)])
    density = kind.fit(known)

    usual, corners, foreign = (
        density.log_density(rows) for rows in (probs, one_hot, np.full((1, 5), 0.2, dtype=np.float32))
    )

    assert np.isfinite(np.concatenate([usual, corners, foreign])).all()
    assert np.median(usual) > foreign[0]
    assert corners.min() > foreign[0]


def test_row_kde_integrates_to_one_on_the_hyperplane() -> None:
    """For K = 2 the kernels have mass one along the line p₁ + p₂ = 1, whose length element is √2 dp₁."""
    density = RowKde.fit(np.random.default_rng(0).dirichlet([8.0, 5.0], 300))
    ticks = np.linspace(-2.0, 3.0, 20_001)

    mass = np.exp(density.log_density(np.stack([ticks, 1.0 - ticks], axis=1))).sum() * (ticks[1] - ticks[0]) * 2**0.5

    assert mass == pytest.approx(1.0, abs=1e-6)


def test_row_kde_finds_a_sensible_bandwidth_and_ignores_copies() -> None:
    """The likelihood of new rows is near its best over all bandwidths, and rows given twice do not change h."""
    rng = np.random.default_rng(0)
    rows, new = rng.dirichlet([8.0, 5.0, 3.0], 400), rng.dirichlet([8.0, 5.0, 3.0], 400)
    density = RowKde.fit(rows)

    best = max(RowKde(rows, h).log_density(new).mean() for h in np.geomspace(1e-3, 1, 40))

    assert density.log_density(new).mean() > best - 0.05
    assert RowKde.fit(np.concatenate([rows, rows])).bandwidth == pytest.approx(density.bandwidth, rel=0.3)
    assert RowKde.fit(np.full((5, 3), 1.0 / 3.0)).bandwidth > 0


def test_map_mixture_chooses_the_number_of_clusters() -> None:
    """Three far clusters make three components, and the density equals the mixture of normals."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]])
    points = np.concatenate([rng.normal(centre, 1.0, size=(200, 2)) for centre in centres])
    mixture = MapMixture.fit(points)

    expected = np.log(np.mean([multivariate_normal(centre, np.eye(2)).pdf(centres) for centre in centres], axis=0))

    assert mixture.mixture.n_components == 3
    np.testing.assert_allclose(mixture.log_density(centres), expected, atol=0.3)


def test_mixtures_of_few_different_rows() -> None:
    """Fewer contents than components, as a decision tree has, are no reason for a warning."""
    rows = np.eye(6)[np.arange(300) % 3]

    assert np.isfinite(DirichletMixture.fit(rows).log_density(rows)).all()
    assert MapMixture.fit(rows[:, :2]).mixture.n_components <= 3


def test_too_few_rows_are_refused() -> None:
    """A density of nothing is an error that says what is missing."""
    with pytest.raises(ConfigError, match="at least two"):
        RowKde.fit(np.full((1, 3), 1.0 / 3.0))
    with pytest.raises(ConfigError, match="4 components"):
        DirichletMixture.fit(np.full((3, 4), 0.25))
    with pytest.raises(ConfigError, match="components need more"):
        MapMixture.fit(np.zeros((5, 2)), components=(3,))
