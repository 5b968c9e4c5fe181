"""The command line as people use it: real files, and a real process where that makes a difference."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pytest
from darksight_service.cli import main
from darksight_service.cli.app import COMMANDS, build_app
from darksight_service.control.changes import deploy_at_start
from darksight_service.control.state_file import StateFile

from darksight_core.bundle import read_bundle
from darksight_core.fit.config import FitConfig
from darksight_core.fit.network.config import DistilConfig
from darksight_core.fit.options import BundleOptions, RowOptions
from darksight_core.runtime.scorer import Scorer
from tests.e2e.conftest import Refusal
from tests.support.builders import make_probs
from tests.support.commands import QUICK_FIT, run_command

GOLDEN = Path(__file__).parents[1] / "golden"
DARKSIGHT = (sys.executable, "-m", "darksight_service.cli")
Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def darksight(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a process of its own; `run_command` does so here, without the imports."""
    command = [*DARKSIGHT, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False, env=QUICK_FIT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled predictions and the bundle fitted to them."""
    folder = tmp_path_factory.mktemp("cli")
    probs = make_probs(1_200, 4)
    labels = np.array([np.random.default_rng(i).choice(4, p=row / row.sum()) for i, row in enumerate(probs)])
    np.savez(folder / "predictions.npz", probs=probs, labels=labels)
    done = darksight("fit", folder / "predictions.npz", "--out", folder / "model.safetensors", "--json", "--plot",
                     folder / "map.png")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "fit.json").write_text(done.stdout, encoding="utf-8")
    (folder / "fit.err").write_text(done.stderr, encoding="utf-8")
    return folder


def test_fit_prints_json_on_stdout_and_progress_on_stderr(folder: Path) -> None:
    """The keys that others rely on are there, the figures are good, and bars go to stderr."""
    found = json.loads((folder / "fit.json").read_text(encoding="utf-8"))

    assert {"kl_sym", "acc_teacher", "acc_ground", "heldout", "seconds", "bundle", "version"} <= found.keys()
    assert found["heldout"].keys() == {"kl_sym", "acc_teacher"}
    assert found["kl_sym"] < 0.1
    assert found["acc_teacher"] == 1.0
    assert found["heldout"]["kl_sym"] < 1.5 * found["kl_sym"]
    assert found["rows"] == {"fit": 781, "calibrate": 299, "test": 120}
    assert found["version"] == read_bundle(found["bundle"]).version
    assert "KL_sym" in (folder / "fit.err").read_text(encoding="utf-8")


def test_fit_draws_a_picture(folder: Path) -> None:
    """--plot leaves a PNG."""
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def _short_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """f_p, which takes nine tenths of a small fit, is trained on fewer rows."""
    monkeypatch.setattr("darksight_core.fit.pipeline.DistilConfig", partial(DistilConfig, epoch_rows=256))


def fitted_version(folder: Path, name: str, *options: object) -> str:
    """Version of a bundle that is fitted to the predictions."""
    out = folder / f"{name}.safetensors"
    done = run_command("fit", folder / "predictions.npz", "--out", out, *options)
    assert done.returncode == 0, done.stderr
    return read_bundle(out).version


@pytest.mark.usefixtures("_short_fit")
def test_the_seed_decides_the_bundle(folder: Path) -> None:
    """A second fit of the same file, in another process, has the same version; one with another seed has another."""
    same, other = (fitted_version(folder, f"seed {seed}", "--seed", seed) for seed in (0, 1))

    assert same == read_bundle(folder / "model.safetensors").version
    assert other != same


def test_evaluate_measures_the_map(folder: Path) -> None:
    """evaluate gives fidelity, neighbours and clusters."""
    done = run_command("evaluate", folder / "model.safetensors", folder / "predictions.npz", "--json")

    found = json.loads(done.stdout)
    assert found["fidelity"]["acc_teacher"] == 1.0
    assert 0.5 < found["fidelity"]["acc_ground"] < 1.0
    assert found["local_fidelity"]["neighbours"] == [5, 10, 50, 100]
    assert max(found["local_fidelity"]["teacher"]) < 0.3


@pytest.mark.parametrize(("ending", "run"), [("npz", darksight), ("csv", run_command), ("parquet", run_command)])
def test_score_writes_every_format(folder: Path, ending: str, run: Run) -> None:
    """Scores in any format equal the scorer's own, whatever the chunk size."""
    out = folder / f"scores.{ending}"
    model, predictions = folder / "model.safetensors", folder / "predictions.npz"
    done = run("score", model, predictions, "--out", out, "--chunk-rows", 500, "--json")
    assert done.returncode == 0, done.stderr
    expected = Scorer.load(folder / "model.safetensors").score(np.load(folder / "predictions.npz")["probs"])

    if ending == "npz":
        table = np.load(out)
    elif ending == "csv":
        table = np.genfromtxt(out, delimiter=",", names=True)
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(out).to_pydict()

    np.testing.assert_allclose(table["x"], expected.points[:, 0], atol=1e-6)
    np.testing.assert_allclose(table["p_value"], expected.p_value, atol=1e-9)
    summary = json.loads(done.stdout)
    assert summary["rows"] == 1_200
    assert summary["outliers"] == int((expected.p_value <= 0.01).sum())


def test_a_bad_row_late_in_the_file_leaves_no_scores(folder: Path) -> None:
    """When a later chunk is defective, the error names its row and no file is left behind."""
    probs = np.load(folder / "predictions.npz")["probs"]
    probs[1_100, 2] = np.nan
    np.savez(folder / "bad.npz", probs=probs)

    done = run_command(
        "score", folder / "model.safetensors", folder / "bad.npz", "--out", folder / "bad.csv", "--chunk-rows", 500
    )

    assert done.returncode == 2
    assert "bad.npz, row 1100" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in folder.iterdir() if "bad.csv" in path.name]


def test_drift_names_the_row_the_kind_and_the_cost(folder: Path) -> None:
    """Rows whose class mix changes at row 300 alarm soon after it; quiet rows do not, and have an accuracy."""
    probs = make_probs(2_000, 4, seed=5)
    classes = probs.argmax(axis=1)
    mixed = np.concatenate([probs[:300], probs[classes == 2]])
    np.savez(folder / "quiet.npz", probs=probs[:900])
    np.savez(folder / "mixed.npz", probs=mixed)

    quiet, drifted = (
        json.loads(run("drift", folder / "model.safetensors", folder / name, "--json").stdout)
        for name, run in (("quiet.npz", darksight), ("mixed.npz", run_command))
    )
    text = run_command("drift", folder / "model.safetensors", folder / "mixed.npz", "--level", "0.001").stdout

    assert (quiet["alarm_row"], quiet["verdict"]) == (None, "none")
    assert quiet["accuracy"]["low"] <= quiet["accuracy"]["estimate"] <= quiet["accuracy"]["high"]
    assert 300 < drifted["alarm_row"] < 340
    assert drifted["verdict"] == "class_mix"
    assert drifted["class_shares"]["2"]["low"] > 0.8
    assert {"scores", "confidence", "classes", "witnesses", "threshold"} == drifted["evidence"].keys()
    assert "Verdict: the class mix changed" in text


def test_bundle_show_verify_diff(folder: Path) -> None:
    """A bundle can be read by people, proven sound, and compared."""
    model = folder / "model.safetensors"
    shown = run_command("bundle", "show", model)
    proven, same = (run_command("bundle", *args) for args in (("verify", model), ("diff", model, model)))

    assert shown.returncode == proven.returncode == same.returncode == 0
    assert "classes" in shown.stdout
    assert "valid" in proven.stdout
    assert same.stdout.strip() == "no difference"


def test_a_damaged_bundle_is_refused(folder: Path) -> None:
    """One flipped byte and every command says so in one sentence."""
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (folder / "damaged.safetensors").write_bytes(bytes(data))

    done = run_command("bundle", "verify", folder / "damaged.safetensors")

    assert done.returncode == 2
    assert done.stderr.startswith("darksight: ")
    assert "damaged.safetensors" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_fit_does_not_overwrite_unless_told(folder: Path) -> None:
    """An existing bundle is kept, and this is said before the fit, not after."""
    before = (folder / "model.safetensors").read_bytes()

    done = run_command("fit", folder / "predictions.npz", "--out", folder / "model.safetensors")

    assert done.returncode == 2
    assert "--overwrite" in done.stderr
    assert "map: starts" not in done.stderr
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.usefixtures("_short_fit")
def test_a_subset_of_classes_can_be_mapped(folder: Path) -> None:
    """--classes maps some classes only; rows still come in with all."""
    out = folder / "subset.safetensors"
    done = run_command(
        "fit", folder / "predictions.npz", "--out", out, "--classes", "0,2,3", "--plot", folder / "subset.png"
    )
    assert done.returncode == 0, done.stderr

    scorer = Scorer.load(out)

    assert scorer.n_inputs == 4
    assert scorer.embedder.student.n_classes == 3
    assert scorer.score(make_probs(10, 4)).valid.all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "missing.npz"), "missing.npz"),
        (("fit", "predictions.npz", "--out", "x.safetensors", "--dof", "-1"), "dof"),
        (("fit", "predictions.npz", "--out", "x.safetensors", "--classes", "0,9"), "'9'"),
        (("fit", "predictions.npz", "--out", "nowhere/x.safetensors"), "nowhere"),
        (("fit", "predictions.npz", "--out", "x.safetensors", "--split", "0.5,0.4,0.3"), "sum"),
        (("fit", "predictions.npz", "--split", "a,b"), "0.6,0.3,0.1"),
        (("score", "model.safetensors", "predictions.npz", "--out", "scores.txt"), ".parquet"),
        (("evaluate", "predictions.npz", "predictions.npz"), "predictions.npz"),
    ],
    ids=["missing file", "bad option", "unknown class", "no folder", "shares", "not shares", "ending", "not a bundle"],
)
def test_bad_usage_exits_2_with_a_sentence(
    folder: Path, arguments: tuple[str, ...], words: str, refusal: Refusal
) -> None:
    """Bad usage exits with 2 and words that say what is wrong, never a traceback."""
    assert words in refusal(folder, arguments)
    assert not (folder / "x.safetensors").exists()


REFUSE = """
import contextlib, io, json, sys
from darksight_service.cli import main

for command in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(command.split())
    heavy = sorted({"torch", "numba", "ray"} & sys.modules.keys())
    print(json.dumps([command, status, said.getvalue(), heavy]))
"""


def test_a_path_that_leads_nowhere_is_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """Whoever mistypes a name hears so at once, and nothing is left behind."""
    np.savez(tmp_path / "rows.npz", probs=make_probs(30, 4), inputs=np.zeros((30, 3)))
    (tmp_path / "good.safetensors").write_bytes((GOLDEN / "bundle_v3.safetensors").read_bytes())
    (tmp_path / "module.pt2").touch()
    (tmp_path / "lost.d").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    commands = (
        "fit lost.npz",
        "fit rows.txt",
        "fit lost.npz --nproc 2",
        "fit lost.npz --method svd",
        "fit rows.npz --out lost/new.safetensors",
        "fit rows.npz --out new.safetensors --plot lost/new.png",
        "bundle verify lost.safetensors",
        "evaluate lost.safetensors rows.npz",
        "evaluate good.safetensors lost.npz",
        "evaluate good.safetensors rows.npz --ood lost.npz",
        "report lost.safetensors rows.npz --out new.html",
        "report good.safetensors rows.npz --out new.html --ood lost.npz",
        "report good.safetensors rows.npz --out new.html --images lost.npz",
        "calibrate lost.safetensors rows.npz --alpha 0.1 --out new.safetensors",
        "calibrate good.safetensors lost.npz --alpha 0.1 --out new.safetensors",
        "score lost.safetensors rows.npz --out new.npz",
        "score good.safetensors lost.npz --out new.npz",
        "score good.safetensors rows.npz --out lost/new.npz",
        "score good.safetensors lost.parquet --out new --engine ray",
        "explain lost.safetensors module.pt2 rows.npz --out new",
        "explain good.safetensors lost.pt2 rows.npz --out new",
        "explain good.safetensors module.pt2 lost.npz --out new",
        "serve --model digits=lost.safetensors --data-dir new",
        "serve --model digits=lost.d --data-dir new",
        "serve --config lost.toml",
        "explore --data-dir lost",
        "region export digits lost.safetensors --out new.safetensors",
        "region export digits good.safetensors --out lost/new.safetensors --server 127.0.0.1:1",
        "token lost/tokens me",
    )

    done = subprocess.run(
        [sys.executable, "-c", REFUSE], input=json.dumps(commands), capture_output=True, text=True, cwd=tmp_path
    )

    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [command for command, *_ in found] == list(commands)
    assert {command: heavy for command, _, _, heavy in found if heavy} == {}
    wrong = {
        command: said
        for command, status, said, _ in found
        if status != 2 or "darksight: " not in said or ("lost" not in said and "rows.txt" not in said)
    }
    assert wrong == {}
    assert {path.name for path in tmp_path.iterdir()} == before


def test_the_explorer_stops_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """The system sends SIGHUP then; without a terminal it is the request of an operator to log more."""
    state_file = StateFile(tmp_path / "registry.json")
    deploy_at_start(state_file, None, tmp_path, [("m", GOLDEN / "bundle_v3.safetensors")])
    command = [*DARKSIGHT, "explore", "--data-dir", str(tmp_path), "--explorer-port", "0"]
    terminal, inside = os.openpty()
    with subprocess.Popen(command, stdin=inside, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("explorer on" in line for line in process.stderr)
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(terminal)
            os.close(inside)


def test_interrupt_leaves_nothing_behind_and_says_so(tmp_path: Path) -> None:
    """Ctrl-C during a fit exits with 130, names the file that was not written, and leaves no part of it."""
    np.savez(tmp_path / "predictions.npz", probs=make_probs(5_000, 30))
    command = [*DARKSIGHT, "fit", "predictions.npz", "--out", "model.safetensors"]
    # A shell lets what it runs in the background ignore Ctrl-C, and so would whatever the tests start.
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=listening) as process:
        assert process.stderr is not None
        heard = ""
        while "map: starts" not in heard and (letter := process.stderr.read(1)):
            heard += letter
        os.kill(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        status = process.wait(timeout=60)

    assert status == 130
    assert "model.safetensors was not written" in rest
    assert "Traceback" not in rest
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.npz"]


HELP = """
import sys
from darksight_service.cli import main

status = main(["--help"])
heavy = {"numpy", "torch", "pydantic", "grpc", "sqlalchemy"} & sys.modules.keys()
sys.exit(f"imported {heavy}" if heavy else status)
"""


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    """--help names all commands with their summaries, without numpy, torch, pydantic, gRPC or SQL."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    for commands in COMMANDS.values():
        for name, summary in commands.items():
            assert f"{name} " in done.stdout
            assert summary in done.stdout


@pytest.mark.parametrize("name", [name for commands in COMMANDS.values() for name in commands])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command begins with the summary that darksight --help shows, and every option has a text."""
    assert main([name, "--help"]) == 0

    shown = capsys.readouterr().out
    summary = next(commands[name] for commands in COMMANDS.values() if name in commands)
    assert shown.splitlines()[2].strip() == summary
    assert re.findall(r"^│ [* ]*--[a-z-]+(?: [^ ]+)? *│$", shown, re.M) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fti",), "there is no command fti; did you mean fit?"),
        (("bundle", "veryfy", "model.safetensors"), "there is no command bundle veryfy; did you mean verify?"),
        (("evaluate", "model.safetensors"), "evaluate needs FILE; see darksight evaluate --help"),
        (("evaluate", "a", "b", "--sede"), "Unknown option: --sede. Did you mean --seed?"),
        (("evaluate", "a", "b", "c"), "unexpected argument 'c'; see darksight evaluate --help"),
        (("evaluate", "a", "b", "--seed", "x"), '--seed: unable to convert "x" into int'),
        (("evaluate", "a", "b", "--seed"), "--seed needs a value"),
        (("fit", "a", "--method", "fats"), 'Choose from: "fast", "paper", "svd". Did you mean "fast"?'),
    ],
    ids=["command", "subcommand", "missing", "option", "surplus", "number", "value", "choice"],
)
def test_misspelt_usage_gets_a_suggestion(
    arguments: tuple[str, ...], words: str, tmp_path: Path, refusal: Refusal
) -> None:
    """Exit 2 with one sentence that names what is wrong and what was probably meant."""
    said = refusal(tmp_path, arguments)

    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_without_the_service_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    """The script of a bare install prints the pip command and exits with 2."""
    blocked = tmp_path / "cyclopts.py"
    blocked.write_text("raise ModuleNotFoundError(\"No module named 'cyclopts'\", name='cyclopts')", encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), *sys.path])

    done = subprocess.run(
        [*DARKSIGHT, "--help"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )

    assert done.returncode == 2
    assert "pip install 'darksight[service]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: Literal["bash", "zsh", "fish"]) -> None:
    """The completion script of each shell has every command, and options of subcommands."""
    script = build_app().generate_completion(shell=shell)

    for commands in COMMANDS.values():
        for name in commands:
            assert name in script
    assert "target-accuracy" in script
    assert "carry-over" in script


def test_torchrun_takes_the_options_of_the_command() -> None:
    """`python -m darksight_core.fit` has the options of the rows, the map and the bundle of `darksight fit`."""
    done = subprocess.run([sys.executable, "-m", "darksight_core.fit", "--help"], capture_output=True, text=True)

    options = {field.name for kind in (FitConfig, RowOptions, BundleOptions) for field in fields(kind)}
    assert {f"--{name.replace('_', '-')}" for name in options} <= set(re.findall(r"--[a-z-]+", done.stdout))


def test_closed_form_gives_points_without_a_bundle(folder: Path) -> None:
    """--method svd writes points, because it has no density to score with."""
    refused = run_command("fit", folder / "predictions.npz", "--method", "svd", "--out", folder / "svd.safetensors")
    done = run_command("fit", folder / "predictions.npz", "--method", "svd", "--out", folder / "svd.npz", "--json")

    assert refused.returncode == 2
    assert ".npz" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert np.load(folder / "svd.npz")["points"].shape == (1_200, 2)
    assert json.loads(done.stdout)["bundle"] is None
