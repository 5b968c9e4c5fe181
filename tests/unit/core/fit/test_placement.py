from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from darksight_core.fit.map import placement as plane
from darksight_core.fit.probes import place_served
from darksight_core.map.placement import Embedder, _Theta
from darksight_core.rows.simplex import kl_sym, log_probs
from tests.support.maps import extreme_probs, map_probs, random_embedder


def theta_of(embedder: Embedder) -> _Theta:
    """The student as the placement reads it."""
    x, y, offset, spread = embedder.theta()[:, :, None]
    return _Theta(x, y, offset, spread, 0.5 * (embedder.student.dof + 2.0))


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("dof", [1.0, 2.0])
def test_numpy_steps_equal_torch_steps(classes: int, dof: float) -> None:
    """From the same start, the same number of Newton steps ends at the same point."""
    embedder = random_embedder(classes, dof=dof)
    log_pi = log_probs(np.concatenate([map_probs(embedder, 200), extreme_probs(classes)])).T.copy()
    start = embedder.starts.best_of_two(np.exp(log_pi.T), log_pi.T)[0].T.copy()
    theta = plane.Theta.of(embedder.student, dtype=torch.float64)
    rows = plane.Rows(torch.tensor(log_pi), torch.tensor(np.exp(log_pi)))
    bound = torch.tensor([embedder.bound], dtype=torch.float64)

    expected, expected_losses = plane.newton(theta, rows, torch.tensor(start)[None], steps=5, bound=bound)

    points, losses = embedder._newton(theta_of(embedder), np.exp(log_pi), log_pi, start, 5)
    np.testing.assert_allclose(points, expected[0].numpy(), atol=1e-6)
    np.testing.assert_allclose(losses, expected_losses[0].numpy(), atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("dof", [1.0, 2.0])
def test_served_rows_are_placed_as_in_torch(classes: int, dof: float) -> None:
    """Starts, f_p, steps and the way back to the region of a class mean the same to torch."""
    embedder = replace(random_embedder(classes, dof=dof), network_above=0.3)
    probs = np.concatenate([map_probs(embedder, 200, noise=1.5), extreme_probs(classes)])

    points, _ = embedder.embed(log_probs(probs))

    np.testing.assert_allclose(place_served(embedder, log_probs(probs)), points, atol=1e-6)


def test_faithful_placement_equals_torch() -> None:
    """Rows that are led back to the region of their class come as close to it as in torch."""
    embedder = random_embedder(6, refine_steps=20)
    log_pi = log_probs(map_probs(embedder, 400, noise=1.5))
    theta = plane.Theta.of(embedder.student, dtype=torch.float64)
    rows = plane.rows_of(torch.tensor(log_pi.T.copy()))
    bound = torch.tensor([embedder.bound], dtype=torch.float64)
    candidates = torch.tensor(embedder.anchors.T.copy())[None]

    points, _ = plane.place(theta, rows, candidates, steps=20, bound=bound)
    expected = plane.place_faithful(theta, rows, points, candidates, steps=20, bound=bound)[0].numpy().T

    found, losses = embedder.embed(log_pi)
    student = embedder.student
    labels = log_pi.argmax(axis=1)
    np.testing.assert_array_equal(student.log_posterior(found).argmax(axis=1), labels)
    np.testing.assert_array_equal(student.log_posterior(expected).argmax(axis=1), labels)
    assert losses.mean() == pytest.approx(kl_sym(log_pi, student.log_posterior(expected)).mean(), rel=0.03)
