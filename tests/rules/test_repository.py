"""Rules of the repository that no linter knows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for folder in (ROOT, ROOT / "service") for path in folder.glob("darksight_*/__init__.py"))
MODULES = sorted(
    path for package in PACKAGES for path in package.rglob("*.py") if "stubs" not in path.relative_to(package).parts
)
HEAVY = ["matplotlib", "numba", "pandas", "plotly", "pyarrow", "scipy", "sklearn", "torch", "tqdm"]
# Modules of the core that need one of these.
HEAVY_MODULES = tuple(
    f"darksight_core.{part}"
    for part in (
        "explain",
        "fit",
        "pictures.map_picture",
        "pictures.notebook",
        "runtime.compiled.",
        "runtime.kernel_cache",
    )
)

# Pieced together, so that this file does not break its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(("home", "root", "work")) + ")/")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")


def name_of(path: Path) -> str:
    """Import name of a module of ours."""
    base = ROOT / "service" if path.is_relative_to(ROOT / "service") else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files() -> list[Path]:
    """What git tracks or would add; without git, everything that is not hidden or a cache."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
        found = [ROOT / name for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [name for name in folders if not name.startswith((".", "__")) and name != "build"]
            found += [Path(folder, name) for name in names]
    return [path for path in found if path.is_file()]


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, with those inside `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from top_level(node.body + node.orelse)
            for handler in getattr(node, "handlers", []):
                yield from top_level(handler.body)


def public_names(path: Path) -> tuple[set[str], set[str]]:
    """Names without underscore: functions, classes and what a package takes from its modules; constants and aliases."""
    names: set[str] = set()
    values: set[str] = set()
    for node in top_level(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and path.name == "__init__.py" and is_ours(node):
            names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")}, values


def is_ours(node: ast.ImportFrom) -> bool:
    """Whether names come from one of our own modules."""
    return node.level > 0 or (node.module or "").startswith("darksight_")


def declared_names(path: Path) -> set[str] | None:
    """`__all__` of a module without its dunders, or nothing when it has none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return {name for name in ast.literal_eval(node.value) if not name.startswith("_")}
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_export_list_names_what_is_public(path: Path) -> None:
    """`__all__` has every public function and class, and nothing that is not there; constants are a choice."""
    required, optional = public_names(path)
    declared = declared_names(path)

    # The stages of the compiled pass are called by each other alone.
    is_internal = name_of(path).startswith("darksight_core.runtime.compiled.")
    if declared is None and (is_internal or not required or not name_of(path).startswith("darksight_core")):
        return

    assert declared is not None
    assert declared - optional == required - optional


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_is_typed_and_under_contract(package: Path) -> None:
    """A package tells type checkers that it has types, and import-linter knows it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert (package / "py.typed").is_file()
    assert package.name in settings["tool"]["importlinter"]["root_packages"]


def test_client_does_not_import_the_service() -> None:
    """Whoever installs the client gets no server."""
    client = [path for path in MODULES if name_of(path).startswith("darksight_client")]

    assert [path for path in client if re.search(r"^\s*(from|import) darksight_service", path.read_text(), re.M)] == []


def test_readme_mentions_every_dev_command() -> None:
    """The README names each command of ./dev."""
    commands = re.findall(r"^([a-z]+).*\) ## ", (ROOT / "dev").read_text(encoding="utf-8"), re.M)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert len(commands) >= 7
    assert [name for name in commands if name != "help" and f"./dev {name}" not in readme] == []


@pytest.mark.parametrize("rule", [MACHINE_PATH, UNFINISHED], ids=["machine path", "unfinished"])
def test_no_file_has(rule: re.Pattern[str]) -> None:
    """No file names a place on someone's machine or leaves a note instead of the work."""
    found = []
    for path in files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if rule.search(line)
        ]

    assert found == []


def test_core_runs_on_numpy_alone() -> None:
    """Every core module but fit, explain, estimator and compiled kernel imports without a heavy library."""
    modules = [name_of(path) for path in MODULES if path.is_relative_to(ROOT / "darksight_core")]
    light = [name for name in modules if not name.startswith(HEAVY_MODULES)]
    program = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)

sys.meta_path.insert(0, Blocked())
for name in {light!r}:
    importlib.import_module(name)
"""

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert {"darksight_core.errors", "darksight_core.rows.simplex", "darksight_core.map.student"} <= set(light)
    assert done.returncode == 0, done.stderr


def test_functions_of_the_core_import_only_heavy_modules() -> None:
    """An import of ours inside a function is for a module that needs an optional package, never to hide a cycle."""
    found = []
    for path in MODULES:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and name_of(path).startswith("darksight_core"):
                found += [node.module or "" for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]

    ours = {name for name in found if name.startswith("darksight_")}
    assert ours
    assert {name for name in ours if not name.startswith(HEAVY_MODULES)} == set()


def test_messages_do_not_refuse_a_version_of_protobuf() -> None:
    """Modules of protoc 27 and later check the version; ./dev proto generates them with an older one."""
    stubs = sorted((ROOT / "service/darksight_client/stubs").rglob("*_pb2.py"))

    assert stubs
    for path in stubs:
        assert "runtime_version" not in path.read_text(), f"{path.name}: run ./dev proto"


def test_every_package_is_packed() -> None:
    """The list of packages in pyproject.toml has every folder with Python files, under its installed name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {"darksight_core": "darksight_core", **settings["package-dir"]}

    found = {
        ".".join((name, *path.parent.relative_to(ROOT / folder).parts))
        for name, folder in folders.items()
        for path in (ROOT / folder).rglob("*.py")
    }

    assert found == set(settings["packages"])


def test_door_of_the_core_is_cheap_and_lazy() -> None:
    """`import darksight_core` loads no numpy, and every public name but the estimator loads no heavy package."""
    program = """
import sys

import darksight_core

assert "numpy" not in sys.modules
for name in darksight_core.__all__:
    if name != "DarkSight":
        getattr(darksight_core, name)
assert "numpy" in sys.modules
assert not {"torch", "sklearn", "scipy", "numba"} & set(sys.modules)
assert set(darksight_core.__all__) <= set(dir(darksight_core))
"""

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
