"""The first layout of the classes."""

from __future__ import annotations

import numpy as np
import torch

from darksight_core.fit.map.layout import layout_classes
from darksight_core.fit.map.placement import rows_of
from darksight_core.rows import simplex


def test_confused_classes_are_neighbours() -> None:
    """Of 12 classes in pairs that are confused with each other, the nearest of each is its partner."""
    rng = np.random.default_rng(0)
    labels = rng.integers(12, size=600)
    scores = rng.normal(size=(600, 12))
    scores[np.arange(600), labels] += 6.0
    scores[np.arange(600), labels ^ 1] += 4.0
    rows = rows_of(torch.tensor(simplex.log_softmax(scores).T, dtype=torch.float32))

    layout = layout_classes(rows, torch.ones(600), 2, torch.Generator().manual_seed(0), lambda: None)

    distance = torch.cdist(layout.transpose(1, 2), layout.transpose(1, 2)) + 1e6 * torch.eye(12)
    assert (distance.argmin(dim=2) == (torch.arange(12) ^ 1)).all()


def test_classes_that_are_never_confused_have_a_finite_layout() -> None:
    """One-hot rows, and a class that no row has, give distinct places."""
    rows = rows_of(torch.log(torch.eye(4)[:, [0, 1, 2, 0]].clamp_min(1e-8)))

    layout = layout_classes(rows, torch.ones(4), 1, torch.Generator().manual_seed(0), lambda: None)

    assert torch.isfinite(layout).all()
    assert (torch.pdist(layout[0].T) > 0.1).all()
