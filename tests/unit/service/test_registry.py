"""What serves, as the state file says."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from darksight_client.stubs.darksight.v1 import admin_pb2
from darksight_service.control import Control, deploy_at_start
from darksight_service.metrics import Counts
from darksight_service.metrics.files import list_files, read
from darksight_service.monitor import Monitor
from darksight_service.registry import Registry
from darksight_service.rpc.admin import Admin
from darksight_service.state import Change, apply_change
from darksight_service.statefile import StateFile

from darksight_core.bundle import write_bundle
from darksight_core.scorer import Scorer
from tests.bundles import make_bundle


class Nowhere:
    """A recorder that keeps nothing."""

    def append(self, payload: bytes) -> bool:
        """Always done."""
        return True


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """One model, "m", whose counters are in a folder `counts`."""
    path = tmp_path / "bundle.safetensors"
    write_bundle(path, make_bundle(rows=2_000))
    state_file, counts = StateFile(tmp_path / "registry.json"), Counts(tmp_path / "counts", 0)
    deploy_at_start(state_file, None, tmp_path / "bundles", [("m", path)])
    made = Registry(state_file, tmp_path / "bundles", counts)
    made.refresh()
    return made


def set_alpha(folder: Path, registry: Registry, alpha: float) -> None:
    """Put another level of the outlier rule in force."""
    policy = {"alpha": alpha, "threshold": None, "fail_open": None}
    change = Change("policy", "m", {"version": registry.get("m").version, **policy})
    StateFile(folder / "registry.json").update(lambda state: apply_change(state, change))
    assert registry.refresh()


def live_scorers() -> int:
    """Scorers that are in memory."""
    gc.collect()
    return sum(type(each) is Scorer for each in gc.get_objects())


def test_a_version_that_is_looked_at_gets_no_scorer(tmp_path: Path, registry: Registry) -> None:
    """Listing says what is in a bundle; its arrays are laid out for scoring when it is to score."""
    path = tmp_path / "bundles" / "other.safetensors"
    version = write_bundle(path, make_bundle(rows=400, seed=1))
    change = Change("deploy", "m", {"version": version, "path": path.name, "activate": False})
    state_file = StateFile(tmp_path / "registry.json")
    state_file.update(lambda state: apply_change(state, change))
    registry.refresh()
    before = live_scorers()

    control = Control(registry, state_file, lambda: pytest.fail("no store is needed"))
    listed = Admin(control, Monitor(registry, Nowhere())).list_models(b"", None)  # type: ignore[arg-type]  # not read
    looked_at = live_scorers()
    registry.get("m", version)

    (model,) = admin_pb2.ListModelsResponse.FromString(listed).models
    assert [each.calibration_rows for each in model.versions] == [599, 120]
    assert looked_at == before
    assert live_scorers() == before + 1


def test_a_call_under_the_rule_before_is_no_evidence_against_the_new_one(tmp_path: Path, registry: Registry) -> None:
    """A batch that began under a loose rule and ends under a tight one leaves the evidence about the latter empty."""
    probs = np.random.default_rng(3).dirichlet(np.full(3, 0.4), 3_000)
    set_alpha(tmp_path, registry, 0.5)
    looks = iter([0.01])

    def is_wanted() -> bool:
        # Asked while the batch is judged; the first time the rule changes.
        for alpha in looks:
            set_alpha(tmp_path, registry, alpha)
        return True

    Monitor(registry, Nowhere()).score("m", "", probs, is_wanted=is_wanted)

    (path,) = (path for path in list_files(tmp_path / "counts") if path.name.startswith("model"))
    seen = read(path)
    assert seen.number("alpha") == 0.01
    assert seen.sections["outliers"].sum() > 1_000
    assert (seen.number("drift_rows"), seen.number("drift_outliers")) == (0, 0)
