"""Every layout of a scored row has exactly the columns of the schema: a new one is a field there and a migration."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_client.results.columns import COLUMNS
from darksight_client.results.rows import Decision as ClientDecision
from darksight_client.results.rows import Reason as ClientReason
from darksight_client.results.rows import Scored
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.http.explorer.columns import point_columns
from darksight_service.scoring.files.columns import score_columns
from darksight_service.store.tables import point

from darksight_core.predictions import Predictions
from darksight_core.rows.schema import AUDIT_COLUMNS, SCHEMA, Decision, Reason, ScoredBatch
from darksight_core.runtime.result_block import stored_pieces
from tests.support.points import make_points


def parts(flag: str) -> set[str]:
    """Names of the values of the columns that travel there."""
    return {part for column in SCHEMA if getattr(column, flag) for part in column.parts}


def test_local_and_remote_score_files_have_the_same_columns() -> None:
    """In the same order, besides those that are not in a response."""
    probs = np.full((2, 2), 0.5, dtype=np.float32)
    rows, local = Predictions(probs, None, None, None, ("no", "yes"), "test"), ScoredBatch.unscored(2)
    columns = {name: getattr(local, name) for name in COLUMNS}
    sets = {"set_size": local.set_size, "set_classes": np.empty(0, dtype=np.int32)}
    remote = Scored(**columns, **sets, model="m", version="v", batches=(), recorded=True)

    found = [list(score_columns(each, rows, rows.class_names)) for each in (local, remote)]
    assert found[1] == [name for name in found[0] if name not in ("fidelity", "outlier_score")]


def test_the_proto_has_the_columns_of_the_response() -> None:
    """As its only repeated fields, beside the prediction sets, which most rows do not have."""
    fields = monitor_pb2.ScoreResponse.DESCRIPTOR.fields
    sets = {"set_size", "set_classes"}

    assert {field.name for field in fields if field.is_repeated} - sets == {
        each.name for each in SCHEMA if each.response
    }


@pytest.mark.parametrize(
    ("ours", "client", "proto"),
    [
        (Decision, ClientDecision, monitor_pb2.Decision),
        (Reason, ClientReason, monitor_pb2.Reason),
    ],
    ids=["decision", "reason"],
)
def test_decisions_and_reasons_have_one_numbering(ours: type, client: type, proto: object) -> None:
    """In the core, in the client and in the proto, which have 0 for "unspecified" too."""
    expected = {member.name: int(member) for member in ours}  # type: ignore[var-annotated,attr-defined]

    prefix = f"{ours.__name__.upper()}_"
    numbers = {name.removeprefix(prefix): number for name, number in proto.items()}  # type: ignore[attr-defined]
    assert {member.name: int(member) for member in client} == numbers == {"UNSPECIFIED": 0, **expected}  # type: ignore[var-annotated,attr-defined]


def test_sql_has_the_stored_columns() -> None:
    """Beside those that identify a point, and those that it gets where it is stored."""
    others = {"id", "event_at", "delay_ms", "bundle_id", "is_shadow", "prediction_id", "probs"}
    others |= {"tags", "reference", "trace_id"}

    of_audit = {column.name for column in AUDIT_COLUMNS}
    assert {column.name for column in point.columns} - others == parts("stored") | of_audit


def test_records_have_the_stored_columns() -> None:
    """One after the other, without gaps, each at a multiple of its size if there are probabilities before them."""
    pieces = stored_pieces()

    assert {piece.column.name for piece in pieces} == {each.name for each in SCHEMA if each.stored}
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert all(piece.start % piece.dtype.itemsize == 0 for piece in pieces)


def test_score_files_have_their_columns() -> None:
    """Decision and reason are added as texts where there is a gate."""
    assert ScoredBatch.unscored(1).file_columns().keys() == parts("file")


def test_the_map_has_its_columns() -> None:
    """Beside the id, time and label of each point."""
    assert point_columns(make_points(3)).keys() == parts("browser") | {"id", "time", "label"}
