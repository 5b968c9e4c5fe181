"""The demo as a person runs it: until Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from tests.support.commands import QUICK_FIT
from tests.support.servers import wait_until


def test_the_demo_ends_with_a_live_map_and_stops_at_an_interrupt(tmp_path: Path) -> None:
    """It finds the drift of altered traffic alone, serves the explorer, and leaves no process behind."""
    said: list[str] = []
    command = [sys.executable, "-m", "darksight_service.cli", "demo", "--out", str(tmp_path)]
    with (
        (tmp_path / "stdout").open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=QUICK_FIT) as process,
    ):
        assert process.stderr is not None
        reader = threading.Thread(target=lambda lines=process.stderr: said.extend(lines))
        reader.start()
        try:
            wait_until(lambda: process.poll() is not None or any("now sending clean" in line for line in said), 300.0)
            address = re.search(r"open (http://\S+) to see the map", "".join(said))
            assert address, "".join(said)
            with urllib.request.urlopen(f"{address[1]}/map", timeout=60) as page:
                assert b"<title>" in page.read()
        finally:
            process.send_signal(signal.SIGINT)
            reader.join()
        assert process.wait(60) == 0

    alarms = re.findall(r"^(\w+) +e\^\S+ +(yes|no)$", (tmp_path / "stdout").read_text(), re.M)
    assert dict(alarms) == {
        **dict.fromkeys(("noisy", "rotated", "sideways", "letters", "threes"), "yes"),
        "clean": "no",
    }
    assert re.search(r"to look at the maps again, run: .* serve --data-dir", "".join(said))
    try:
        urllib.request.urlopen(address[1], timeout=10)
    except OSError:
        return
    raise AssertionError("the explorer still runs")
