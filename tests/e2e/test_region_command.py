"""`darksight region` against a running service, as an analyst types it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_client import Client, Reason
from darksight_service.cli import main

from darksight_core.bundle import read_bundle
from darksight_core.runtime.policy import ScoringPolicy
from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.servers import running_server, wait_until

ROWS = make_probs(200, K, seed=3)


def test_a_region_from_preview_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Preview, add, enforce, list, carry over, export and remove; the exported bundle decides as the service did."""
    bundles = [gated_bundle(tmp_path / f"{seed}.safetensors", seed=seed) for seed in (0, 1)]
    versions = [read_bundle(bundle).version for bundle in bundles]
    options = ("--workers", "1", "--bundle-dir", str(tmp_path))
    with (
        running_server({"digits": bundles[0]}, tmp_path / "data", *options) as server,
        Client(server.grpc_target, timeout_seconds=60.0) as client,
    ):

        def run(*arguments: str) -> Any:
            assert main(["region", *arguments, "--server", server.grpc_target, "--json"]) == 0
            return json.loads(capsys.readouterr().out)

        client.deploy("digits", bundles[1].name)
        plain = client.score("digits", ROWS)
        x, y = plain.points[np.flatnonzero(plain.accepted)[0]]
        corners = [[x - 2, y - 2], [x + 2, y - 2], [x + 2, y + 2], [x - 2, y + 2]]
        drawn = tmp_path / "drawn.json"
        drawn.write_text(json.dumps(corners))
        inline = " ".join(f"{a},{b}" for a, b in corners)
        wait_until(lambda: len(list(client.points("digits"))) == len(ROWS), what="the points in the store")

        preview = run("preview", "digits", "--polygon", inline)
        assert preview["examined"] == len(ROWS)
        assert preview["accuracy"] == {"rows": 0, "correct": 0, "low": 0.0, "high": 1.0, "value": None}
        run("add", "digits", "gap", "--polygon", str(drawn), "--author", "ann", "--expires", "2099-01-01T00:00Z")
        assert run("enforce", "digits", "gap", "--comment", "agreed")["is_enforced"] is True
        served = client.score("digits", ROWS)
        listed = tmp_path / "listed.json"
        listed.write_text(json.dumps(run("list", "digits")))
        carried = run("carry-over", "digits", "gap", "--from", versions[0], "--to", versions[1])
        assert carried["is_saved"] is False
        out = tmp_path / "out.safetensors"
        run("export", "digits", str(bundles[0]), "--out", str(out))
        run("export", "digits", str(bundles[0]), "--out", str(tmp_path / "again.safetensors"), "--regions", str(listed))
        for arguments in (("list", "digits"), ("list", "digits", "--history"), ("preview", "digits", "--name", "gap")):
            assert main(["region", *arguments, "--server", server.grpc_target]) == 0
        people = capsys.readouterr().out
        assert run("shadow", "digits", "gap")["is_enforced"] is False
        run("remove", "digits", "gap")
        history = run("list", "digits", "--history")
        assert main(["region", "enforce", "digits", "gap", "--server", server.grpc_target]) == 2
        assert "no region 'gap'" in capsys.readouterr().err
        other = str(tmp_path / "other.safetensors")
        assert main(["region", "export", "digits", str(bundles[1]), "--out", other, "--regions", str(listed)]) == 2
        assert "carry-over" in capsys.readouterr().err

    exported = read_bundle(out)
    assert exported.version == read_bundle(tmp_path / "again.safetensors").version
    assert exported.gate is not None
    assert [(region.name, region.expires_ms) for region in exported.gate.regions] == [("gap", 4_070_908_800_000)]
    assert (served.reason == Reason.REGION).any()
    np.testing.assert_array_equal(ScoringPolicy.of(exported).score(ROWS).reason, served.reason)
    assert [change["action"] for change in history] == ["remove", "shadow", "enforce", "save"]
    assert "It would reject" in people
    assert re.search(r"predicted class \d; class \d 0\.\d+, class \d", people)
    assert "agreed" in people


@pytest.mark.parametrize("polygon", ["1,2 3", "nothing.json", "a,b c,d"])
def test_a_polygon_that_cannot_be_read_is_bad_usage(polygon: str, capsys: pytest.CaptureFixture[str]):
    """With one sentence that shows how it is written."""
    status = main(["region", "add", "digits", "gap", "--polygon", polygon])

    assert status == 2
    assert "--polygon" in capsys.readouterr().err
