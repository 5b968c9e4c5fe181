from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from darksight_core.explain import ClassifierError, load_classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one module, saved in both ways."""
    folder = tmp_path_factory.mktemp("modules")
    network = torch.nn.Sequential(torch.nn.Linear(4, 3))
    rows = (torch.rand(2, 4),)
    program = torch.export.export(network, rows, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, folder / "program.pt2")
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.trace(network, rows).save(str(folder / "script.pt"))
    torch.save(network.state_dict(), folder / "weights.pt")
    return folder


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> Path:
    """An archive with its members changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(*change(name, old.read(name)))
    return target


def test_both_kinds_give_the_same(folder: Path) -> None:
    """A TorchScript module and a program of torch.export are called alike, and have gradients."""
    rows = torch.rand(5, 4, requires_grad=True)

    script, program = (load_classifier(folder / name)(rows) for name in ("script.pt", "program.pt2"))

    assert script.requires_grad
    assert program.requires_grad
    torch.testing.assert_close(script, program)


class Bomb:
    """What pickle would call."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("unpickled",))


def pickled_inputs(name: str, content: bytes) -> tuple[str, bytes]:
    """Example inputs that only pickle can read."""
    if "sample_inputs" not in name:
        return name, content
    buffer = io.BytesIO()
    torch.save(Bomb(), buffer)
    return name, buffer.getvalue()


def pickled_weight(name: str, content: bytes) -> tuple[str, bytes]:
    """A weight that is marked as pickled."""
    if not name.endswith("weights_config.json"):
        return name, content
    config = json.loads(content)
    next(iter(config["config"].values()))["use_pickle"] = True
    return name, json.dumps(config).encode()


def library(name: str, content: bytes) -> tuple[str, bytes]:
    """A compiled library instead of a weight."""
    return name.replace("data/weights/weight_0", "data/aotinductor/model/model.so"), content


def older(name: str, content: bytes) -> tuple[str, bytes]:
    """Weights of the older format."""
    return name.replace("data/weights/weight_0", "data/weights/model.pt"), content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pickled_inputs, "example inputs"),
        (pickled_weight, "pickled"),
        (library, "not permitted"),
        (older, "not permitted"),
    ],
)
def test_a_program_with_pickles_or_libraries_is_refused_unread(
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: Callable[[str, bytes], tuple[str, bytes]],
    message: str,
) -> None:
    """Nothing of it is unpickled."""
    path = rewritten(folder / "program.pt2", tmp_path / "bad.pt2", change)

    with pytest.raises(ClassifierError, match=message):
        load_classifier(path)

    assert "unpickled" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [("weights.pt", "only weights"), ("none.pt", "cannot be read"), ("text.pt", "not a torch module")],
)
def test_what_is_no_module_is_named(folder: Path, name: str, message: str) -> None:
    """Weights alone, a missing file and any other file get a sentence with the path."""
    (folder / "text.pt").write_text("not a module", encoding="utf-8")

    with pytest.raises(ClassifierError, match=message) as caught:
        load_classifier(folder / name)

    assert re.search(name, caught.value.message)


def test_two_members_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    """Otherwise one could be checked and the other loaded."""
    path = tmp_path / "twice.pt2"
    path.write_bytes((folder / "program.pt2").read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(archive.namelist()[0], b"")

    with pytest.raises(ClassifierError, match="two members"):
        load_classifier(path)
