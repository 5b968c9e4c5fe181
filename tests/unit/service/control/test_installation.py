"""The secret of an installation."""

from __future__ import annotations

from pathlib import Path

from darksight_service.control.installation import read_secret, share_secret
from darksight_service.store.store import Store

from tests.support.databases import copy_sqlite


def test_replicas_get_the_secret_of_the_first(tmp_path: Path) -> None:
    """Whatever they drew before they reached the database; the file is for its owner alone, and damage is mended."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    own = read_secret(first)
    assert len(own) == 32
    assert own == read_secret(first) != read_secret(second)

    with Store.open(copy_sqlite(tmp_path / "store.db")) as store:
        for folder in (first, second):
            share_secret(folder, store)
        (first / "secret").write_bytes(b"cut")
        assert read_secret(first) != own
        share_secret(first, store)

    assert read_secret(first) == read_secret(second) == own
    assert (first / "secret").stat().st_mode & 0o777 == 0o600
