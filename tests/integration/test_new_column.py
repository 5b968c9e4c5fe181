"""A new column of a scored row is one field of the schema."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.new_column import ROOT, add_column
from tests.support.postgres import Postgres


def test_a_new_column_goes_everywhere_without_another_edit(tmp_path: Path, postgres: Postgres) -> None:
    """Response, client, record, SQL on both databases, score file, export and explorer; proto and migration aside."""
    url = postgres.fresh_database()
    paths = add_column(tmp_path / "copy")
    script = ROOT / "tests/support/new_column.py"
    arguments = [str(tmp_path), f"sqlite:///{tmp_path / 'store.db'}", url]

    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    postgres.drop_database(url)
