"""The `darksight` command: one module per command, each with `add_parser` and `run`.

Results go to stdout, as text for people or as JSON with `--json`; progress and messages go to stderr. Exit 0 is
success, 2 bad usage or input with one sentence that says what to do, 130 an interrupt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from darksight_core import DarkSightError, __version__
from darksight_service.cli import (
    bundle,
    calibrate,
    db,
    demo,
    evaluate,
    explain,
    explore,
    fit,
    region,
    report,
    score,
    serve,
    token,
)

__all__ = ["build_parser", "main"]

_COMMANDS = (fit, evaluate, calibrate, report, score, explain, serve, explore, token, region, db, bundle, demo)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="darksight",
        description="Watch a classifier through a 2D map of its predicted probabilities.",
        epilog="Start with: darksight demo. Then: darksight fit predictions.npz --out model.safetensors",
    )
    parser.add_argument("--version", action="version", version=f"darksight {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what it returns is the exit status."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except DarkSightError as error:
        print(f"darksight: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        promise = getattr(args, "on_interrupt", "nothing was written")
        print(f"\ndarksight: interrupted; {promise}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of stdout went away, as `head` does; that is no failure of ours.
        sys.stderr.close()
        return 0
