"""The systemd unit: systemd accepts it, and the command that it runs starts a service from its files and logs JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from darksight_client import Client, UnknownModel
from darksight_service.control.tokens import make_token

from darksight_core.bundle import write_bundle
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.certificates import Certificates
from tests.support.servers import wait_until
from tests.support.tools import needs

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "darksight.service"


def lines_of(text: str, name: str) -> list[str]:
    """Values of a name in the unit file."""
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]


def is_logged(client: Client, log: list[str]) -> bool:
    """Whether the request id of a failed call is in the log."""
    try:
        client.score("nobody", make_probs(1, 3))
    except UnknownModel:
        time.sleep(0.05)
    refused = [json.loads(line) for line in log if '"call_refused"' in line]
    return any("nobody" in line["error"] and len(line["request"]) == 32 for line in refused)


@needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """No unknown name, no bad value; the program itself is not installed here."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/darksight/bin/darksight", "/bin/true"))

    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False)

    # It also verifies units of the machine that this one needs.
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []


def test_the_command_of_the_unit_starts_a_service(tmp_path: Path) -> None:
    """With its settings file, its variables and its credentials alone: models, tokens, TLS and a database.

    Every line of its log is JSON, and after SIGHUP the log has failed calls. It needs no standard input.
    """
    etc, state, credentials = (tmp_path / name for name in ("etc", "state", "credentials"))
    for folder in (etc, state, credentials):
        folder.mkdir()
    write_bundle(etc / "digits.safetensors", make_bundle(rows=400))
    certificates = Certificates(tmp_path / "ca")
    cert, key = certificates.make("server")
    secret, token = make_token("caller", ["score"])
    secrets = {"tls_cert": cert.read_text(), "tls_key": key.read_text(), "tokens": token.line()}
    secrets["database_url"] = f"sqlite:///{tmp_path / 'points.db'}\n"
    unit = UNIT.read_text()
    for line in lines_of(unit, "LoadCredential"):
        name, _, path = line.partition(":")
        assert path == f"/etc/darksight/{name}"
        (credentials / name).write_text(secrets.pop(name))
    assert secrets == {}

    def moved(text: str) -> str:
        for before, after in {"/etc/darksight": etc, "/var/lib/darksight": state, "%d": credentials}.items():
            text = text.replace(before, str(after))
        return text

    (etc / "settings.toml").write_text(moved(UNIT.with_name("settings.toml").read_text()))
    (command,) = lines_of(unit, "ExecStart")
    variables = dict(moved(line).split("=", 1) for line in lines_of(unit, "Environment"))
    # The cache of compiled code is that of the other tests, and ports are free ones.
    variables.pop("NUMBA_CACHE_DIR")
    variables |= {f"DARKSIGHT_{name}_PORT": "0" for name in ("GRPC", "HTTP", "EXPLORER")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DARKSIGHT_")}
    process = subprocess.Popen(
        [
            "sh",
            "-c",
            'exec "$@" <&-',
            "sh",
            sys.executable,
            "-m",
            "darksight_service.cli",
            *moved(command).split()[1:],
            "--workers",
            "1",
        ],
        env={**clean, **variables},
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    log: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            log.extend(lines)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: any("serving digits on gRPC" in line for line in log) or process.poll() is not None)
        assert process.poll() is None, log
        announced = re.search(r"gRPC \S+:(\d+),", "".join(log))
        assert announced is not None
        options = {"tls_ca": str(certificates.ca), "server_name": "localhost", "token": secret}
        with Client(f"127.0.0.1:{announced[1]}", timeout_seconds=60.0, **options) as client:
            assert client.score("digits", make_probs(1, 3)).recorded
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: is_logged(client, log), what="a line for a failed call")
        # Not TLS: gRPC itself has something to say about it.
        with socket.create_connection(("127.0.0.1", int(announced[1])), timeout=60.0) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(100)
    finally:
        process.terminate()
        assert process.wait(60) == 0
        reader.join()
    assert [line for line in log if not line.startswith('{"time"')] == []
