"""What is to be scored into a folder, and what a folder is spared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from darksight_service.scoring.files.bulk import Worker, plan, score_local

from darksight_core.bundle import write_bundle
from darksight_core.errors import ConfigError
from darksight_core.predictions import Dataset
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A bundle."""
    path = tmp_path / "model.safetensors"
    write_bundle(path, make_bundle())
    return path


def write(path: Path, n: int = 40) -> Path:
    """A file of rows, always the same ones."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({f"prob_{k}": column for k, column in enumerate(make_probs(n, 3).T)}), path)
    return path


def test_a_folder_of_anything_else_is_never_emptied(tmp_path: Path, model: Path) -> None:
    """--overwrite replaces scores, not whatever is in a folder that was named by mistake."""
    store = Dataset.open([write(tmp_path / "rows.parquet")])
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear", encoding="utf-8")

    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="not scores; name a new"):
            plan(store, model, home, overwrite=overwrite, alpha=0.01)

    assert [path.name for path in home.iterdir()] == ["letter.txt"]


def test_overwrite_empties_scores_of_another_bundle(tmp_path: Path, model: Path) -> None:
    """Without it they are refused and kept."""
    store, out = Dataset.open([write(tmp_path / "rows.parquet")]), tmp_path / "scores"
    (part,), _ = plan(store, model, out, overwrite=False, alpha=0.01)
    Path(part.out).touch()
    write_bundle(tmp_path / "other.safetensors", make_bundle(seed=1))

    with pytest.raises(ConfigError, match="scores of another bundle"):
        plan(store, tmp_path / "other.safetensors", out, overwrite=False, alpha=0.01)
    kept = Path(part.out).exists()
    left, done = plan(store, tmp_path / "other.safetensors", out, overwrite=True, alpha=0.01)

    assert kept
    assert (len(left), done.rows) == (1, 0)
    assert not Path(part.out).exists()


def test_twins_in_two_folders_are_both_scored(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same name and content twice are twice as many rows; the folder is one table, wherever the command is run."""
    files = [write(tmp_path / day / "rows.parquet") for day in ("monday", "tuesday")]
    out = tmp_path / "scores"
    left, _ = plan(Dataset.open(files), model, out, overwrite=False, alpha=0.01)

    score_local(left, (str(model), 0, None, 0.01, 64), 1, lambda tally: None)

    table = pq.read_table(out)
    assert len(table) == 80
    np.testing.assert_array_equal(np.sort(table["id"].to_numpy()), np.sort([str(row) for row in range(40)] * 2))
    monkeypatch.chdir(tmp_path / "monday")
    again, done = plan(
        Dataset.open([Path("rows.parquet"), Path("../tuesday/rows.parquet")]), model, out, overwrite=False, alpha=0.01
    )
    assert (again, done.rows) == ([], 80)
    assert done == sum((Worker(str(model), 0, None, 0.01, 7).score(part) for part in left), start=type(done)())
