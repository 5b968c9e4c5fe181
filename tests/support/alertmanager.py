"""A real Alertmanager with the configuration of deploy/alertmanager, and the notifications that it sends."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.support.servers import wait_until
from tests.support.tools import find_tool

__all__ = ["Alertmanager", "run_alertmanager"]

CONFIG = Path(__file__).parents[2] / "deploy" / "alertmanager" / "alertmanager.yml"


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """A running Alertmanager, and what it has sent: receiver and alerts of each notification."""

    url: str
    sent: list[dict[str, Any]] = field(default_factory=list)

    def post(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Send alerts as Prometheus does: each with labels and annotations."""
        body = json.dumps([{"labels": each["labels"], "annotations": each["annotations"]} for each in alerts])
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v2/alerts", body.encode(), headers)
        with urllib.request.urlopen(request, timeout=30):
            pass

    def notified(self) -> set[tuple[str, str, str]]:
        """Receiver, name and model of all alerts in the notifications so far."""
        return {
            (each["receiver"], alert["labels"]["alertname"], alert["labels"]["model"])
            for each in self.sent
            for alert in each["alerts"]
        }


@contextlib.contextmanager
def run_alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """Run Alertmanager until the end of the block. It waits a second for alerts that belong together, not 30."""
    sent: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log."""

    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["route"]["group_wait"] = "1s"
    for each in config["receivers"]:
        each["webhook_configs"] = [{"url": f"http://127.0.0.1:{receiver.server_address[1]}"}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [find_tool("prometheus-alertmanager"), f"--config.file={folder / 'alertmanager.yml'}", "--log.level=warn"]
    command += [f"--storage.path={folder}", f"--web.listen-address={address}", "--cluster.listen-address="]
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: _is_ready(address), 60.0, "Alertmanager")
        yield Alertmanager(f"http://{address}", sent)
    finally:
        process.terminate()
        process.wait(20)
        receiver.shutdown()
        receiver.server_close()


def _is_ready(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
        return True
    return False
