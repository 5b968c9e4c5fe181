"""Runs one benchmark of this folder: python -m tests.bench NAME [ARGUMENTS].

A benchmark is a module here with a function `main(argv)`; the first line of its docstring is its entry in the list.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path


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
        return importlib.import_module(f"tests.bench.{argv[0]}").main(argv[1:]) or 0
    asks_help = not argv or argv[0] in ("-h", "--help")
    out = sys.stdout if asks_help else sys.stderr
    if not asks_help:
        print(f"no benchmark {argv[0]!r}", file=out)
    print("usage: ./dev bench NAME [ARGUMENTS]", file=out)
    for name, summary in found.items():
        print(f"  {name:<10}{summary}", file=out)
    return 0 if asks_help else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
