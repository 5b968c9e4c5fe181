"""`darksight ingest` and `darksight region` against a running service, as an operator and an analyst type them.

Every row is stored once, however often and from wherever it is sent.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from darksight_client import Client, Reason
from darksight_service.cli import main
from pyarrow import parquet

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.runtime.policy import ScoringPolicy
from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.servers import Server, running_server, wait_until

CLASSES = 3
ROWS = 2_300
"""Two batches and a part of a third."""
DRAWN = make_probs(200, K, seed=3)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of a model with regions."""
    folder = tmp_path_factory.mktemp("bundles")
    return [gated_bundle(folder / f"{seed}.safetensors", seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def server(bundles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker with a model for each test."""
    folder = tmp_path_factory.mktemp("ingest")
    write_bundle(folder / "a.safetensors", make_bundle(classes=CLASSES))
    models = dict.fromkeys(("lines", "table", "pipe", "bad"), folder / "a.safetensors") | {"digits": bundles[0]}
    options = ("--workers", "1", "--bundle-dir", str(bundles[0].parent))
    with running_server(models, folder / "data", *options) as server:
        yield server


def stored(server: Server, model: str, rows: int) -> list[str]:
    """Prediction ids of the stored points, once there are so many."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        wait_until(lambda: sum(1 for _ in client.points(model, page_size=5000)) >= rows, what="the points")
        return sorted(point.prediction_id for point in client.points(model, page_size=5000))


def lines(rows: np.ndarray, start: int = 0) -> str:
    """A log, every row with an id."""
    log = (
        {"time": "2036-01-01T00:00:00Z", "id": f"row-{start + n}", "tag_site": "north", "probs": row.tolist()}
        for n, row in enumerate(rows)
    )
    return "".join(json.dumps(line) + "\n" for line in log)


def test_a_log_that_grows_is_sent_again_and_stored_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole file each time; the summary is JSON on stdout, the progress on stderr."""
    path, probs = tmp_path / "log.jsonl", make_probs(ROWS + 400, CLASSES, seed=1)
    path.write_text(lines(probs[:ROWS]))
    command = ["ingest", "lines", str(path), "--server", server.grpc_target, "--json"]

    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    with path.open("a") as file:
        file.write(lines(probs[ROWS:], ROWS))
    assert main(command) == 0
    again = capsys.readouterr()
    (tmp_path / "probe.jsonl").write_text(lines(probs[:5], 10**6))
    assert main([*command[:2], str(tmp_path / "probe.jsonl"), *command[3:5], "--probe"]) == 0
    assert "5 rows" in (probed := capsys.readouterr().out)
    assert "nothing was stored" in probed

    day = time.strftime("%Y-%m-%d", time.gmtime())
    assert 0 < (accepted := first["files"][0]["accepted"]) <= ROWS
    assert first == {
        "model": "lines",
        "rows": ROWS,
        "files": [{"file": str(path), "day": day, "rows": ROWS, "batches": 3, "accepted": accepted}],
    }
    assert json.loads(again.out)["rows"] == ROWS + 400
    assert "rows" in again.err
    assert stored(server, "lines", ROWS + 400) == sorted(f"row-{number}" for number in range(ROWS + 400))
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        assert next(client.points("lines", tags={"site": "north"})).tags == {"site": "north"}


def test_parquet_files_without_ids_and_other_files_of_the_same_name(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are recognized by name, number and content: the same file again, from another folder, adds nothing."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        columns = make_probs(1_500, CLASSES, seed=2).T
        table = arrow.table({f"prob_{k}": column for k, column in enumerate(columns)})
        parquet.write_table(table, tmp_path / folder / "day.parquet", row_group_size=400)
    other = arrow.table({f"prob_{k}": column for k, column in enumerate(make_probs(20, CLASSES, seed=3).T)})
    parquet.write_table(other, tmp_path / "other.parquet")
    files = [str(tmp_path / name) for name in ("a/day.parquet", "b/day.parquet", "other.parquet")]

    for _ in range(2):
        assert main(["ingest", "table", *files, "--server", server.grpc_target, "--quiet"]) == 0

    assert len(stored(server, "table", 1_520)) == 1_520
    assert "a/day.parquet: 1,500 rows, day 2" in capsys.readouterr().out


def test_a_pipe(server: Server) -> None:
    """With `-`, by a process of its own; the same lines again add nothing, others do."""
    command = [sys.executable, "-m", "darksight_service.cli", "ingest", "pipe", "-", "--server", server.grpc_target]
    probs = make_probs(60, CLASSES, seed=4)

    for text in (lines(probs[:50]), lines(probs[:50]), lines(probs[50:], 50)):
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    assert len(stored(server, "pipe", 60)) == 60


def test_mistakes_name_the_file_and_the_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and one sentence on stderr."""
    path = tmp_path / "log.jsonl"
    path.write_text(lines(make_probs(2, CLASSES)) + "{\n")
    few = tmp_path / "few.jsonl"
    few.write_text('{"probs": [0.5, 0.5]}\n')
    texts = {
        ("bad", str(path)): f"{path}, row 2 (line 3): the line is not JSON",
        ("bad", str(few)): f"{few}, rows 0 to 0: ",
        ("bad", "missing.jsonl"): "missing.jsonl: the file does not exist",
        ("unknown", str(few)): "unknown",
        ("bad", str(few), "--day", "yesterday"): "--day is 'yesterday'",
        ("bad", str(few), "--day", "2020-01-01"): "one of the last 6 days",
    }
    for arguments, text in texts.items():
        assert main(["ingest", *arguments, "--server", server.grpc_target, "--quiet"]) == 2
        assert text in capsys.readouterr().err


def test_a_region_from_preview_to_export(
    server: Server, bundles: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Preview, add, enforce, list, carry over, export and remove; the exported bundle decides as the service did."""
    versions = [read_bundle(bundle).version for bundle in bundles]
    with Client(server.grpc_target, timeout_seconds=60.0) as client:

        def run(*arguments: str) -> Any:
            assert main(["region", *arguments, "--server", server.grpc_target, "--json"]) == 0
            return json.loads(capsys.readouterr().out)

        client.deploy("digits", bundles[1].name)
        plain = client.score("digits", DRAWN)
        x, y = plain.points[np.flatnonzero(plain.accepted)[0]]
        corners = [[x - 2, y - 2], [x + 2, y - 2], [x + 2, y + 2], [x - 2, y + 2]]
        drawn = tmp_path / "drawn.json"
        drawn.write_text(json.dumps(corners))
        inline = " ".join(f"{a},{b}" for a, b in corners)
        wait_until(lambda: len(list(client.points("digits"))) == len(DRAWN), what="the points in the store")

        preview = run("preview", "digits", "--polygon", inline)
        assert preview["examined"] == len(DRAWN)
        assert preview["accuracy"] == {"rows": 0, "correct": 0, "low": 0.0, "high": 1.0, "value": None}
        run("add", "digits", "gap", "--polygon", str(drawn), "--author", "ann", "--expires", "2099-01-01T00:00Z")
        assert run("enforce", "digits", "gap", "--comment", "agreed")["is_enforced"] is True
        served = client.score("digits", DRAWN)
        carried = run("carry-over", "digits", "gap", "--from", versions[0], "--to", versions[1])
        assert carried["is_saved"] is False
        out = tmp_path / "out.safetensors"
        run("export", "digits", str(bundles[0]), "--out", str(out))
        for arguments in (("list", "digits"), ("list", "digits", "--history"), ("preview", "digits", "--name", "gap")):
            assert main(["region", *arguments, "--server", server.grpc_target]) == 0
        people = capsys.readouterr().out
        assert run("shadow", "digits", "gap")["is_enforced"] is False
        run("remove", "digits", "gap")
        history = run("list", "digits", "--history")
        assert main(["region", "enforce", "digits", "gap", "--server", server.grpc_target]) == 2
        assert "no region 'gap'" in capsys.readouterr().err

    exported = read_bundle(out)
    assert exported.gate is not None
    assert [(region.name, region.expires_ms) for region in exported.gate.regions] == [("gap", 4_070_908_800_000)]
    assert (served.reason == Reason.REGION).any()
    np.testing.assert_array_equal(ScoringPolicy.of(exported).score(DRAWN).reason, served.reason)
    assert [change["action"] for change in history] == ["remove", "shadow", "enforce", "save"]
    assert "It would reject" in people
    assert re.search(r"predicted class \d; class \d 0\.\d+, class \d", people)
    assert "agreed" in people


@pytest.mark.parametrize("polygon", ["1,2 3", "nothing.json", "a,b c,d"])
def test_a_polygon_that_cannot_be_read_is_bad_usage(polygon: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With one sentence that shows how it is written."""
    status = main(["region", "add", "digits", "gap", "--polygon", polygon])

    assert status == 2
    assert "--polygon" in capsys.readouterr().err
