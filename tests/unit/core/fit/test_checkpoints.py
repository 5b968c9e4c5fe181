"""Checkpoints: a step is run once, run again if its file is damaged, and never taken from another fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from darksight_core.errors import ConfigError
from darksight_core.fit.checkpoints import Checkpoints
from darksight_core.fit.distributed.process_group import ProcessGroup
from darksight_core.map.density import Kde


def run(folder: Path, *, resume: bool, seed: int = 0) -> list[str]:
    """Names of the steps that were made, not taken from the folder."""
    made: list[str] = []
    steps = Checkpoints(ProcessGroup(), folder, {"seed": seed}, resume=resume)

    def note(name: str) -> str:
        made.append(name)
        return name

    def density() -> dict[str, Any]:
        note("density")
        return Kde.fit(np.random.default_rng(0).normal(size=(50, 2))).tensors()

    assert steps.once("map", lambda: {note("map"): np.arange(3.0)})["map"].tolist() == [0.0, 1.0, 2.0]
    assert Kde.from_tensors(steps.once("density", density)).bandwidth > 0.0
    assert len(steps.rows("points", range(4, 6), lambda: np.zeros((len(note("points")), 2)))) == 6
    return made


def test_a_finished_step_is_not_done_again(tmp_path: Path) -> None:
    """With resume; without it all begins anew, and another fit's steps are refused."""
    folder = tmp_path / "b.checkpoints"
    everything = ["map", "density", "points"]

    assert run(folder, resume=False) == everything
    assert run(folder, resume=True) == []
    with pytest.raises(ConfigError, match="other rows or options"):
        run(folder, resume=True, seed=1)
    assert run(folder, resume=False) == everything


@pytest.mark.parametrize("name", ["map", "density", "points-4-6"])
def test_a_damaged_step_is_done_again(tmp_path: Path, name: str) -> None:
    """And it alone."""
    folder = tmp_path / "b.checkpoints"
    run(folder, resume=False)
    (folder / f"{name}.safetensors").write_bytes(b"damaged")

    assert run(folder, resume=True) == [name.partition("-")[0]]
    assert run(folder, resume=True) == []
