"""Files of the service: private, and no code that others can write is run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from darksight_client import Client

from darksight_core.runtime.cpus import cache_folder
from tests.integration.test_service import K
from tests.support.builders import make_probs
from tests.support.servers import Server, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"


def modes(folder: Path) -> dict[str, str]:
    """Modes of a directory and all that is in it, unless they are private."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        # A segment of the spool goes once it is stored.
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o077:
                found[str(path.relative_to(folder))] = oct(mode)
    return found


@pytest.fixture
def open_umask() -> object:
    """The usual mask of a shell, under which everybody may read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_everything_that_the_service_writes_is_private(attacked: Server, tokens: tuple[dict[str, str], str]) -> None:
    """Spool, database, counters, state, copies of bundles: 0700 and 0600, whatever the mask of the shell."""
    data_dir = attacked.data_dir
    with Client(attacked.grpc_target, token=tokens[0]["other"], timeout_seconds=60.0) as client:
        assert client.score("digits", make_probs(2, K)).recorded
    wait_until(lambda: {"explorer", "storage"} <= attacked.children().keys(), what="all processes")
    wait_until(lambda: (data_dir / "time").exists(), what="the first maintenance")

    found = modes(data_dir)

    names = {path.name for path in data_dir.iterdir()}
    assert {"bundles", "counts", "spool", "darksight.db", "registry.json", "serve.lock"} <= names
    assert found == {}


@pytest.mark.usefixtures("open_umask")
def test_a_new_database_is_private(tmp_path: Path) -> None:
    """Also if `darksight db upgrade` creates it."""
    data_dir = tmp_path / "data"
    command = [sys.executable, "-m", "darksight_service.cli", "db", "upgrade", "--data-dir", str(data_dir)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)

    assert (data_dir / "darksight.db").exists()
    assert modes(data_dir) == {}


def test_compiled_code_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the folder runs code in the service."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "darksight"
    assert cache_folder() == folder
    folder.mkdir(mode=0o700)
    (folder / "score_rows.nbi").touch(0o600)
    assert cache_folder() == folder

    (folder / "score_rows.nbi").chmod(0o666)
    assert cache_folder() != folder
    (folder / "score_rows.nbi").chmod(0o600)
    folder.chmod(0o777)
    assert cache_folder() != folder


def test_the_service_cannot_write_to_compiled_code_where_it_is_installed() -> None:
    """In the image it belongs to root, and the systemd unit gives the service no folder for it."""
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    unit = (DEPLOY / "systemd" / "darksight.service").read_text(encoding="utf-8")

    assert "chmod -R a+rX,go-w /opt/darksight" in dockerfile
    assert "COPY --from=build /opt/darksight /opt/darksight\n" in dockerfile
    assert "NUMBA_CACHE_DIR=/opt/darksight/compiled\n" in unit
    assert "ProtectSystem=strict\n" in unit
    assert "CacheDirectory" not in unit
