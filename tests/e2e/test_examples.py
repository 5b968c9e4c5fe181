"""The examples run, and what they print is what they promise."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tests.support.commands import QUICK_FIT

ROOT = Path(__file__).parents[2]


def run_example(name: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, str(ROOT / "examples" / name), *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=QUICK_FIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits_from_end_to_end(tmp_path: Path) -> None:
    """A map, a gate, an explanation that sums to what it explains, and two pictures."""
    said = run_example("digits_end_to_end.py", "--out", tmp_path, "--epochs", 25)

    assert re.search(r"accuracy on 1197 digits that it was not trained on: 9\d", said)
    assert re.search(r"\d% of 297 new digits accepted", said)
    assert "changed by at most 0.10" in said
    for name in ("map.png", "why.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


class RecordedModel(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that answers with recorded responses, one after the other."""

    recorded: ClassVar[Iterator[bytes]]

    def do_POST(self) -> None:
        """The next response; the request must ask for log-probabilities."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_good = self.path == "/v1/chat/completions" and asked["logprobs"] and asked["top_logprobs"] == 20
        self.send_response(200 if is_good else 400)
        self.end_headers()
        self.wfile.write(next(self.recorded))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_a_language_model_as_a_judge(tmp_path: Path) -> None:
    """Asked over HTTP, certified on labels, and tried on answers that no step has seen."""
    with gzip.open(ROOT / "examples" / "llm_responses.jsonl.gz", "rt") as file:
        lines = [line for line in file if '"label"' in line][:1_000]
    RecordedModel.recorded = iter([line.encode() for line in lines])
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        "".join(json.dumps({"text": "?", "label": json.loads(line)["label"]}) + "\n" for line in lines)
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), RecordedModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        options = (
            "--url",
            url,
            "--model",
            "m",
            "--classes",
            "negative,positive",
            "--accuracy",
            0.85,
            "--out",
            tmp_path,
        )
        said = run_example("llm_judge.py", questions, *options)
        server.shutdown()

    found = re.search(r"(\d+) new answers: ([\d.]+)% right; ([\d.]+)% accepted, of these ([\d.]+)% right", said)
    assert found is not None, said
    assert float(found[4]) > float(found[2])


def test_monitoring_of_a_scikit_learn_classifier(tmp_path: Path) -> None:
    """Clean traffic passes and noisy traffic is drift, by the service's own metrics."""
    said = run_example("monitor_sklearn.py", "--out", tmp_path, "--calls", 150)

    assert re.search(r"^digits: evidence .*: no drift$", said, re.M)
    assert re.search(r"^digits-noisy: evidence .*: drift$", said, re.M)
    assert re.search(r"^digits: \w*(?i:accept)\w* \w+ \d+$", said, re.M)
