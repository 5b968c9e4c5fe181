"""What callers read: messages without paths of the server, and lists that survive a row of another version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from darksight_service.errors import NotFoundError, RefusedError, StoreUnavailableError, public_message
from darksight_service.grpc_api.status import status_of
from darksight_service.http.problems import problem_response
from darksight_service.store.read.policy_evaluation import DecisionCounts
from darksight_service.store.store import Store

from darksight_core.bundle import read_bundle
from darksight_core.errors import BundleError, DarkSightError
from darksight_core.rows.schema import Decision, Reason, stored_name


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StoreUnavailableError("/var/lib/a b/store.db is not available"), "store.db"),
        (RefusedError("/srv/data/registry.json: is not a state file; restore it"), "registry.json: is not"),
        (BundleError("'/srv/data/x.safetensors' cannot be read (No such file)"), "'x.safetensors' cannot"),
        (RefusedError("copy (/srv/data/x) failed"), "copy (x) failed"),
    ],
)
def test_paths_of_the_server_are_cut(error: DarkSightError, text: str) -> None:
    """Status, message and details have the name of a file, not where it is; over HTTP, too."""
    _, status = status_of(error)
    body = bytes(problem_response(error, "/v2")[0].body)

    assert text in status.message == json.loads(body)["detail"]
    for part in (status.message.encode(), status.SerializeToString(), body):
        assert b"/srv" not in part
        assert b"/var" not in part


def test_the_place_of_the_database_is_left_out(tmp_path: Path) -> None:
    """Of both kinds, in a real error, over gRPC and HTTP: operators find it in the log."""
    for url in ("postgresql://ada:secret@127.0.0.1:1/points", f"sqlite:///{tmp_path}/none/store.db"):
        with pytest.raises(StoreUnavailableError, match="is not available") as caught:
            Store.open(url)
        parts = (status_of(caught.value)[1].SerializeToString(), problem_response(caught.value, "/v1")[0].body)
        for part in map(bytes, parts):
            assert b"the database is not available" in part
            assert not [word for word in (b"127.0.0.1", b":1", b"/points", b"store.db") if word in part]


@pytest.mark.parametrize("text", ["model 'a/b' does not exist", "see https://example.org/a/b", "day/one.npz: 1/2 rows"])
def test_other_slashes_stay(text: str) -> None:
    """Relative paths, addresses and fractions are not paths of the server."""
    assert public_message(NotFoundError(text)) == text


def test_a_bundle_is_named_as_the_caller_named_it(tmp_path: object) -> None:
    """A file of the bundle directory is reported by its path there."""
    with pytest.raises(BundleError) as caught:
        read_bundle(f"{tmp_path}/none.safetensors", source="day/none.safetensors")

    assert caught.value.message == "day/none.safetensors: there is no such file. Check the path."
    assert caught.value.details["source"] == "day/none.safetensors"


def test_a_stored_number_of_another_version_has_a_name() -> None:
    """Lists show it instead of failing."""
    assert [stored_name(Reason, number) for number in (0, 3, 99)] == ["UNKNOWN", "LOW_CONFIDENCE", "UNKNOWN"]
    assert stored_name(Decision, 7) == "UNKNOWN"


def test_points_of_an_unknown_reason_are_counted() -> None:
    """The evaluation of a policy counts them without a reason."""
    counts = DecisionCounts()

    counts.add(False, 99, 3, 3)

    assert (counts.points, counts.accepted, counts.outliers) == (3, 0, 0)
