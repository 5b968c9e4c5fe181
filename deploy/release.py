"""A release in `dist/`: wheel, sdist, SBOM, licences of dependencies and release notes. `./dev release` runs it.

The distributions are built from the last commit, not from the tree, and the wheel is installed into an environment of
its own. The SBOM and the list of licences describe what `pip install 'darksight[service]'` has installed there.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["licence_table", "make_release", "release_notes"]

ROOT = Path(__file__).parents[1]
# Packages whose metadata names no licence: what their licence file says.
_UNDECLARED = {"protobuf": "BSD-3-Clause"}


def release_notes(changelog: str, version: str) -> str:
    """The section of a version in the changelog, or what is not released yet."""
    for name in (version, "Unreleased"):
        found = re.search(rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
        if found:
            return f"# DarkSight {version}\n\n{found[1].strip()}\n"
    raise ValueError(f"CHANGELOG.md has no section [{version}] or [Unreleased]")


def licence_table(bom: Mapping[str, Any]) -> str:
    """Dependencies of an SBOM with version and licence, as Markdown; ValueError if one has no licence."""
    lines, unknown = [], []
    for part in sorted(bom.get("components", ()), key=lambda part: str(part["name"]).lower()):
        given = [entry.get("expression") or entry.get("license", {}) for entry in part.get("licenses", ())]
        names = [each if isinstance(each, str) else each.get("id") or each.get("name", "") for each in given]
        # Some packages have put the whole text there: its first line is its name.
        texts = sorted({name.strip().splitlines()[0].rpartition(":: ")[2][:60] for name in names if name.strip()})
        if not texts and part["name"] in _UNDECLARED:
            texts = [_UNDECLARED[part["name"]]]
        if not texts:
            unknown.append(part["name"])
        lines.append(f"| {part['name']} | {part['version']} | {', '.join(texts)} |")
    if unknown:
        raise ValueError(f"no licence is known of {', '.join(unknown)}")
    return "\n".join(["| package | version | licence |", "|---|---|---|", *lines]) + "\n"


def make_release(out: Path, check: list[str]) -> None:
    """Write all files of a release; `check` is a program that must succeed in an environment with the wheel."""
    source = ROOT / "darksight_core" / "rows" / "version.py"
    version = re.search(r'__version__ = "(.+)"', source.read_text(encoding="utf-8"))
    assert version is not None
    out.mkdir(exist_ok=True)
    for old in out.glob("darksight-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        commit = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(commit)) as tree:
            tree.extractall(Path(folder, "tree"), filter="data")
        _run(sys.executable, "-m", "build", "--outdir", out, Path(folder, "tree"))
        wheel = next(out.glob("darksight-*.whl"))
        # Without pip, which is no dependency.
        venv.create(Path(folder, "venv"), with_pip=False)
        python = Path(folder, "venv", "bin", "python")
        pip = (sys.executable, "-m", "pip", "--python", python)
        _run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[service]")
        if check:
            _run(python, *check)
        bom = out / f"darksight-{version[1]}.cdx.json"
        _run(sys.executable, "-m", "cyclonedx_py", "environment", python, "--output-reproducible", "-o", bom)
    licences = licence_table(json.loads(bom.read_text(encoding="utf-8")))
    (out / f"darksight-{version[1]}.licences.md").write_text(licences, encoding="utf-8")
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version[1])
    (out / f"darksight-{version[1]}.notes.md").write_text(notes, encoding="utf-8")
    for path in sorted(out.glob("darksight-*")):
        sys.stderr.write(f"{path.stat().st_size:>10,}  {path}\n")


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory to write (%(default)s)")
    parser.add_argument("check", nargs="*", help="arguments of Python: run this with the installed wheel")
    given = parser.parse_args()
    make_release(given.out, given.check)
