"""Regions over a real service: tried, enforced, ended, carried over; on every worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from darksight_client import Client, Conflict, InvalidRequest, Reason, Scored, UnknownModel

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.map import regions as core
from darksight_core.runtime.policy import ScoringPolicy
from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.bundles import CERTIFICATE
from tests.support.servers import Server, running_server, wait_until

ROWS = make_probs(200, K, seed=3)


def around(point: np.ndarray, size: float = 1.5) -> list[tuple[float, float]]:
    """A square."""
    x, y = point
    return [(x - size, y - size), (x + size, y - size), (x + size, y + size), (x - size, y + size)]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two maps of one model, and the first map with a gate that carries a region."""
    folder = tmp_path_factory.mktemp("bundles")
    made = [gated_bundle(folder / f"{seed}.safetensors", seed=seed) for seed in (0, 1)]
    first = read_bundle(made[0])
    gate = Gate(regions=(core.Region("carried", tuple(around(np.zeros(2), 3.0))),))
    write_bundle(folder / "carrying.safetensors", first.with_gate(gate, CERTIFICATE))
    return [*made, folder / "carrying.safetensors"]


@pytest.fixture(scope="module")
def versions(bundles: list[Path]) -> list[str]:
    """Of the bundles."""
    return [read_bundle(bundle).version for bundle in bundles]


@pytest.fixture(scope="module")
def server(bundles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of two workers on SQLite, with all three versions."""
    options = ("--workers", "2", "--bundle-dir", str(bundles[0].parent))
    with running_server({"digits": bundles[0]}, tmp_path_factory.mktemp("data"), *options) as running:
        with Client(running.grpc_target, timeout_seconds=60.0) as client:
            client.deploy("digits", bundles[1].name)
            client.deploy("digits", bundles[2].name)
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """Its client; no region is left behind."""
    with Client([server.grpc_target] * 4, timeout_seconds=60.0) as client:
        yield client
        for region in client.regions("digits"):
            if not region.is_from_bundle:
                client.remove_region("digits", region.name, version=region.version)


def target_of(scored: Scored) -> list[tuple[float, float]]:
    """A square around a place where some rows are accepted, but not all."""
    return around(scored.points[np.flatnonzero(scored.accepted)[0]])


def wait_for_decisions(client: Client, expected: np.ndarray, seconds: float = 120.0) -> None:
    """Until every worker gives these reasons, many calls in a row."""

    def is_so() -> bool:
        return all(np.array_equal(client.score("digits", ROWS).reason, expected) for _ in range(8))

    wait_until(is_so, seconds, "all workers to decide alike")


def reasons_inside(scored: Scored, polygon: list[tuple[float, float]]) -> np.ndarray:
    """The reasons with a region."""
    inside = core.Region("expected", tuple(polygon)).inside(scored.points)
    return np.where(inside & scored.accepted, Reason.REGION, scored.reason)


def test_a_region_is_tried_enforced_and_removed(client: Client, server: Server, versions: list[str]):
    """A shadow changes nothing; enforced, accepted rows inside are rejected on every worker, and nothing else is."""
    plain = client.score("digits", ROWS)
    polygon = target_of(plain)
    expected = reasons_inside(plain, polygon)
    assert 0 < (expected == Reason.REGION).sum() < plain.accepted.sum()

    saved = client.save_region("digits", "gap", polygon, author="ann", comment="looks wrong")
    for _ in range(8):
        np.testing.assert_array_equal(client.score("digits", ROWS).reason, plain.reason)
    enforced = client.enforce_region("digits", "gap", author="bob", comment="agreed")
    wait_for_decisions(client, expected)
    refused = client.score("digits", ROWS)
    np.testing.assert_array_equal(refused.accepted, plain.accepted & (expected != Reason.REGION))
    for column in ("points", "p_value", "log_density", "log_kde"):
        np.testing.assert_array_equal(getattr(refused, column), getattr(plain, column))
    assert not (client.score("digits", ROWS, version=versions[1]).reason == Reason.REGION).any()
    assert not client.policy("digits").is_certified
    lines = [line for line in server.get("/metrics")[1].splitlines() if line.startswith("darksight_decisions_total{")]
    counted = [float(line.rsplit(" ", 1)[1]) for line in lines if 'reason="region"' in line]
    assert sum(counted) >= (expected == Reason.REGION).sum()

    client.shadow_region("digits", "gap", author="bob")
    wait_for_decisions(client, plain.reason)
    client.enforce_region("digits", "gap")
    client.remove_region("digits", "gap", author="ann", comment="healed")
    wait_for_decisions(client, plain.reason)

    assert (saved.is_enforced, enforced.is_enforced, saved.version, saved.author) == (False, True, versions[0], "ann")
    assert [(change.action, change.author, change.comment) for change in client.region_history("digits")[:5]] == [
        ("remove", "ann", "healed"),
        ("enforce", "", ""),
        ("shadow", "bob", ""),
        ("enforce", "bob", "agreed"),
        ("save", "ann", "looks wrong"),
    ]
    assert client.policy("digits").is_certified


def test_a_region_ends_by_itself(client: Client):
    """No change is made when its time has come, and every worker stops to refuse."""
    plain = client.score("digits", ROWS)
    polygon = target_of(plain)
    expected = reasons_inside(plain, polygon)
    # On a machine that is busy a short life may be over before every worker was asked.
    for seconds in (2.0, 8.0, 32.0):
        ends = time.time() + seconds
        try:
            client.save_region("digits", "soon", polygon, expires_at=ends)
            client.enforce_region("digits", "soon")
            wait_for_decisions(client, expected, seconds)
        except (InvalidRequest, UnknownModel, AssertionError):
            continue
        break

    wait_for_decisions(client, plain.reason)

    assert time.time() >= ends
    assert [region.name for region in client.regions("digits") if not region.is_from_bundle] == []
    assert [change.action for change in client.region_history("digits")[:2]] == ["enforce", "save"]
    with pytest.raises(InvalidRequest, match="in the future"):
        client.save_region("digits", "late", polygon, expires_at=time.time() - 1.0)


def test_a_roll_back_restores_the_regions_of_its_version(client: Client, versions: list[str]):
    """Another version has another map, and so no region of the first one."""
    plain = client.score("digits", ROWS)
    polygon = target_of(plain)
    client.save_region("digits", "gap", polygon)
    client.enforce_region("digits", "gap")
    try:
        client.activate("digits", versions[1])
        other = client.score("digits", ROWS, version=versions[1])
        wait_for_decisions(client, other.reason)
        assert not (other.reason == Reason.REGION).any()
    finally:
        client.roll_back("digits")
    wait_for_decisions(client, reasons_inside(plain, polygon))


def test_a_bundle_brings_its_regions(client: Client, bundles: list[Path], versions: list[str]):
    """They are in its gate, listed as its own, and cannot be changed from outside."""
    expected = ScoringPolicy.of(read_bundle(bundles[2])).score(ROWS)

    scored = client.score("digits", ROWS, version=versions[2])

    np.testing.assert_array_equal(scored.reason, expected.reason)
    assert (scored.reason == Reason.REGION).any()
    (listed,) = client.regions("digits", version=versions[2])
    assert (listed.name, listed.is_enforced, listed.is_from_bundle) == ("carried", True, True)
    with pytest.raises(Conflict, match="part of its bundle"):
        client.remove_region("digits", "carried", version=versions[2])
    with pytest.raises(Conflict, match="choose another name"):
        client.save_region("digits", "carried", around(np.zeros(2)), version=versions[2])


@pytest.mark.parametrize(
    ("polygon", "message"),
    [
        ([(0.0, 0.0), (1.0, 1.0)], "three different corners"),
        ([(0.0, 0.0), (1.0, float("nan")), (1.0, 1.0)], "not finite"),
        ([(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)], "one line"),
        ([(n / 10.0, n % 2) for n in range(100_000)], "100,000 corners"),
        ([], "polygon"),
    ],
    ids=["two", "nan", "line", "many", "none"],
)
def test_what_is_no_polygon_is_refused(client: Client, polygon: list[tuple[float, float]], message: str):
    """INVALID_ARGUMENT, for a preview and to save."""
    with pytest.raises(InvalidRequest, match=message):
        client.preview_region("digits", polygon=polygon)
    with pytest.raises(InvalidRequest):
        client.save_region("digits", "bad", polygon)


def test_names_and_versions_that_are_not_there_are_named(client: Client):
    """A second region of one name is refused, and so is one that nobody saved."""
    client.save_region("digits", "gap", around(np.zeros(2)))

    with pytest.raises(Conflict, match="another name"):
        client.save_region("digits", "gap", around(np.ones(2)))
    with pytest.raises(InvalidRequest, match="name"):
        client.save_region("digits", "", around(np.ones(2)))
    with pytest.raises(UnknownModel, match="no region 'lost'"):
        client.enforce_region("digits", "lost")
    with pytest.raises(UnknownModel, match="does not exist"):
        client.regions("letters")
    with pytest.raises(UnknownModel, match="no version"):
        client.save_region("digits", "gap", around(np.ones(2)), version="f" * 64)


def test_a_preview_counts_what_would_be_rejected(client: Client, bundles: list[Path]):
    """Reference and stored points inside, by decision and outcome, with an exact interval; and what they look like."""
    began = time.time()
    plain = client.score("digits", ROWS)
    polygon = target_of(plain)
    predicted = ROWS.argmax(axis=1)
    labels = np.where(np.arange(len(ROWS)) % 4 == 0, (predicted + 1) % K, predicted)
    client.report("digits", plain.prediction_ids, labels.tolist())
    inside = core.Region("expected", tuple(polygon)).inside(plain.points)

    def found():
        return client.preview_region("digits", polygon=polygon, since=began, examples=100)

    wait_until(lambda: found().accuracy.rows == inside.sum(), what="the outcomes in the store")
    preview = found()

    wrong = labels != predicted
    reference = read_bundle(bundles[0]).reference
    assert (preview.examined, preview.accepted) == (len(ROWS), plain.accepted.sum())
    assert (preview.inside, preview.inside_accepted) == (inside.sum(), (inside & plain.accepted).sum())
    assert preview.inside_rejected == 0
    assert preview.accepted_share == (inside & plain.accepted).sum() / plain.accepted.sum()
    assert preview.accuracy.correct == (inside & ~wrong).sum()
    assert preview.accepted_accuracy.rows == (inside & plain.accepted).sum()
    assert 0.0 < preview.accuracy.low < preview.accuracy.value < preview.accuracy.high < 1.0
    assert preview.new_accuracy.rows == 0
    assert preview.reference_points == len(reference.points)
    assert preview.reference_inside == core.Region("expected", tuple(polygon)).inside(reference.points).sum()
    assert preview.reference_accuracy.rows == preview.reference_inside
    names = dict(zip(plain.prediction_ids, range(len(ROWS)), strict=True))
    rows = [names[example.prediction_id] for example in preview.examples]
    assert all(inside[rows])
    assert [bool(wrong[row]) for row in rows] == sorted((bool(wrong[row]) for row in rows), reverse=True)
    np.testing.assert_allclose([example.probabilities for example in preview.examples], ROWS[rows], atol=1e-3)


def test_labels_that_came_after_it_was_saved_are_told_apart(client: Client):
    """Whoever draws around known mistakes is flattered by them; later points do not flatter."""
    plain = client.score("digits", ROWS)
    polygon = target_of(plain)
    inside = core.Region("expected", tuple(polygon)).inside(plain.points)
    client.save_region("digits", "gap", polygon)
    client.enforce_region("digits", "gap")
    wait_for_decisions(client, reasons_inside(plain, polygon))
    later = client.score("digits", ROWS)
    client.report("digits", later.prediction_ids, ROWS.argmax(axis=1).tolist())

    def found():
        return client.preview_region("digits", name="gap", examples=0)

    wait_until(lambda: found().new_accuracy.rows == inside.sum(), what="the outcomes in the store")
    assert found().new_accuracy.correct == inside.sum()
    assert found().accuracy.rows >= inside.sum()
    assert found().inside_rejected >= (inside & plain.accepted).sum()
    assert found().examples == ()


def test_a_region_is_carried_over_by_the_rows_inside_it(client: Client, versions: list[str]):
    """On another map around where the same rows are there; on the same map unchanged; saved only if asked for."""
    plain = client.score("digits", ROWS)
    polygon = around(plain.points[0], 2.0)
    saved = client.save_region("digits", "gap", polygon)
    inside = core.Region("old", tuple(polygon)).inside(plain.points)
    wait_until(lambda: client.preview_region("digits", name="gap").inside >= inside.sum(), what="the points")

    carried = client.carry_over_region("digits", "gap", versions[0], to_version=versions[1])

    there = client.score("digits", ROWS, version=versions[1]).points
    new = core.Region("new", carried.region.polygon)
    assert carried.stored_rows >= inside.sum()
    assert carried.reference_rows > 0
    assert 0.9 <= carried.rows_inside / (carried.stored_rows + carried.reference_rows) <= 1.0
    assert new.inside(there[inside]).mean() >= 0.8
    assert (carried.is_saved, carried.is_same_map, carried.region.version) == (False, False, versions[1])
    assert client.regions("digits", version=versions[1]) == ()
    kept = client.carry_over_region("digits", "gap", versions[0], to_version=versions[1], save=True, author="ann")
    (found,) = client.regions("digits", version=versions[1])
    assert (kept.is_saved, kept.region, found.is_enforced) == (True, found, False)
    assert found.comment == f"carried over from version {versions[0][:12]}"
    same = client.carry_over_region("digits", "gap", versions[0], to_version=versions[2])
    assert (same.is_same_map, same.region.polygon) == (True, saved.polygon)
    with pytest.raises(Conflict, match="already"):
        client.carry_over_region("digits", "gap", versions[0])
