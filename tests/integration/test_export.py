"""`darksight db export`: each point once, whenever it is killed and however often it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from darksight_service.cli import main
from darksight_service.scoring.files import export
from darksight_service.scoring.files.export import export_points
from darksight_service.store.store import Store
from darksight_service.store.write.retention import Limits

from tests.integration.conftest import NOW_MS
from tests.support.points import VERSION, make_outcomes, make_points

HOUR_MS = 3_600_000
TAGS = {"camera": "7", "site": "Lyon", "reference": "a/=1.png"}


def fill(store: Store, hours: int = 4, rows: int = 30) -> None:
    """Points of some hours of two models, some with tags, names and a shadow."""
    store.register_bundle("digits", VERSION, class_names=[f"c{number}" for number in range(10)], calibration_rows=5)
    for hour in range(hours):
        ms = NOW_MS - hour * 7 * HOUR_MS
        store.insert([make_points(rows, ms=ms, seed=hour, tags=TAGS if hour % 2 else (), trace=bytes(range(16)))])
        store.insert([make_points(3, ms=ms, seed=hour, is_shadow=True), make_points(2, ms=ms, seed=hour, model="a/b")])


def read(folder: Path) -> pa.Table:
    """All files as one table, with the columns of the directories."""
    files = sorted(folder.glob("model=*/day=*/hour-*.parquet"))
    schema = pa.unify_schemas([pq.read_schema(file) for file in files])
    found = ds.dataset(folder, format="parquet", partitioning="hive")
    names = set(found.schema.names) - set(schema.names)
    assert names == {"model", "day"}
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files], promote_options="default")


def test_points_are_exported_once(store: Store, tmp_path: Path) -> None:
    """With tags, decisions and labels; a second export writes nothing, and new points and labels their hours alone."""
    fill(store)
    first = export_points(store, str(tmp_path))
    second = export_points(store, str(tmp_path))
    table = read(tmp_path)

    assert (first.points, first.written, second.written, second.unchanged) == (140, 8, 0, 8)
    assert len(set(table["point_id"].to_pylist())) == table.num_rows == 140
    assert sum(table["is_shadow"].to_pylist()) == 12
    rows = [row for row in table.to_pylist() if row["tag_camera"]]
    assert len(rows) == 60
    assert (rows[0]["tag_site"], rows[0]["reference"], dict(rows[0]["tags"])) == ("Lyon", "a/=1.png", TAGS)
    assert rows[0]["trace_id"] == bytes(range(16)).hex()
    assert rows[0]["predicted"].startswith("c")
    assert {row["decision"] for row in rows} == {"accept", "reject"}
    invalid = next(row for row in rows if row["reason"] == "invalid")
    assert (invalid["predicted"], invalid["x"], invalid["probs"]) == (None, None, None)
    assert not list(tmp_path.rglob("*.partial"))
    assert (tmp_path / "model=a%2Fb").is_dir()

    late = make_points(5, ms=NOW_MS - 7 * HOUR_MS, seed=99, with_invalid=False)
    store.insert([late])
    name = make_points(30, seed=0, with_invalid=False).prediction_ids()[0]
    store.insert([make_outcomes({name: 3})])
    third = export_points(store, str(tmp_path))

    assert (third.written, third.unchanged) == (2, 6)
    table = read(tmp_path)
    assert len(set(table["point_id"].to_pylist())) == table.num_rows == 145
    labelled = [row for row in table.to_pylist() if row["label"] is not None]
    assert [(row["label"], row["is_correct"]) for row in labelled] == [("c3", labelled[0]["predicted"] == "c3")]


def test_an_export_that_is_killed_is_resumed(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps: each point is there once at every time, and the rest follows."""
    fill(store, hours=3)
    steps = ["before the file", "before its name", "before the state"]
    write = export._write

    def killed(step: str) -> Callable[..., Any]:
        def stop(*args: Any) -> Any:
            if step == "before its name":
                write(*args)
            raise KeyboardInterrupt

        return stop

    for number, step in enumerate(steps):
        with monkeypatch.context() as patch:
            if step == "before the state":
                patch.setattr(export._Folder, "write_state", killed(step))
            else:
                patch.setattr(export, "_write", killed(step))
            with pytest.raises(KeyboardInterrupt):
                export_points(store, str(tmp_path))
        files = list(tmp_path.glob("model=*/day=*/*.parquet"))
        assert len(files) == (1 if number == 2 else 0)

    export_points(store, str(tmp_path))

    ids = read(tmp_path)["point_id"].to_pylist()
    assert len(ids) == len(set(ids)) == 105


def test_files_outlive_retention(store: Store, tmp_path: Path) -> None:
    """An hour whose points were deleted keeps its file, also when a late point arrives."""
    fill(store)
    export_points(store, str(tmp_path))
    store.prune(Limits(max_rows=20))

    store.insert([make_points(1, seed=7, ms=NOW_MS - 21 * HOUR_MS + 1)])
    again = export_points(store, str(tmp_path))

    assert read(tmp_path).num_rows >= 140
    assert again.written + again.incomplete >= 1


def test_a_file_keeps_points_that_retention_deletes_within_its_hour(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    """SQLite deletes row by row: late points do not replace what is gone, and an hour without points has no file."""
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}", auto_upgrade=True)
    target = tmp_path / "out"
    store.insert([make_points(2, ms=NOW_MS, model="first"), make_points(20, ms=NOW_MS + 1, model="cut")])
    store.insert([make_points(20, ms=NOW_MS + 2)])
    store.prune(Limits(max_rows=30))

    first = export_points(store, str(target))

    assert (first.points, first.written, first.incomplete) == (30, 2, 1)
    assert not (target / "model=first").exists() or not list((target / "model=first").rglob("*.parquet"))
    name = make_points(20, ms=NOW_MS + 1, model="cut").prediction_ids()[-1]
    store.insert([make_outcomes({name: 3}, model="cut")])
    assert export_points(store, str(target), models=["cut"]).written == 1

    store.prune(Limits(max_rows=10))
    store.insert([make_points(30, ms=NOW_MS + 3)])
    late = export_points(store, str(target), models=["digits"])

    assert (late.written, late.incomplete) == (0, 1)
    assert read(target).num_rows == 30


def test_a_corrected_label_is_exported(store: Store, tmp_path: Path) -> None:
    """Though the hour has as many labels as before."""
    points = make_points(5, with_invalid=False)
    store.insert([points])
    name = points.prediction_ids()[0]
    found = []
    for label, observed in ((3, NOW_MS), (4, NOW_MS + 1000)):
        store.insert([make_outcomes({name: label}, observed_ms=observed)])
        export_points(store, str(tmp_path))
        found += [each for each in read(tmp_path)["label"].to_pylist() if each is not None]

    assert found == ["3", "4"]
    assert export_points(store, str(tmp_path)).written == 0


def test_any_file_system_of_fsspec_is_a_target(store: Store) -> None:
    """Here one in memory."""
    fsspec = pytest.importorskip("fsspec")
    fill(store, hours=2)

    export_points(store, "memory://points", models=["digits"], with_probs=False)

    files = fsspec.filesystem("memory")
    names = [name for name in files.find("/points") if name.endswith(".parquet")]
    with files.open(names[0]) as file:
        assert "probs" not in pq.read_table(file).column_names
    assert len(names) == 2
    files.rm("/points", recursive=True)


def test_the_command_says_what_it_wrote(
    store: Store, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and as JSON; an unknown model or file system is refused."""
    fill(store, hours=2)
    where = ["--database-url", url]

    assert main(["db", "export", str(tmp_path / "out"), "--model", "digits", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out) == {"points": 66, "written": 2, "unchanged": 0, "incomplete": 0}
    assert main(["db", "export", str(tmp_path / "out"), *where]) == 0
    assert "wrote 4 points to 2 files; 2 files were up to date" in capsys.readouterr().out
    for arguments, message in (
        (["nowhere://x"], "nowhere"),
        ([str(tmp_path), "--model", "other"], "no points of model"),
    ):
        assert main(["db", "export", *arguments, *where]) == 2
        assert message in capsys.readouterr().err
