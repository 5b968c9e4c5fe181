"""Runs one benchmark of this folder: python -m tests.bench NAME [--quick] [ARGUMENTS].

A benchmark is a module here with a function `main(argv)`; the first line of its docstring is its entry in the list. It
gives its tables to `results.save`. A quick run is a short one whose tables are printed and not saved.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

from tests.bench import results

QUICK = {
    "accuracy": ["--turns", "2", "--seeds", "1"],
    "capacity": ["--seconds", "8"],
    "confidence": ["--seeds", "1"],
    "drift": ["--seeds", "1", "--streams", "5", "--quiet-streams", "10"],
    "explorer": ["--rows", "200000", "--turns", "5"],
    "faults": ["--minutes", "0.5", "--seconds", "8"],
    "fit": ["paper", "--epochs", "100", "--seeds", "1"],
    "fuzz": ["--share", "0.02"],
    "metrics": ["--rounds", "3"],
    "report": ["--sets", "cifar100_resnet56"],
    "score": ["--rounds", "3", "--altered", "500"],
    "serve": ["--quick"],
    "sets": ["--seeds", "5"],
    "soak": ["--minutes", "0.5"],
    "spool": ["--rounds", "2"],
    "store": ["--rows", "100000", "--pace-rows", "60000"],
}
"""Arguments of a short look, where a benchmark is not short anyway."""


def benches() -> dict[str, str]:
    """Name and summary of each benchmark, read without importing it: some need libraries that are not installed."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main(argv: list[str]) -> int:
    """Run the benchmark named first, or list all of them."""
    found = benches()
    if argv and argv[0] in found:
        name, arguments = argv[0], argv[1:]
        if "--quick" in arguments and name != "all":
            results.is_quick = True
            arguments.remove("--quick")
            arguments = [*QUICK.get(name, []), *arguments]
        return importlib.import_module(f"tests.bench.{name}").main(arguments) or 0
    asks_help = not argv or argv[0] in ("-h", "--help")
    out = sys.stdout if asks_help else sys.stderr
    if not asks_help:
        print(f"no benchmark {argv[0]!r}", file=out)
    print("usage: ./dev bench NAME [--quick] [ARGUMENTS]", file=out)
    for name, summary in found.items():
        print(f"  {name:<10}{summary}", file=out)
    return 0 if asks_help else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
