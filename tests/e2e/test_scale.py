"""Beyond one process: fits by several, scores of stores, samples; real processes and files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.fit.network.config import DistilConfig
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.commands import QUICK_FIT, run_command

DARKSIGHT = (sys.executable, "-m", "darksight_service.cli")


def darksight(*arguments: object, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a process of its own, as one that starts others must be."""
    command = [*DARKSIGHT, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of two blocks of rows together, whose seam is in the middle of a block."""
    folder = tmp_path_factory.mktemp("store")
    probs = make_probs(10_000, 3)
    for number, part in enumerate((slice(0, 6_000), slice(6_000, 10_000))):
        columns = {f"prob_{k}": probs[part, k] for k in range(3)}
        table = pa.table({**columns, "label": probs[part].argmax(axis=1)})
        pq.write_table(table, folder / f"part{number}.parquet", row_group_size=3_000)
    return folder


@pytest.fixture(scope="module")
def one(store: Path) -> dict[str, object]:
    """The report of a fit in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("darksight_core.fit.pipeline.DistilConfig", partial(DistilConfig, epoch_rows=256))
        done = run_command("fit", store / "part*.parquet", "--out", store / "one.safetensors", "--starts", 1, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_two_processes_fit_the_same_bundle_even_when_one_is_killed(store: Path, one: dict[str, object]) -> None:
    """A killed process ends the fit with one sentence; --resume completes it, with the bundle of one process."""
    out = store / "two.safetensors"
    command = [*DARKSIGHT, "fit", str(store / "part*.parquet"), "--out", str(out), "--starts", "1", "--nproc", "2"]
    process = subprocess.Popen(
        [*command, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=QUICK_FIT
    )
    try:
        finished = store / "two.safetensors.checkpoints" / "map.safetensors"
        while not finished.exists() and process.poll() is None:
            time.sleep(0.02)
        os.kill(process_of_rank(process.pid, 1), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    kept = finished.stat().st_mtime_ns
    left_no_bundle = not out.exists()

    done = darksight(*command[3:], "--resume", "--json", "--quiet", env=QUICK_FIT)

    assert process.returncode == 2
    assert "process 1 of 2 was killed by SIGKILL" in errors
    assert "--resume" in errors
    assert left_no_bundle
    assert kept
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == one["version"]
    assert found["rows"] == one["rows"]
    assert not finished.parent.exists()


def process_of_rank(parent: int, rank: int) -> int:
    """The process that torchrun started below a parent as this rank."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            mine = f"PPid:\t{parent}\n" in status.read_text()
            if mine and f"\0RANK={rank}\0".encode() in b"\0" + (status.parent / "environ").read_bytes():
                return int(status.parent.name)
        except OSError:
            continue
    raise AssertionError(f"no process has rank {rank}")


def test_steps_of_another_fit_are_refused(store: Path) -> None:
    """What was finished with another seed is not taken over."""
    folder = store / "three.safetensors.checkpoints"
    folder.mkdir()
    (folder / "identity.json").write_text("{}", encoding="utf-8")

    done = run_command("fit", store / "part*.parquet", "--out", store / "three.safetensors", "--resume")

    assert done.returncode == 2
    assert "of a fit with other rows or options" in done.stderr


def test_a_sample_of_a_store_is_fitted_and_told(store: Path) -> None:
    """--sample N draws N rows in one pass; the manifest says from how many and by which seed."""
    out = store / "sample.safetensors"

    done = run_command(
        "fit", store / "part*.parquet", "--out", out, "--starts", 1, "--sample", 2_000, "--json", "--seed", 7
    )

    assert done.returncode == 0, done.stderr
    bundle = read_bundle(out)
    told = bundle.manifest["fit_config"]["sample"]
    assert (told["rows"], told["of"], told["seed"]) == (2_000, 10_000, 7)
    assert told["drawn_alike"] + told["by_entropy_alone"] == told["fit"]
    assert (bundle.splits.calibrate.n, bundle.splits.test.n) == (599, 200)
    assert json.loads(done.stdout)["kl_sym"] < 0.1


@pytest.fixture(scope="module")
def model(store: Path) -> Path:
    """A bundle for the classes of the store."""
    path = store / "model.safetensors"
    write_bundle(path, make_bundle())
    return path


@pytest.fixture(scope="module")
def scores(store: Path, model: Path) -> tuple[Path, str]:
    """A folder of scores that two local processes made, and what the command printed."""
    out = store / "local"
    done = darksight("score", model, store / "part*.parquet", "--out", out, "--workers", 2, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def read(folder: Path) -> dict[str, pa.Table]:
    """Tables of a folder of scores by name."""
    return {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}


def test_ray_scores_what_local_processes_score(store: Path, model: Path, scores: tuple[Path, str]) -> None:
    """Both engines write the same parts with the same scores, which are those of a single file too."""
    options = ("--engine", "ray", "--workers", 2, "--json", "--quiet")
    ray = darksight("score", model, store / "part*.parquet", "--out", store / "ray", *options)
    single = run_command("score", model, store / "part1.parquet", "--out", store / "single.parquet", "--quiet")

    assert ray.returncode == single.returncode == 0, ray.stderr + single.stderr
    assert "scoring" not in ray.stderr
    assert json.loads(scores[1]) | {"out": ""} == json.loads(ray.stdout) | {"out": ""}
    assert json.loads(ray.stdout)["rows"] == 10_000
    local = read(scores[0])
    assert len(local) == 2
    assert read(store / "ray") == local
    assert next(table for name, table in local.items() if "part1" in name) == pq.read_table(store / "single.parquet")


def test_an_ended_run_goes_on(store: Path, model: Path, scores: tuple[Path, str]) -> None:
    """Finished parts are kept as they are, missing ones are scored; another bundle or changed files are refused."""
    pattern, out = store / "part*.parquet", store / "again"
    shutil.copytree(scores[0], out)
    kept, lost = sorted(out.glob("*.parquet"))
    before = kept.stat().st_mtime_ns
    lost.unlink()

    again = darksight("score", model, pattern, "--out", out, "--json", "--quiet")
    write_bundle(store / "other.safetensors", make_bundle(seed=1))
    other = run_command("score", store / "other.safetensors", pattern, "--out", out)

    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) | {"out": ""} == json.loads(scores[1]) | {"out": ""}
    assert kept.stat().st_mtime_ns == before
    assert lost.exists()
    assert other.returncode == 2
    assert "scores of another bundle" in other.stderr


def test_a_defect_in_a_store_is_named(store: Path, model: Path) -> None:
    """A bad row leaves no part of itself, and file and row are named, whichever worker met it."""
    table = pq.read_table(store / "part0.parquet").to_pydict()
    table["prob_1"][5_000] = float("nan")
    folder = store / "bad"
    folder.mkdir()
    pq.write_table(pa.table(table), folder / "bad.parquet")

    files = (folder / "bad.parquet", store / "part1.parquet")
    done = darksight("score", model, *files, "--out", store / "bad scores", "--workers", 2)

    assert done.returncode == 2
    assert "bad.parquet, row 5000" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((store / "bad scores").glob("bad-*.parquet"))
    assert np.isnan(table["prob_1"][5_000])
