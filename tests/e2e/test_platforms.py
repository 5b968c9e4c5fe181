"""Systems other than Linux, as far as they can be imitated: what Python lacks there is taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from darksight_client import Client

from tests.support.servers import running_server

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "bundle_v3.safetensors"

# Python imports a module of this name at its start, in every process of the service.
LIKE_MACOS = """
import os, socket, time
del os.sched_getaffinity, os.sched_setaffinity, socket.SO_REUSEPORT, time.CLOCK_BOOTTIME
"""
WITHOUT_LOCKS = (
    LIKE_MACOS
    + """
import sys
sys.modules["fcntl"] = None
"""
)


def environment(folder: Path, text: str) -> dict[str, str]:
    """Variables under which every Python process runs a text at its start."""
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "service")))}


def test_one_worker_serves_without_pinning_and_shared_ports(tmp_path: Path) -> None:
    """As on macOS, the default is one worker, and it scores and stores."""
    rows = np.load(GOLDEN.with_suffix(".scores.npz"))["probs"][:3]

    with (
        running_server({"m": GOLDEN}, tmp_path / "data", environment=environment(tmp_path, LIKE_MACOS)) as server,
        Client(server.grpc_target) as client,
    ):
        scored = client.score("m", rows)
        workers = [name for name in server.children() if name.startswith("worker")]

    assert len(scored.p_value) == 3
    assert workers == ["worker-0"]


def test_fit_and_score_need_no_file_locks(tmp_path: Path) -> None:
    """Without fcntl a file is scored, and the core has no import of it; serve says what it needs."""
    np.savez(tmp_path / "rows.npz", probs=np.load(GOLDEN.with_suffix(".scores.npz"))["probs"])
    program = f"""
import sys
import darksight_service.cli.fit
from darksight_service.cli import main
assert main(["score", {str(GOLDEN)!r}, "rows.npz", "--out", "scores.npz", "--quiet"]) == 0
sys.exit(main(["serve"]))
"""

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **environment(tmp_path, WITHOUT_LOCKS)},
        capture_output=True,
        text=True,
        check=False,
    )

    core = [path.read_text(encoding="utf-8") for path in (ROOT / "darksight_core").rglob("*.py")]
    assert not any("\nimport fcntl" in text or "os.sched_" in text or "SO_REUSE" in text for text in core)
    assert (tmp_path / "scores.npz").exists(), done.stderr
    assert done.returncode == 2
    assert "needs the file locks of Linux or macOS" in done.stderr
