"""Adds a column to a copy of the project, by one line of the schema, and sends it through everything that has rows.

`add_column` makes the copy. Run as `python new_column.py FOLDER URL...` with the packages of the copy, this file checks
that the values of the new column come out where they should. No other file of the copy knows the column, beside a
migration and a field of the proto.
"""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["ROOT", "add_column"]

ROOT = Path(__file__).parents[2]

_FIELD = """
    margin: Annotated[
        Floats, Column("<f8", "<f4", "margin", "a new column", listed=True, file=True, browser=True)
    ]

    def __len__(self) -> int:
"""
_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("point", sa.Column("margin", sa.REAL, nullable=True))
"""
_STUB = """
def _with_margin(data):
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    response = next(message for message in file.message_type if message.name == "ScoreResponse")
    response.field.add(name="margin", number=99, label=3, type=1, json_name="margin")
    return _descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


DESCRIPTOR = _with_margin("""


def add_column(folder: Path) -> list[Path]:
    """Copy the packages to a folder, where rows have one more column; returns where to import from."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("darksight_core", "service/darksight_client", "service/darksight_service", "migrations"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    _edit(folder / "darksight_core/rows/schema.py", "\n    def __len__(self) -> int:\n", _FIELD)
    revisions = sorted((folder / "migrations/versions").glob("[0-9]*.py"))
    before = revisions[-1].name.partition("_")[0]
    revision = f"{int(before) + 1:04}"
    (folder / f"migrations/versions/{revision}_margin.py").write_text(
        _MIGRATION.format(revision=revision, before=before), encoding="utf-8"
    )
    stub = folder / "service/darksight_client/stubs/darksight/v1/monitor_pb2.py"
    _edit(stub, "\nDESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(", _STUB)
    return [folder, folder / "service"]


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def _check(folder: Path, urls: list[str]) -> None:
    from dataclasses import replace

    import numpy as np
    from darksight_client.results.columns import read_response
    from darksight_client.results.rows import joined, read_scored
    from darksight_service.ingest.records import decode, encode_points
    from darksight_service.operations.scoring import write_response
    from darksight_service.scoring.files.columns import score_columns
    from darksight_service.scoring.files.tables import open_scores
    from darksight_service.scoring.service import ScoreReply
    from darksight_service.store.ids import make_batch_id

    from darksight_core.predictions import Predictions
    from darksight_core.rows.schema import ScoredBatch
    from darksight_core.runtime.result_block import ResultBlock

    expected = np.array([0.25, np.nan, 0.75])
    probs = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], dtype=np.float32)
    ones = np.ones(3, dtype=np.int8)
    values: dict[str, Any] = {"margin": expected, "points": np.zeros((3, 2)), "decision": ones, "reason": ones}
    batch = replace(ScoredBatch.unscored(3), **values, predicted=probs.argmax(axis=1).astype(np.int32))
    block, batch_id = ResultBlock.of(batch), make_batch_id(1_800_000_000_000)

    response = write_response(ScoreReply("m", "a" * 64, batch_id, block, True))
    scored: Any = read_scored(*read_response(response, 3), ())
    np.testing.assert_array_equal(scored.margin, expected)
    np.testing.assert_array_equal(joined([scored, scored]).margin, [*expected, *expected])
    np.testing.assert_array_equal(scored.table_columns()["margin"], expected)

    predictions = Predictions(probs, None, None, None, ("no", "yes"), "test")
    for name, source in (("local.csv", batch), ("remote.csv", scored)):
        with open_scores(folder / name) as sink:
            sink.write(None, score_columns(source, predictions, ("no", "yes")))
        with (folder / name).open(encoding="utf-8") as file:
            assert [row["margin"] for row in csv.DictReader(file)] == ["0.25", "nan", "0.75"]

    record = encode_points(batch_id, "m", "a" * 64, False, 0, (), block, probs.tobytes())
    decoded: Any = decode(record)
    np.testing.assert_array_equal(decoded.margin, expected)
    for number, url in enumerate(urls):
        _check_store(url, decoded, folder / f"export-{number}", expected.tolist())


def _check_store(url: str, points: Any, folder: Path, expected: list[float]) -> None:
    import numpy as np
    import pyarrow.parquet as pq
    from darksight_service.http.explorer.api import points as page
    from darksight_service.http.explorer.columns import point_columns
    from darksight_service.scoring.files.export import export_points
    from darksight_service.store.points import PointFilter
    from darksight_service.store.store import Store

    with Store.open(url, auto_upgrade=True) as store:
        store.check()
        assert store.insert([points]).points == 3
        stored: Any = store.list_points(PointFilter("m")).points
        # Newest first.
        np.testing.assert_array_equal(stored.margin, expected[::-1])
        drawn = point_columns(store.map_points(PointFilter("m")))
        np.testing.assert_array_equal(drawn["margin"], np.array(expected[::-1], dtype=np.float32))

        bundle = SimpleNamespace(class_names=("no", "yes"))
        registry = SimpleNamespace(get=lambda model: SimpleNamespace(bundle=bundle))
        sources: Any = SimpleNamespace(store=lambda: store, registry=registry)
        answers = {endpoint.path: endpoint for endpoint in page.endpoints(sources)}
        span = {"model": "m", "since_ms": "1", "until_ms": str(1_900_000_000_000)}

        def answer(path: str) -> Any:
            endpoint: Any = answers[path]
            return endpoint.answer(SimpleNamespace(input=endpoint.input(**span)))

        found = answer("/api/points")
        assert found["labels"]["margin"] == "margin"
        np.testing.assert_array_equal([point["margin"] for point in found["points"]], expected[::-1])
        text = b"".join(answer("/api/points.csv").parts).decode()
        assert [row["margin"] for row in csv.DictReader(text.splitlines())] == ["0.75", "", "0.25"]

        export_points(store, str(folder))
        (file,) = folder.rglob("hour-*.parquet")
        assert pq.read_table(file, partitioning=None)["margin"].to_pylist() == [0.75, None, 0.25]


if __name__ == "__main__":
    _check(Path(sys.argv[1]), sys.argv[2:])
