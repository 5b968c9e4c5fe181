"""`darksight model` and `darksight policy` against a running service, and every command that the runbook prints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_client import Client, PolicyState
from darksight_service.cli import main

from darksight_core.bundle import read_bundle
from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.servers import Server, running_server, wait_until
from tests.support.tools import find_tool

RUNBOOK = Path(__file__).parents[2] / "deploy" / "RUNBOOK.md"
ROWS = make_probs(600, K, seed=3)


@dataclass(frozen=True, slots=True)
class Operated:
    """A service with tokens, its bundles and the file with the token of an operator."""

    server: Server
    folder: Path
    token_file: Path
    versions: tuple[str, str]

    @property
    def options(self) -> tuple[str, ...]:
        """How a command reaches the service."""
        return ("--server", self.server.grpc_target, "--token-file", str(self.token_file))


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A service with a model `digits`, a second bundle to deploy, and stored points, half of them labelled."""
    folder = tmp_path_factory.mktemp("operated")
    bundles = [gated_bundle(folder / f"{name}.safetensors", seed=seed) for seed, name in enumerate(("first", "second"))]
    labels = ROWS.argmax(axis=1)
    np.savez(folder / "recent.npz", probs=ROWS, labels=labels)
    token_file = folder / "operator.token"
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("builtins.print", lambda text, **_: written.append(text))
        assert main(["token", str(folder / "tokens"), "ann", "--scopes", "score,report,read,admin"]) == 0
    token_file.write_text(written[-1])
    options = ("--workers", "1", "--bundle-dir", str(folder))
    environment = {"DARKSIGHT_TOKENS_FILE": str(folder / "tokens")}
    with running_server({"digits": bundles[0]}, folder / "data", *options, environment=environment) as server:
        with Client(server.grpc_target, token_file=token_file, timeout_seconds=60.0) as client:
            scored = client.score("digits", ROWS)
            client.report("digits", scored.prediction_ids[:300], labels[:300].tolist())
            wait_until(lambda: sum(point.label is not None for point in client.points("digits")) == 300)
            client.deploy("digits", "second.safetensors")
        versions = tuple(read_bundle(bundle).version for bundle in bundles)
        yield Operated(server, folder, token_file, (versions[0], versions[1]))


def test_models_from_deployment_to_rollback(operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    """Each change is printed, for people and as JSON."""

    def run(*arguments: str) -> Any:
        assert main(["model", *arguments, *operated.options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    first, second = operated.versions
    run("activate", "digits", first)

    deployed = run("deploy", "digits", "second.safetensors", "--author", "ann")
    assert (deployed["active_version"], len(deployed["versions"])) == (first, 2)
    assert run("shadow", "digits", second[:12])["shadow_version"] == second
    assert run("shadow", "digits", "--off")["shadow_version"] == ""
    assert run("activate", "digits", second)["active_version"] == second
    assert run("list")[0]["previous_version"] == first
    assert main(["model", "list", "digits", *operated.options]) == 0
    assert re.search(rf"digits\s+{second[:12]}\s+active", capsys.readouterr().out)
    assert main(["model", "rollback", "digits", *operated.options]) == 0
    assert capsys.readouterr().out.startswith(f"model digits: active {first[:12]}, previous ")


def test_a_policy_from_dry_run_to_reset(operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is not given stays; --reset restores the bundle; a threshold is a probability; looser is said."""

    def run(*arguments: str) -> Any:
        assert main(["policy", *arguments, *operated.options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert main(["model", "activate", "digits", operated.versions[0], *operated.options]) == 0
    capsys.readouterr()
    before = run("get", "digits")["effective"]
    tried = run("dry-run", "digits", "--threshold", "0.999999999")
    assert tried["before"]["points"] >= len(ROWS)
    assert tried["after"]["accepted"] == 0
    run("set", "digits", "--alpha", "0.2", "--comment", "more reviews")
    found = run("set", "digits", "--threshold", "0", "--fail-open", "true")
    assert found["effective"] == {
        "alpha": pytest.approx(0.2, abs=0.01),
        "threshold": 0.0,
        "fail_open": True,
        "metric_tags": [],
        "log_odds": "-inf",
    }
    assert [text.partition(" ")[0] for text in found["loosened"]] == ["threshold", "fail_open"]
    assert main(["policy", "get", "digits", *operated.options]) == 0
    shown = capsys.readouterr().out
    assert "more reviews" in shown
    assert "does not cover" in shown
    assert "accepts more: threshold" in shown
    assert main(["policy", "dry-run", "digits", "--reset", *operated.options]) == 0
    assert "accuracy of accepted" in capsys.readouterr().out
    assert run("set", "digits", "--reset")["effective"] == before
    nothing = {"alpha": None, "threshold": None, "fail_open": None, "metric_tags": [], "log_odds": None}
    assert run("get", "digits")["policy"] == nothing
    run("set", "digits", "--metric-tags", "camera", "city")
    run("set", "digits", "--fail-open", "true")
    assert run("get", "digits")["policy"]["metric_tags"] == ["camera", "city"]
    run("set", "digits", "--reset")


def test_a_policy_is_not_set_silently_on_a_version_that_was_activated_meanwhile(
    operated: Operated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reads the policy of one version and sets it on another: it fails and names both."""
    first, second = operated.versions
    read_policy = Client.policy

    def read_and_activate(client: Client, model: str) -> PolicyState:
        found = read_policy(client, model)
        client.activate(model, second)
        return found

    assert main(["model", "activate", "digits", first, *operated.options]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Client, "policy", read_and_activate)
        status = main(["policy", "set", "digits", "--alpha", "0.2", *operated.options])
    error = capsys.readouterr().err
    assert main(["policy", "set", "digits", "--reset", *operated.options]) == 0
    assert main(["model", "activate", "digits", first, *operated.options]) == 0

    assert status == 2
    assert first[:12] in error
    assert second[:12] in error


def test_evidence_starts_again(operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    """The next rows count from there."""
    first, server = operated.versions[0], operated.server

    with Client(server.grpc_target, token_file=operated.token_file, timeout_seconds=60.0) as client:
        client.activate("digits", first)
        # The first reset is one of the rows that other tests scored, however many they are.
        for rows in (len(ROWS), 40):
            assert main(["evidence", "reset", "digits", "--comment", "mended", "--json", *operated.options]) == 0
            assert json.loads(capsys.readouterr().out) == {"model": "digits", "version": first}
            wait_until(lambda: server.counted("darksight_drift_tested_rows") == 0.0, what="the reset")
            client.score("digits", ROWS[:rows])

            wait_until(lambda rows=rows: server.counted("darksight_drift_tested_rows") == rows, what="new evidence")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("model", "activate", "digits", "0" * 12), "0000"),
        (("model", "deploy", "digits", "nothing.safetensors"), "nothing.safetensors"),
        (("model", "shadow", "digits"), "--off"),
        (("policy", "set", "digits"), "--alpha"),
        (("policy", "get", "letters"), "letters"),
        (("model", "list", "--token", "wrong"), "--token-file"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, tuple) else "",
)
def test_bad_usage_is_one_sentence(
    operated: Operated, arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to do instead, and exit status 2."""
    assert main([*arguments, *operated.options]) == 2

    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_a_token_can_be_given_itself(operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of its file; a wrong one is refused."""
    server = ("--server", operated.server.grpc_target)

    assert main(["model", "list", *server, "--token", operated.token_file.read_text()]) == 0
    assert main(["model", "list", *server, "--token", "wrong"]) == 2

    assert "token" in capsys.readouterr().err


def runbook_blocks() -> list[list[str]]:
    """The commands of each shell block."""
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", RUNBOOK.read_text(encoding="utf-8"))
    return [[line for line in block.splitlines() if line] for block in blocks]


def test_every_command_of_the_runbook_runs(
    operated: Operated, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block by itself, with the values of the first block replaced by those of the test."""
    monkeypatch.chdir(operated.folder)
    first, second = operated.versions
    values = {
        "SERVER": operated.server.grpc_target,
        "TOKEN_FILE": str(operated.token_file),
        "HTTP": operated.server.http_url,
        "MODEL": "digits",
        "VERSION": second[:12],
        "BUNDLE": "second.safetensors",
        "DARKSIGHT_DATA_DIR": str(operated.folder / "data"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    exports, *blocks = runbook_blocks()
    assert {word.partition("=")[0] for line in exports for word in line.split()[1:]} == set(values)

    with Client(operated.server.grpc_target, token_file=operated.token_file, timeout_seconds=60.0) as client:
        for block in blocks:
            client.activate("digits", second)
            client.activate("digits", first)
            for command in block:
                program, *arguments = shlex.split(os.path.expandvars(command), comments=True)
                if program == "darksight":
                    assert main(arguments) == 0, (command, capsys.readouterr().err)
                else:
                    assert program in ("curl", "find")
                    subprocess.run([find_tool(program), *arguments], check=True, capture_output=True, timeout=60)


def test_commands_in_the_text_of_the_runbook_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """They are names without arguments; and no method of the API stands where there is a command."""
    text = re.sub(r"(?ms)^```sh\n.*?^```", "", RUNBOOK.read_text(encoding="utf-8"))

    for command in re.findall(r"`darksight ([^`]*)`", text):
        assert main([*shlex.split(command), "--help"]) == 0, (command, capsys.readouterr().err)
    assert re.findall(r"`(?:SetPolicy|DryRunPolicy|RollBack|DeployBundle|ActivateVersion|SetShadow)`", text) == []
