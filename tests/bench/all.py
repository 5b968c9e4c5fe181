"""All of them, one after the other: each in a process of its own, and one that fails does not end the others."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.bench.__main__ import benches

# The size that the summary speaks of.
_FULL = {"store": ["--rows", "10000000"]}


def main(argv: list[str]) -> int:
    """Run all benchmarks, or the ones named; 1 if one failed."""
    names = [name for name in benches() if name != "all"]
    parser = argparse.ArgumentParser(prog="./dev bench all", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []], default=[], metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="a short look at each; printed, and not saved")
    args = parser.parse_args(argv)
    failed, begun = [], time.monotonic()
    for name in args.names or names:
        started = time.monotonic()
        arguments = ["--quick"] if args.quick else _FULL.get(name, [])
        status = subprocess.run([sys.executable, "-m", "tests.bench", name, *arguments]).returncode
        failed += [name] * bool(status)
        said = f"{name}: took {time.monotonic() - started:.0f} s" + f", failed with status {status}" * bool(status)
        print(said, file=sys.stderr, flush=True)
    print(f"all: took {(time.monotonic() - begun) / 60:.1f} minutes", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))
