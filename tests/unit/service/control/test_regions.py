"""Regions on the map of two classes, which is a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from darksight_service.control.changes import Control
from darksight_service.control.registry import Registry
from darksight_service.control.state_file import StateFile
from darksight_service.metrics.counts import Counts
from darksight_service.store.store import Store

from darksight_core.bundle import write_bundle
from darksight_core.map.student import Student
from tests.support.builders import make_probs
from tests.support.bundles import bundle_of, make_embedder


def test_a_region_on_a_line_is_saved_as_an_interval(tmp_path: Path) -> None:
    """Wherever in the strip it is drawn, it holds all rows between its leftmost and its rightmost corner."""
    student = Student(np.array([[-6.0, 0.0], [6.0, 0.0]]), np.ones(2), np.zeros(2))
    line = np.column_stack([np.linspace(-6.0, 6.0, 41), np.zeros(41)])
    bundle = bundle_of(replace(make_embedder(2), student=student, anchors=line, network_above=1e30), make_probs(300, 2))
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "two.safetensors", bundle)
    state_file = StateFile(tmp_path / "registry.json")
    registry = Registry(state_file, tmp_path / "bundles", Counts(tmp_path / "counts", 0))
    with Store.open(f"sqlite:///{tmp_path / 'points.db'}", auto_upgrade=True) as store:
        control = Control(registry, state_file, lambda: store)
        control.deploy("m", "two.safetensors", activate=True, author="a")

        corners = [(1.0, 0.3), (4.0, 0.5), (4.0, 0.3)]
        preview = control.regions.preview("m", polygon=corners)
        saved = control.regions.save("m", "", "unsure", corners).saved.region

    x = bundle.reference.points[:, 0]
    assert preview.reference_inside == ((x >= 1.0) & (x < 4.0)).sum() > 0
    assert saved.polygon == preview.region.polygon
    assert saved.box[:2] == (1.0, 4.0)
