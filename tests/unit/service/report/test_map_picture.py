"""The picture of a map: names of classes stay readable however many there are."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from darksight_service.report.map_picture import draw_map

from darksight_core.map.student import Student


def test_class_names_do_not_overlap() -> None:
    """Among 200 crowded classes the frequent ones are named, and no two names overlap."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(200, 2))
    student = Student(means, np.full(200, 0.1), np.full(200, -np.log(200.0)))
    predicted = rng.integers(200, size=600)
    predicted[:100] = 7

    figure = draw_map(student, means[predicted], predicted, None, [f"class {k}" for k in range(200)], title="")

    labels = figure.axes[0].texts
    boxes = [label.get_window_extent() for label in labels]
    assert "class 7" in {label.get_text() for label in labels}
    assert 20 < len(labels) < 200
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
