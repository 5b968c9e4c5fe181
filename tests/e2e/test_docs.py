"""Every code block of the documentation runs, or says why it does not and can be parsed.

A block that is not run has the line `<!-- not run: REASON -->` before it. The blocks of a page run in order, in a
directory with the files that pages speak of, against one service. The runbook has a test of its own.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import torch
import yaml
from cyclopts import CycloptsError
from darksight_client import Client
from darksight_service.cli import main
from darksight_service.cli.app import build_app
from darksight_service.settings import Settings
from pyarrow import parquet

from darksight_core.bundle import read_bundle
from tests.integration.test_service import gated_bundle
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server, wait_until
from tests.support.tools import find_tool

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "service/*.md", "deploy/README.md", "examples/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
)
BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>.*) -->\n(?P=indent))?"
    r"```(?P<language>.*)\n(?P<text>(?:.*\n)*?)(?P=indent)```$",
    re.M,
)
CLASSES = 10
# Commands that talk to a service.
REMOTE = ("evidence", "ingest", "model", "policy", "region")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block; `reason` says why it is not run."""

    language: str
    text: str
    reason: str | None

    def commands(self) -> list[str]:
        """Commands of a shell block, one line each."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(page: str) -> list[Block]:
    """All code blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(re.findall(r"^ *```", text, re.M)) == 2 * len(BLOCK.findall(text)), "a block is not closed"
    return [Block(found["language"], dedent(found["text"]), found["reason"]) for found in BLOCK.finditer(text)]


@dataclass(frozen=True, slots=True)
class Served:
    """A service with a model `digits` and a second version of it, and the files that pages speak of."""

    server: Server
    folder: Path
    version: str

    def adapt(self, text: str) -> str:
        """Text with the addresses and the version of the pages replaced by those of this service."""
        values = {
            # The default deadlines are for production, not for a machine that runs other tests as well.
            'Client("localhost:8081"': 'Client("localhost:8081", timeout_seconds=60.0, gate_timeout_seconds=60.0',
            "http://localhost:8080": self.server.http_url,
            "localhost:8081": self.server.grpc_target,
            "3f79bb7b435b": self.version[:12],
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service without tokens that has stored points."""
    # A fit this small is slower with more threads.
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("served")
    files = folder / "files"
    (files / "history").mkdir(parents=True)
    for seed, name in enumerate(("predictions", "labelled", "foreign")):
        probs = make_probs(700, CLASSES, seed=seed)
        np.savez(files / f"{name}.npz", probs=probs, labels=probs.argmax(axis=1))
    for seed, path in enumerate(("traffic.parquet", "history/monday.parquet", "history/tuesday.parquet"), 3):
        columns = make_probs(300, CLASSES, seed=seed).T
        parquet.write_table(arrow.table({f"prob_{k}": column for k, column in enumerate(columns)}), files / path)
    shutil.copy(ROOT / "examples/llm_responses.jsonl.gz", files)
    model = gated_bundle(files / "model.safetensors", classes=CLASSES, threshold=0.5)
    shutil.copy(model, files / "gated.safetensors")
    (files / "gap.json").write_text("[[-1, -1], [1, -1], [1, 1]]")
    assert main(["db", "upgrade", "--data-dir", str(files / "darksight-data")]) == 0
    bundles = folder / "data" / "bundles"
    bundles.mkdir(parents=True)
    new = gated_bundle(bundles / "new.safetensors", seed=1, classes=CLASSES)
    with running_server({"digits": model}, folder / "data", "--workers", "1") as server:
        with Client(server.grpc_target, timeout_seconds=60.0) as client:
            client.deploy("digits", "new.safetensors")
            client.score("digits", make_probs(200, CLASSES, seed=9))
            wait_until(lambda: sum(1 for _ in client.points("digits")) == 200)
        yield Served(server, files, read_bundle(new).version)


def check_syntax(block: Block) -> None:
    """Whether a block can be read; raises if not."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "toml":
        assert set(tomllib.loads(block.text)) <= set(Settings.model_fields)
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    elif block.language == "sh":
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        # Those of other blocks are checked when they run.
        for command in block.commands() if block.reason else []:
            program, *arguments = shlex.split(command, comments=True)
            if program == "darksight":
                build_app(arguments[0]).parse_args(arguments, exit_on_error=False, print_error=False)
    else:
        assert block.language == "text"
        assert block.reason is None


@pytest.mark.parametrize("page", PAGES)
def test_blocks_can_be_parsed(page: str) -> None:
    """Each has a language; commands have options that exist, settings are settings."""
    for block in blocks(page):
        try:
            check_syntax(block)
        except CycloptsError as error:
            pytest.fail(f"{error}\n{block.text}")


def is_run(block: Block) -> bool:
    """Whether a block has an effect when it is run."""
    return block.reason is None and block.language in ("python", "sh")


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_run, blocks(page)))])
def test_blocks_run(
    page: str, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, with the names that the blocks of a page define and a few arrays."""
    shutil.copytree(served.folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    probs = make_probs(300, CLASSES, seed=8)
    names: dict[str, Any] = {"probs": probs, "labels": probs.argmax(axis=1).tolist(), "row": probs[0]}

    for block in filter(is_run, blocks(page)):
        if block.language == "python":
            exec(compile(served.adapt(block.text), page, "exec"), names)
            continue
        for command in block.commands():
            program, *arguments = shlex.split(os.path.expandvars(served.adapt(command)), comments=True)
            if program == "darksight":
                if "--out" in arguments:
                    Path(arguments[arguments.index("--out") + 1]).unlink(missing_ok=True)
                reach = ["--server", served.server.grpc_target] if arguments[0] in REMOTE else []
                assert main([*arguments, *reach]) == 0, (command, capsys.readouterr().err)
            else:
                assert program == "curl"
                subprocess.run([find_tool(program), *arguments], check=True, capture_output=True, timeout=60)


def test_alerts_that_pages_name_exist() -> None:
    """In the rules of deploy/prometheus."""
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "deploy/prometheus/rules").glob("*.yml"))
    # Others tell of alerts that there were.
    pages = [page for page in PAGES if page.startswith(("docs/", "deploy/"))]
    named = {name for page in pages for name in re.findall(r"`(DarkSight[A-Z]\w+)`", (ROOT / page).read_text())}

    assert named
    assert {name for name in named if f"alert: {name}\n" not in rules} == set()


def test_readme_is_short() -> None:
    """A newcomer reads it in five minutes."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
