"""`darksight explain` as people use it: a classifier in a file, inputs in a file, pictures and figures out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from darksight_core.bundle import write_bundle
from tests.e2e.conftest import Refusal
from tests.support.bundles import make_bundle
from tests.support.commands import run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, classifiers of three and of four classes, pictures and rows of features."""
    folder = tmp_path_factory.mktemp("explain")
    write_bundle(folder / "model.safetensors", make_bundle())
    torch.manual_seed(0)
    for classes in (3, 4):
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, classes))
        program = torch.export.export(network, (torch.rand(2, 4, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, folder / f"classifier{classes}.pt2")
    pictures = np.random.default_rng(0).uniform(size=(5, 4, 4)).astype(np.float32)
    np.savez(folder / "pictures.npz", inputs=pictures)
    np.save(folder / "bytes.npy", (255 * pictures).astype(np.uint8))
    return folder


def test_heat_and_attack_go_to_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays and a sheet are written, figures are the scorer's, and the attack keeps to its budget."""
    monkeypatch.chdir(folder)
    done = run_command(
        "explain",
        *("model.safetensors", "classifier3.pt2", "pictures.npz", "--out", "found", "--rows", 3, "--json"),
        *("--method", "integrated", "--steps", 8),
        *("--attack", "out", "--budget", 0.2, "--attack-steps", 5),
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    arrays = np.load(folder / "found" / "explain.npz")
    assert (folder / "found" / "explain.png").read_bytes().startswith(b"\x89PNG")
    assert arrays["heat"].shape == (3, 4, 4)
    assert np.abs(arrays["attacked"] - arrays["inputs"]).max() <= 0.2 + 1e-6
    assert [row["after_log_density"] for row in result["rows"]] == arrays["after_log_density"].tolist()
    assert arrays["after_log_density"].mean() < arrays["log_density"].mean()
    np.testing.assert_allclose(arrays["heat"].sum(axis=(1, 2)) - arrays["change"], arrays["gap"], atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.safetensors", "classifier4.pt2", "pictures.npz", "--out", "x.npz"), "not shape (5, 4)"),
        (("model.safetensors", "classifier3.pt2", "bytes.npy", "--out", "x.npz"), "scale integers"),
        (("model.safetensors", "pictures.npz", "pictures.npz", "--out", "x.npz"), "has no program"),
        (("model.safetensors", "classifier3.pt2", "pictures.npz", "--out", "x.npz", "--attack", "in"), "--budget"),
        (("model.safetensors", "classifier3.pt2", "none.npy", "--out", "x.npz"), "none.npy does not exist"),
    ],
    ids=["classes", "integers", "module", "budget", "missing"],
)
def test_what_cannot_be_explained_gets_a_sentence(
    folder: Path, arguments: tuple[str, ...], message: str, refusal: Refusal
) -> None:
    """Exit 2, one line, and nothing written."""
    said = refusal(folder, ["explain", *arguments])

    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (folder / "x.npz").exists()
