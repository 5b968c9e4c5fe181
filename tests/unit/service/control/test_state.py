from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from darksight_service.control.state import Change, PolicyOverride, State, apply_change
from darksight_service.control.state_file import StateFile
from darksight_service.errors import RefusedError

from darksight_core.map.regions import MAX_REGIONS

A, B, C = "a" * 64, "b" * 64, "c" * 64


def fold(*changes: Change) -> State:
    """The state after these changes."""
    state = State()
    for number, change in enumerate(changes, start=1):
        state = apply_change(state, replace(change, id=number))
    return state


def deploy(version: str, *, activate: bool = False, model: str = "m") -> Change:
    """A deployment."""
    return Change("deploy", model, {"version": version, "path": f"{version[0]}.safetensors", "activate": activate})


def region(action: str, name: str = "gap", *, version: str = A, ms: int = 0, expires_ms: int = 0) -> Change:
    """A change of a region, which is saved as a triangle."""
    payload = {"version": version, "region": name, "action": action}
    if action == "save":
        payload |= {"polygon": [[0.0, 0.0], [1.0, 0.0], [0.5, 2.5]], "expires_ms": expires_ms}  # type: ignore[dict-item]  # JSON
    return Change("region", "m", payload, author="ann", comment="torn", changed_ms=ms)


def test_the_first_bundle_of_a_model_serves_at_once_and_later_ones_when_asked_for():
    """A model is never without an active version, and a deployment alone changes nothing that serves."""
    state = fold(deploy(A), deploy(B))

    assert (state.models["m"].active, set(state.models["m"].versions)) == (A, {A, B})
    assert fold(deploy(A), deploy(B, activate=True)).models["m"].active == B


def test_a_roll_back_goes_to_the_version_before_and_twice_to_the_one_before_that():
    """Roll-backs undo activations, the latest first."""
    made = [deploy(A), deploy(B, activate=True), deploy(C, activate=True)]
    back = Change("rollback", "m", {})

    assert fold(*made, back).models["m"].active == B
    assert fold(*made, back, back).models["m"].active == A
    assert fold(*made, back, back, back).models["m"].active == A


def test_activating_what_is_active_does_not_make_it_its_own_predecessor():
    """Three replicas that start at once all deploy the same bundle."""
    state = fold(deploy(A, activate=True), deploy(A, activate=True), deploy(A, activate=True))

    assert state.models["m"].previous == ()


def test_a_change_that_makes_no_sense_leaves_the_state_as_it_is():
    """Folding never fails, whatever another replica wrote."""
    state = fold(deploy(A))

    for change in (
        Change("activate", "m", {"version": C}),
        Change("activate", "nobody", {"version": A}),
        Change("shadow", "m", {"version": C}),
        Change("shadow", "m", {"version": A}),
        Change("policy", "m", {"version": C, "alpha": 0.5, "threshold": None, "fail_open": None}),
        Change("unheard-of", "m", {}),
        region("save", version=C),
        region("enforce"),
        region("remove"),
        region("unheard-of"),
        replace(region("save"), payload={**region("save").payload, "polygon": [[0.0, 0.0]]}),
    ):
        assert apply_change(state, change).models == state.models


def test_a_policy_belongs_to_its_version_so_that_a_roll_back_restores_it():
    """A new version starts from its own gate."""
    policy = {"version": A, **PolicyOverride(alpha=0.05, threshold=-math.inf).as_dict()}
    state = fold(deploy(A), Change("policy", "m", policy), deploy(B, activate=True))

    model = state.models["m"]
    assert model.versions[B].policy == PolicyOverride()
    assert model.versions[A].policy == PolicyOverride(alpha=0.05, threshold=-math.inf)


def kept(state: State, folder: Path) -> State:
    """The state as a file has it."""
    file = StateFile(folder / "registry.json")
    file.update(lambda _: state)
    return file.read()


def test_a_version_keeps_the_time_at_which_its_evidence_was_reset(tmp_path: Path):
    """Also in the state file; other versions keep their evidence."""
    state = fold(deploy(A), deploy(B), Change("evidence", "m", {"version": A}, changed_ms=7))

    versions = kept(state, tmp_path).models["m"].versions
    assert (versions[A].evidence_ms, versions[B].evidence_ms) == (7, 0)


def policy(ms: int, **override: object) -> Change:
    """An override of version A."""
    return Change("policy", "m", {"version": A, **PolicyOverride(**override).as_dict()}, changed_ms=ms)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("changes", "ms"),
    [
        ([policy(5, threshold=-math.inf), policy(9)], 9),
        ([policy(5, alpha=0.2), policy(9, alpha=0.2, fail_open=True)], 5),
        ([region("save", ms=5), region("enforce", ms=7)], 7),
        ([region("save", ms=5), region("enforce", ms=7), region("remove", ms=9)], 9),
        ([region("save", ms=5), region("remove", ms=9)], 0),
    ],
    ids=["override_removed", "fail_open_alone", "enforced", "removed", "shadow_region"],
)
def test_a_version_keeps_the_time_at_which_its_gate_last_changed(tmp_path: Path, changes, ms):
    """Rows accepted before it are not those that the certificate is about."""
    state = fold(deploy(A), *changes)

    assert kept(state, tmp_path).models["m"].versions[A].gate_ms == ms


def test_a_region_is_saved_as_a_shadow_then_enforced_and_belongs_to_its_version():
    """It keeps who saved it and when; another version has another map."""
    made = [deploy(A), deploy(B, activate=True), region("save", ms=7)]
    (saved,) = fold(*made).models["m"].versions[A].regions.values()

    assert (saved.region.name, saved.is_enforced, saved.author, saved.comment) == ("gap", False, "ann", "torn")
    assert (saved.id, saved.saved_ms, saved.region.polygon[2]) == (3, 7, (0.5, 2.5))
    assert fold(*made, region("enforce")).models["m"].versions[A].regions == {"gap": replace(saved, is_enforced=True)}
    assert fold(*made, region("enforce"), region("shadow")).models["m"].versions[A].regions == {"gap": saved}
    assert fold(*made, region("enforce"), region("remove")).models["m"].versions[A].regions == {}
    assert fold(*made).models["m"].versions[B].regions == {}


def test_a_name_stays_with_who_had_it_until_that_region_ends():
    """Two analysts on two replicas save one name; what has ended by the clock of a change makes room for another."""
    first = region("save", ms=10, expires_ms=100)

    assert fold(deploy(A), first, region("save", ms=99)).models["m"].versions[A].regions["gap"].saved_ms == 10
    assert fold(deploy(A), first, region("save", ms=100)).models["m"].versions[A].regions["gap"].saved_ms == 100
    assert fold(deploy(A), first, region("save", "other", ms=100)).models["m"].versions[A].regions["gap"].saved_ms == 10
    many = [region("save", f"region {number}") for number in range(MAX_REGIONS + 1)]
    assert len(fold(deploy(A), *many).models["m"].versions[A].regions) == MAX_REGIONS


def test_a_state_survives_its_file(tmp_path: Path):
    """What is written is read, infinity included, as JSON that other programs can read."""
    policy = {"version": A, **PolicyOverride(threshold=-math.inf, fail_open=True).as_dict()}
    saved = (region("save", ms=5, expires_ms=50), region("enforce"), region("save", "other"))
    changes = (Change("shadow", "m", {"version": B}), Change("policy", "m", policy), *saved)
    state = fold(deploy(A), deploy(B), *changes)
    file = StateFile(tmp_path / "registry.json")

    assert file.read() == State()
    assert file.update(lambda _: state) == state == file.read()
    json.loads(file.path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_stamp_changes_with_the_file_and_only_then(tmp_path: Path):
    """Workers look at the stamp twenty times a second."""
    file = StateFile(tmp_path / "registry.json")
    before = file.stamp()
    file.update(lambda _: fold(deploy(A)))
    after = file.stamp()
    file.update(lambda state: state)

    assert before != after == file.stamp()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": 99, "models": {}, "last_change": 0}', '{"schema": 1}'])
def test_a_file_that_is_no_registry_is_refused_and_not_replaced(tmp_path: Path, content: str):
    """A damaged file must not quietly become an empty registry."""
    file = StateFile(tmp_path / "registry.json")
    file.path.write_text(content)

    with pytest.raises(RefusedError, match="registry"):
        file.update(lambda _: State())
    assert file.path.read_text() == content
