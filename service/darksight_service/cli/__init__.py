"""The `darksight` command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        # An install of the scorer and the client alone has this script, but not the packages of the command line.
        from darksight_service.cli.app import run
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"darksight: the command line needs {error.name}, which is not installed; "
            "run: pip install 'darksight[service]'\n"
        )
        return 2
    return run(sys.argv[1:] if argv is None else argv)
