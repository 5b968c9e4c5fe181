"""f_p: its arithmetic, and weights that do not fit together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.map.network import Network
from darksight_core.rows.simplex import log_probs
from tests.support.maps import extreme_probs, map_probs, random_embedder, random_network


@pytest.mark.parametrize("classes", [2, 4, 30])
def test_network_equals_a_loop_over_its_units(classes: int) -> None:
    """The formula of the module, one number at a time."""
    network = random_network(classes, np.random.default_rng(0))
    rows = np.exp(log_probs(np.concatenate([map_probs(random_embedder(classes), 5), extreme_probs(classes)])))

    expected = []
    for row in rows:
        first, second = sorted(range(classes), key=lambda k: -row[k])[:2]
        log_odds = min(math.log(row[first] / row[second]) / 16.0, 1.0)
        units = [
            max(
                float(network.second[second, j])
                + log_odds * float(network.inputs[-1, j])
                + sum(max(row[k] ** 0.25 - 0.1, 0.0) * float(network.inputs[k, j]) for k in range(classes)),
                0.0,
            )
            for j in range(network.second.shape[1])
        ]
        heads, centre = network.heads[first], network.centres[first]
        expected.append(
            [centre[i] + sum(u * float(h) for u, h in zip(units, heads[:, i], strict=True)) for i in (0, 1)]
        )

    np.testing.assert_allclose(network(rows), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["inputs", "second", "heads", "centres"])
def test_weights_that_do_not_fit_are_refused(name: str) -> None:
    """Every array must have its shape and be finite."""
    tensors = random_network(3, np.random.default_rng(0)).tensors()

    for wrong in (tensors[name][1:], np.full_like(tensors[name], np.inf)):
        with pytest.raises(ConfigError):
            Network(**{**tensors, name: wrong})
