"""What serves, as the state file says, and what is counted of it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_client.stubs.darksight.v1 import admin_pb2
from darksight_service.control.bundle_files import read_version
from darksight_service.control.changes import Control, deploy_at_start
from darksight_service.control.registry import Registry, Version
from darksight_service.control.state import Change, apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.errors import NotLoadedError
from darksight_service.http.requests import HttpCall
from darksight_service.metrics import Counts
from darksight_service.metrics.files import Snapshot, list_files, read
from darksight_service.operations.models import list_models
from darksight_service.operations.operation import Service
from darksight_service.scoring.service import ScoringService
from darksight_service.store.ids import prediction_id
from darksight_service.store.store import Store

from darksight_core.bundle import write_bundle
from darksight_core.rows.schema import Reason
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle


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
    make_change(folder, registry, "policy", version=registry.get("m").version, **policy)


def make_change(folder: Path, registry: Registry, kind: str, *, model: str = "m", **payload: object) -> None:
    """Change what is served of the model, and serve it."""
    change = Change(kind, model, payload)
    StateFile(folder / "registry.json").update(lambda state: apply_change(state, change))
    assert registry.refresh()


def deploy(folder: Path, registry: Registry, seed: int) -> str:
    """One more version of the model, which does not serve."""
    path = folder / "bundles" / f"{seed}.safetensors"
    version = write_bundle(path, make_bundle(rows=400, seed=seed))
    make_change(folder, registry, "deploy", version=version, path=path.name, activate=False)
    return version


def counted(folder: Path, version: str) -> Snapshot:
    """What was counted of a version."""
    files = map(read, (path for path in list_files(folder / "counts") if path.name.startswith("model")))
    return next(each for each in files if each.labels["version"] == version)


def random_rows(n: int) -> np.ndarray:
    """Rows for the model, of which some are outliers under any rule."""
    return np.random.default_rng(3).dirichlet(np.full(3, 0.4), n)


def in_memory(kind: type) -> int:
    """How many there are."""
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def list_versions(folder: Path, registry: Registry) -> list[admin_pb2.Version]:
    """What ListModels says of the model."""
    control = Control(registry, StateFile(folder / "registry.json"), lambda: pytest.fail("no store is needed"))
    service = Service(
        ScoringService(registry, Nowhere()), control, lambda: pytest.fail("no store is needed"), None, None
    )  # type: ignore[arg-type]  # counts nothing
    (model,) = list_models.handle(service, admin_pb2.ListModelsRequest(), HttpCall()).models
    return list(model.versions)


def test_a_version_that_is_looked_at_gets_no_scorer(tmp_path: Path, registry: Registry) -> None:
    """Listing says what is in a bundle; its arrays are laid out for scoring when it is to score."""
    version = deploy(tmp_path, registry, 1)
    before = in_memory(Scorer)

    listed = list_versions(tmp_path, registry)
    looked_at = in_memory(Scorer)
    registry.get("m", version)

    assert [each.calibration_rows for each in listed] == [599, 120]
    assert looked_at == before
    assert in_memory(Scorer) == before + 1


def test_listing_reads_a_bundle_once_and_keeps_none(tmp_path: Path, registry: Registry) -> None:
    """What is listed of a version is small and never changes; the rest of it is not needed until it is to serve."""
    for seed in range(1, 4):
        deploy(tmp_path, registry, seed)
    before = in_memory(Version)

    first = list_versions(tmp_path, registry)
    after = in_memory(Version)
    for path in (tmp_path / "bundles").glob("*.safetensors"):
        path.unlink()

    assert [each.calibration_rows for each in first] == [599, 120, 120, 120]
    assert after == before
    assert list_versions(tmp_path, registry) == first


def test_of_versions_that_do_not_serve_a_few_are_kept(tmp_path: Path, registry: Registry) -> None:
    """Whoever asks for one old version after the other fills no memory; what may serve next is there all the time."""
    shadow, *old = [deploy(tmp_path, registry, seed) for seed in range(1, 13)]
    first = registry.get("m").version
    make_change(tmp_path, registry, "activate", version=old[0])
    make_change(tmp_path, registry, "shadow", version=shadow)
    wanted = [registry.version("m", version) for version in (first, shadow, old[0])]
    before = in_memory(Version)

    for version in old:
        registry.get("m", version)

    assert in_memory(Version) - before == 8
    assert [registry.version("m", each.version) for each in wanted] == wanted


def test_no_outlier_of_a_call_under_the_rule_before_is_shown(tmp_path: Path, registry: Registry) -> None:
    """A batch began under a loose rule and ends under a tight one: under the latter its outliers may be none."""
    set_alpha(tmp_path, registry, 0.5)
    looks = iter([0.01])

    def is_wanted() -> bool:
        # Asked while the batch is judged; the first time the rule changes.
        for alpha in looks:
            set_alpha(tmp_path, registry, alpha)
        return True

    ScoringService(registry, Nowhere()).score("m", "", random_rows(3_000), is_wanted=is_wanted)

    seen = counted(tmp_path, registry.get("m").version)
    assert seen.number("alpha") == 0.01
    assert seen.sections["outliers"].sum() > 1_000
    assert seen.number("exemplar_time") == 0


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("n", [1, 300, 3_000])
def test_an_outlier_of_a_call_is_shown_by_name(tmp_path: Path, registry: Registry, n: int, is_named: bool) -> None:
    """By the caller's, or by the one that its point gets in the store."""
    monitor, probs = ScoringService(registry, Nowhere()), random_rows(3_000)
    set_alpha(tmp_path, registry, 0.0)
    (rare,) = np.nonzero(registry.get("m").policy.score(probs).p_value <= 0.1)
    probs = probs[rare[:1]] if n == 1 else probs[:n]
    names = [f"order-{row}" for row in range(n)] if is_named else []
    monitor.score("m", "", probs, prediction_ids=names)
    before = counted(tmp_path, registry.get("m").version)

    set_alpha(tmp_path, registry, 0.1)
    scored = monitor.score("m", "", probs, prediction_ids=names)

    seen = counted(tmp_path, scored.version)
    shown = "".join(chr(int(code)) for code in seen.sections["exemplar_id"] if code)
    row = [names[row] if names else prediction_id(scored.batch_id, row) for row in range(n)].index(shown)
    assert before.number("exemplar_time") == 0.0
    assert scored.block.column("reason")[row] == Reason.OUTLIER
    assert seen.number("exemplar_p") == scored.block.column("p_value")[row]


def test_an_outlier_of_a_shadow_is_not_shown(tmp_path: Path, registry: Registry) -> None:
    """Callers were told otherwise, by the version that serves."""
    version = deploy(tmp_path, registry, 1)
    set_alpha(tmp_path, registry, 0.0)
    make_change(tmp_path, registry, "shadow", version=version)

    ScoringService(registry, Nowhere()).score("m", "", random_rows(3_000))

    seen = counted(tmp_path, version)
    assert seen.sections["shadow"].reshape(-1, len(Reason) + 1)[:, Reason.OUTLIER].sum() > 0
    assert seen.number("exemplar_time") == 0.0


def test_a_pinned_version_is_made_once(tmp_path: Path, registry: Registry) -> None:
    """A version that is not active is the same object for every call, and another one after a change of its policy."""
    version = deploy(tmp_path, registry, seed=7)

    pinned = registry.get("m", version)

    assert pinned.version == version != registry.get("m").version
    assert registry.get("m", version[:12]) is pinned
    make_change(tmp_path, registry, "policy", version=version, alpha=0.2, threshold=None, fail_open=None)
    assert registry.get("m", version) is not pinned
    assert registry.get("m", version).policy.scorer is pinned.policy.scorer


def test_a_region_of_a_pinned_version_expires(tmp_path: Path, registry: Registry) -> None:
    """Though the state file does not change."""
    now = [1_000.0]
    version = deploy(tmp_path, registry, seed=8)
    polygon = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    make_change(
        tmp_path, registry, "region", version=version, region="r", action="save", polygon=polygon, expires_ms=1_500_000
    )
    make_change(tmp_path, registry, "region", version=version, region="r", action="enforce")
    timed = Registry(
        StateFile(tmp_path / "registry.json"), tmp_path / "bundles", Counts(tmp_path / "counts", 1), lambda: now[0]
    )
    timed.refresh()

    before = timed.get("m", version).gate.regions
    now[0] = 2_000.0

    assert len(before) == 1
    assert timed.get("m", version).gate.regions == ()


def test_a_deployed_version_outlives_the_file_that_it_was_deployed_from(tmp_path: Path) -> None:
    """The file is replaced and deployed again; the version before can be rolled back to, also after a restart."""
    path, state_file = tmp_path / "elsewhere" / "m.safetensors", StateFile(tmp_path / "registry.json")
    path.parent.mkdir()
    old = write_bundle(path, make_bundle(rows=400, seed=1))
    with Store.open(f"sqlite:///{tmp_path / 'points.db'}", auto_upgrade=True) as store:
        deploy_at_start(state_file, store, path.parent, [("m", path)])
        registry = Registry(state_file, path.parent, Counts(tmp_path / "counts", 0))
        control = Control(registry, state_file, lambda: store)

        write_bundle(path, make_bundle(rows=400, seed=2), overwrite=True)
        new = control.deploy("m", path.name, activate=True, author="a")
        control.roll_back("m", author="a")

    restarted = Registry(state_file, path.parent, Counts(tmp_path / "counts", 1))
    restarted.refresh()
    assert restarted.get("m").version == old
    assert restarted.get("m", new).version == new
    assert restarted.missing == ()


def test_a_model_without_its_bundle_is_missing_until_the_file_is_back(tmp_path: Path, registry: Registry) -> None:
    """Calls fail as unavailable, and loading is retried though the state file does not change."""
    now = [1_000.0]
    (copy,) = (tmp_path / "bundles").glob("*.safetensors")
    copy.rename(tmp_path / "away")
    restarted = Registry(
        StateFile(tmp_path / "registry.json"), tmp_path / "bundles", Counts(tmp_path / "counts", 1), lambda: now[0]
    )
    restarted.refresh()

    was_missing, was_ready = restarted.missing, restarted.is_ready
    with pytest.raises(NotLoadedError):
        restarted.get("m")
    (tmp_path / "away").rename(copy)
    now[0] += 3.0
    restarted.refresh()

    assert (was_missing, was_ready) == (("m",), False)
    assert (restarted.missing, restarted.is_ready, restarted.failures) == ((), True, {})
    assert restarted.get("m").version == copy.stem


def test_a_model_is_not_missing_while_it_is_loaded_for_the_first_time(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment does not take the replica out of rotation for the time that the bundle is read."""
    path = tmp_path / "bundles" / "n.safetensors"
    version = write_bundle(path, make_bundle(rows=400, seed=1))
    seen = []

    def read(*arguments: Any, **options: Any) -> Any:
        seen.append((registry.missing, registry.is_ready))
        return read_version(*arguments, **options)

    monkeypatch.setattr("darksight_service.control.registry.read_version", read)
    make_change(tmp_path, registry, "deploy", model="n", version=version, path=path.name, activate=True)

    assert seen == [((), True)]
    assert set(registry.models()) == {"m", "n"}


def test_a_new_model_without_its_bundle_does_not_stop_the_others(tmp_path: Path, registry: Registry) -> None:
    """The replica stays ready, also after a restart; a model that it served before must be loaded."""
    state_file, bundles = StateFile(tmp_path / "registry.json"), tmp_path / "bundles"
    make_change(tmp_path, registry, "deploy", model="n", version="0" * 64, path="lost.safetensors", activate=True)
    restarted = Registry(state_file, bundles, Counts(tmp_path / "counts", 0))
    restarted.refresh()

    path = bundles / "o.safetensors"
    version = write_bundle(path, make_bundle(rows=400, seed=1))
    make_change(tmp_path, registry, "deploy", model="o", version=version, path=path.name, activate=True)
    path.unlink()
    without_o = Registry(state_file, bundles, Counts(tmp_path / "counts", 0))
    without_o.refresh()

    assert (registry.missing, registry.is_ready) == (("n",), True)
    assert (restarted.missing, restarted.is_ready) == (("n",), True)
    assert (without_o.missing, without_o.is_ready) == (("n", "o"), False)


def test_a_model_whose_new_version_cannot_be_loaded_keeps_the_old_one_and_its_regions_expire(
    tmp_path: Path, registry: Registry
) -> None:
    """The version that was active before answers under its own policy, and the failure is reported."""
    now = [1_000.0]
    old = registry.get("m").version
    change = {"version": old, "region": "r"}
    polygon = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    make_change(tmp_path, registry, "region", **change, action="save", polygon=polygon, expires_ms=1_500_000)
    make_change(tmp_path, registry, "region", **change, action="enforce")
    timed = Registry(
        StateFile(tmp_path / "registry.json"), tmp_path / "bundles", Counts(tmp_path / "counts", 1), lambda: now[0]
    )
    timed.refresh()

    make_change(tmp_path, timed, "deploy", version="0" * 64, path="lost.safetensors", activate=True)
    regions = timed.get("m").gate.regions
    now[0] = 2_000.0
    timed.refresh()

    assert timed.get("m").version == old
    assert timed.missing == ()
    assert list(timed.failures) == [("m", "0" * 64)]
    assert len(regions) == 1
    assert timed.get("m").gate.regions == ()


def test_a_shadow_that_cannot_be_loaded_does_not_affect_the_active_version(tmp_path: Path, registry: Registry) -> None:
    """The active version takes its new policy, and the failure is reported."""
    make_change(tmp_path, registry, "deploy", version="0" * 64, path="lost.safetensors", activate=False)
    make_change(tmp_path, registry, "shadow", version="0" * 64)

    set_alpha(tmp_path, registry, 0.2)

    active = registry.get("m")
    assert active.shadow is None
    assert active.gate.outlier is not None
    assert active.gate.outlier.alpha == 0.2
    assert list(registry.failures) == [("m", "0" * 64)]


def test_active_and_shadow_versions_have_their_own_metrics_however_many_were_active_before(
    tmp_path: Path, registry: Registry
) -> None:
    """Retired versions, and those that callers ask for by name, leave their files to them."""
    few = Registry(
        StateFile(tmp_path / "registry.json"),
        tmp_path / "bundles",
        Counts(tmp_path / "few" / "counts", 0, max_models=2),
    )
    few.refresh()
    shadow, *versions = [deploy(tmp_path, few, seed) for seed in range(1, 6)]

    for version in versions:
        make_change(tmp_path, few, "activate", version=version)
        few.get("m", versions[0])
    make_change(tmp_path, few, "shadow", version=shadow)
    ScoringService(few, Nowhere()).score("m", "", random_rows(7))

    assert counted(tmp_path / "few", versions[-1]).number("batch_sum") == 7
    assert counted(tmp_path / "few", shadow).sections["shadow"].sum() == 7


def test_a_worker_sees_what_another_one_changed(tmp_path: Path) -> None:
    """A version that one worker deployed is activated and listed by another that has not looked at the state file."""
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "old.safetensors", make_bundle(rows=400, seed=1))
    new = write_bundle(tmp_path / "bundles" / "new.safetensors", make_bundle(rows=400, seed=2))
    state_file = StateFile(tmp_path / "registry.json")
    with Store.open(f"sqlite:///{tmp_path / 'points.db'}", auto_upgrade=True) as store:
        first, second = (
            Control(
                Registry(state_file, tmp_path / "bundles", Counts(tmp_path / "counts", worker)),
                state_file,
                lambda: store,
            )
            for worker in range(2)
        )

        old = first.deploy("m", "old.safetensors", activate=True, author="a")
        assert set(second.models()["m"].versions) == {old}
        first.deploy("m", "new.safetensors", activate=False, author="a")
        second.activate("m", new, author="b")
        first.roll_back("m", author="a")

        assert second.model("m").active == old
