"""Runs one benchmark of this folder, or all: python -m tests.bench NAME|all [--quick] [ARGUMENTS].

A benchmark is a module here with a function `main(argv)`; the first line of its docstring is its entry in the list. It
gives its tables to `results.save`. A quick run is a short one whose tables are printed and not saved.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from tests.bench import results

QUICK = {
    "accuracy": ["--turns", "2", "--seeds", "1"],
    "audit": ["--streams", "3", "--checked", "10"],
    "capacity": ["--seconds", "8"],
    "confidence": ["--seeds", "1"],
    "drift": ["--seeds", "1", "--streams", "5", "--quiet-streams", "10"],
    "explorer": ["--rows", "200000", "--turns", "5"],
    "faults": ["--minutes", "0.5", "--seconds", "8"],
    "fit": ["paper", "--epochs", "100", "--seeds", "1"],
    "resolution": ["--seeds", "1", "--draws", "30"],
    "score": ["--rounds", "3"],
    "serve": ["--quick"],
    "sets": ["--seeds", "5"],
    "soak": ["--minutes", "0.5"],
    "store": ["--rows", "100000", "--pace-rows", "60000"],
    "upgrade": ["--seconds", "20"],
    "witnesses": ["--streams", "4", "--quiet-streams", "10"],
}
"""Arguments of a short run, where a benchmark is not short anyway."""

FULL = {"store": ["--rows", "10000000"]}
"""Arguments in a run of all, where they differ from the defaults."""


def benches() -> dict[str, str]:
    """Name and summary of each benchmark, read without importing it: some need libraries that are not installed."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run_all(names: list[str], arguments: list[str]) -> int:
    """Run all benchmarks, each in a process of its own: one that fails does not end the others; 1 if one failed."""
    failed = []
    for name in names:
        more = arguments or FULL.get(name, [])
        if subprocess.run([sys.executable, "-m", "tests.bench", name, *more]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def main(argv: list[str]) -> int:
    """Run the benchmark named first, or list all of them."""
    found = benches()
    if argv and argv[0] == "all":
        return run_all([*found], argv[1:])
    if argv and argv[0] in found:
        name, arguments = argv[0], argv[1:]
        if "--quick" in arguments:
            results.is_quick = True
            arguments.remove("--quick")
            arguments = [*QUICK.get(name, []), *arguments]
        return importlib.import_module(f"tests.bench.{name}").main(arguments) or 0
    asks_help = not argv or argv[0] in ("-h", "--help")
    out = sys.stdout if asks_help else sys.stderr
    if not asks_help:
        print(f"no benchmark {argv[0]!r}", file=out)
    print("usage: ./dev bench NAME|all [--quick] [ARGUMENTS]", file=out)
    for name, summary in found.items():
        print(f"  {name:<10}{summary}", file=out)
    return 0 if asks_help else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
