"""Serves the golden bundle with an installed DarkSight, scores, and opens the explorer; prints how much is installed.

Needs no test library and nothing of the tree but the golden files: `python -I tests/support/installed.py`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
from darksight_client import Client

import darksight_core

GOLDEN = Path(__file__).parents[1] / "golden"


def main() -> None:
    """Fail unless the service answers as it must."""
    expected = np.load(GOLDEN / "bundle_v3.scores.npz")
    with tempfile.TemporaryDirectory() as folder:
        ports = ("--grpc-port", "0", "--http-port", "0", "--explorer-port", "0")
        model = f"--model=golden={GOLDEN / 'bundle_v3.safetensors'}"
        command = (sys.executable, "-m", "darksight_service.cli", "serve", "--data-dir", folder, "--workers", "1")
        with subprocess.Popen([*command, *ports, model], stderr=subprocess.PIPE, text=True) as service:
            try:
                said = ""
                while "serving" not in said:
                    line = service.stderr.readline()
                    assert line, f"the service did not start: {said}"
                    said += line
                target, http, explorer = re.findall(r"(?<=gRPC )[\w.:]+|http://[\w.:]+", said)[-3:]
                with Client(target) as client:
                    scores = client.score("golden", expected["probs"])
                np.testing.assert_allclose(scores.p_value, expected["p_value"], atol=1e-6)
                for page in (f"{http}/metrics", f"{explorer}/"):
                    assert urllib.request.urlopen(page, timeout=30).status == 200
            finally:
                service.send_signal(signal.SIGTERM)
                # The pipe must not fill while the service stops.
                service.communicate(timeout=60)
        assert service.returncode == 0, service.returncode
    found = list(distributions())
    files = [Path(str(file.locate())) for each in found for file in each.files or ()]
    size = sum(file.stat().st_size for file in files if file.is_file())
    print(
        f"darksight {darksight_core.__version__} on Python {sys.version.split()[0]}: served, scored "
        f"{len(expected['probs'])} rows, explored; {len(found)} packages, {size / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
