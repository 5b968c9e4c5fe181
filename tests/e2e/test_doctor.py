"""`darksight doctor` on machines that are well and on machines that are not."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from darksight_service.cli import main
from darksight_service.store.store import Store

from tests.unit.service.metrics.test_instance import END_2027, EXPIRES_2027

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command with any free ports; gives its exit status and its findings by check."""
    for name in ("HTTP", "GRPC", "EXPLORER"):
        monkeypatch.setenv(f"DARKSIGHT_{name}_PORT", "0")
    monkeypatch.setenv("DARKSIGHT_SPOOL_BYTES", "1000000")
    monkeypatch.setenv("DARKSIGHT_DATA_DIR", str(tmp_path / "data"))

    def run(**settings: object) -> tuple[int, dict[str, Any]]:
        for name, value in settings.items():
            monkeypatch.setenv(f"DARKSIGHT_{name.upper()}", str(value))
        status = main(["doctor", "--json"])
        return status, {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}

    return run


def test_a_machine_that_is_well(doctor: Doctor, tmp_path: Path) -> None:
    """Every check runs, none finds an error, and nothing is written."""
    status, findings = doctor()

    assert status == 0
    assert {"python", "grpcio", "compiled code", "settings", "data directory", "disk", "database", "clock"} <= {
        *findings
    }
    assert {"http port", "grpc port", "explorer port"} <= {*findings}
    assert all(each["state"] != "error" for each in findings.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("days", "state"), [(100.0, "ok"), (10.0, "warning"), (-1.0, "error")])
def test_a_certificate_near_its_end(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float, state: str
) -> None:
    """The finding has its last day, and the remedy the file to renew."""
    file = tmp_path / "tls.crt"
    file.write_text(EXPIRES_2027)
    monkeypatch.setattr(time, "time", lambda: END_2027 - 86_400.0 * days)

    _, findings = doctor(tls_cert=file, tls_key=file)

    assert findings["tls_cert"]["state"] == state
    assert "2027-12-22" in findings["tls_cert"]["found"]
    assert (str(file) in findings["tls_cert"]["remedy"]) == (state != "ok")


def test_a_port_that_another_program_uses(doctor: Doctor) -> None:
    """The finding names the port, and the remedy the option."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        status, findings = doctor(grpc_port=other.getsockname()[1])

    assert status == 1
    assert findings["grpc port"]["state"] == "error"
    assert "--grpc-port" in findings["grpc port"]["remedy"]


def test_a_data_directory_that_is_a_file(doctor: Doctor, tmp_path: Path) -> None:
    """A path that cannot be a directory is an error with the option that names another."""
    (tmp_path / "data").write_text("", encoding="utf-8")

    status, findings = doctor()

    assert status == 1
    assert "--data-dir" in findings["data directory"]["remedy"]


def test_a_disk_without_space_for_the_spools(doctor: Doctor) -> None:
    """Less free space than full spools take is a warning, which is no error."""
    status, findings = doctor(spool_bytes=1 << 60)

    assert (status, findings["disk"]["state"]) == (0, "warning")
    assert "spool_bytes" in findings["disk"]["remedy"]


def test_a_bad_setting(doctor: Doctor) -> None:
    """A setting that cannot be read is an error, and the other checks of the machine still run."""
    status, findings = doctor(workers="many")

    assert status == 1
    assert "DARKSIGHT_WORKERS" in findings["settings"]["found"]
    assert "compiled code" in findings


def test_a_bundle_that_does_not_exist(doctor: Doctor) -> None:
    """A model whose bundle is missing is an error under its name."""
    status, findings = doctor(models="digits=digits.safetensors")

    assert status == 1
    assert "does not exist" in findings["model digits"]["found"]


def test_a_clock_that_is_behind_the_stored_points(doctor: Doctor, tmp_path: Path) -> None:
    """Points of the future mean that this clock, or that of another replica, is wrong."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    Store.open(url, auto_upgrade=True).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("insert into rollup values (1, 40000000, 0, 1, 0, 0, 1, 1, 0.0, 0.0)")
    connection.close()

    status, findings = doctor(database_url=url)

    assert findings["database"]["state"] == "ok"
    assert (status, findings["clock"]["state"]) == (1, "error")
    assert "future" in findings["clock"]["found"]


def test_tables_that_are_not_current(doctor: Doctor, tmp_path: Path) -> None:
    """An empty database file is a warning on SQLite, which the service upgrades itself."""
    sqlite3.connect(tmp_path / "store.db").close()
    (tmp_path / "store.db").touch()

    status, findings = doctor(database_url=f"sqlite:///{tmp_path / 'store.db'}")

    assert (status, findings["database"]["state"]) == (0, "warning")


def test_the_table_for_people(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json there is a table, and a line for each remedy; in a pipe it has no colours."""
    doctor(workers="many")

    status = main(["doctor"])

    said = capsys.readouterr().out
    assert status == 1
    assert said.startswith("check ")
    assert "error: settings: correct it" in said
    assert "\x1b" not in said
