"""Hostile classifier files: nothing of them is unpickled, and running one has limits of time and memory."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from darksight_service.cli.child import LimitOptions, run_limited

from darksight_core.errors import ConfigError
from darksight_core.explain import ClassifierError, load_classifier
from tests.support.endless import double, fill_memory, sleep


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of torch.export with a constant and a dynamic shape."""
    path = tmp_path_factory.mktemp("programs") / "good.pt2"

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.shift = torch.ones(3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return (self.layer(rows) + self.shift).reshape(rows.shape[0], 3)

    exported = torch.export.export(Network(), (torch.rand(2, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(exported, path)
    return path


Archive = dict[str, bytes]


def opaque_constant(members: Archive, marker: Path) -> None:
    """A constant that torch unpickles because of its name, though it is not marked as pickled."""
    name = next(name for name in members if name.endswith("constants_config.json"))
    config = json.loads(members[name])
    entry = next(iter(config["config"].values()))
    config["config"]["payload"] = {**entry, "path_name": "opaque_obj_0", "use_pickle": False}
    members[name] = json.dumps(config).encode()
    # A pickle that makes a directory when it is read.
    data = f"cos\nmkdir\n(V{marker}\ntR.".encode()
    members[name.replace("model_constants_config.json", "opaque_obj_0")] = data + b"\0" * (-len(data) % 8)


def hidden_config(members: Archive, marker: Path) -> None:
    """A second list of constants under a name that differs in case, which torch's reader may find first."""
    name = next(name for name in members if name.endswith("constants_config.json"))
    members[name.replace("model_constants", "MODEL_CONSTANTS")] = members[name]


def expression(members: Archive, marker: Path) -> None:
    """A shape that is Python code."""
    edit_program(members, "expr_str", f"__import__('os').mkdir('{marker}')")


def operator(members: Archive, marker: Path) -> None:
    """An operator that is a function of another module."""
    edit_program(members, "target", "torch.os.mkdir")


def edit_program(members: Archive, key: str, value: object) -> None:
    """Replace every value of a key in the graph of a program."""
    name = next(name for name in members if name.endswith("models/model.json"))
    program = json.loads(members[name])

    def walk(found: Any) -> None:
        if isinstance(found, dict):
            if key in found and (key != "target" or "inputs" in found):
                found[key] = value
            for each in found.values():
                walk(each)
        elif isinstance(found, list):
            for each in found:
                walk(each)

    walk(program)
    members[name] = json.dumps(program).encode()


def guard(members: Archive, marker: Path) -> None:
    """A guard that is Python code."""
    name = next(name for name in members if name.endswith("models/model.json"))
    program = json.loads(members[name])
    program["guards_code"] = [f"not __import__('os').mkdir('{marker}')"]
    members[name] = json.dumps(program).encode()


def changed(source: Path, target: Path, change: Callable[[Archive, Path], None], marker: Path) -> Path:
    """The archive after a change of its members."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members, marker)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


def test_a_good_program_is_loaded(program: Path) -> None:
    """The lists of what is permitted contain what torch.export writes."""
    assert load_classifier(program)(torch.rand(5, 4)).shape == (5, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (opaque_constant, "pickled|not permitted"),
        (hidden_config, "two members"),
        (expression, "expression"),
        (operator, "has the operator"),
    ],
)
def test_code_in_a_program_is_refused_unread(
    program: Path, tmp_path: Path, change: Callable[[Archive, Path], None], message: str
) -> None:
    """Everything that torch would unpickle, evaluate or look up is refused before torch reads the file."""
    marker = tmp_path / "ran"
    path = changed(program, tmp_path / "bad.pt2", change, marker)

    with pytest.raises(ClassifierError, match=message):
        load_classifier(path)(torch.rand(5, 4))

    assert not marker.exists()


def test_guards_of_a_program_are_not_run(program: Path, tmp_path: Path) -> None:
    """Guards are code of the file; shapes are checked by torch without them."""
    marker = tmp_path / "ran"
    path = changed(program, tmp_path / "guarded.pt2", guard, marker)

    assert load_classifier(path)(torch.rand(5, 4)).shape == (5, 3)
    assert not marker.exists()


def test_a_compressed_archive_is_refused(program: Path, tmp_path: Path) -> None:
    """A member that grows when it is read could fill memory."""
    path = tmp_path / "packed.pt2"
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + (b"\n" * 100_000 if name.endswith("model.json") else b""))

    with pytest.raises(ClassifierError, match="compressed"):
        load_classifier(path)


def test_a_child_returns_its_arrays() -> None:
    """What runs within its limits gives its result."""
    assert run_limited(double, np.arange(3.0), limits=LimitOptions())["values"].tolist() == [0.0, 2.0, 4.0]


def test_a_child_is_ended_after_its_time() -> None:
    """A program without end ends."""
    started = time.monotonic()

    with pytest.raises(ConfigError, match=r"more than 0\.5 s"):
        run_limited(sleep, limits=LimitOptions(max_seconds=0.5))

    assert time.monotonic() - started < 30.0


def test_a_child_has_no_more_than_its_memory() -> None:
    """A program that asks for more memory than the limit fails."""
    with pytest.raises(ConfigError, match=r"MemoryError|max-memory-gb"):
        run_limited(fill_memory, limits=LimitOptions(max_memory_gb=1.0))
