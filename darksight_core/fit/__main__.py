"""A fit without the service, for torchrun: `torchrun --nproc-per-node 2 -m darksight_core.fit FILE ... --out BUNDLE`.

The first process prints the report as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

from darksight_core.errors import DarkSightError
from darksight_core.fit.distributed.job import run_fit
from darksight_core.fit.options import add_fit_options

__all__ = ["main"]


def main() -> int:
    """Run one process of a fit."""
    parser = argparse.ArgumentParser(
        prog="python -m darksight_core.fit",
        description="Fits predictions in the processes that torchrun starts, and writes a bundle.",
    )
    add_fit_options(parser)
    try:
        report = run_fit(parser.parse_args())
    except DarkSightError as error:
        sys.stderr.write(f"darksight: {error.message}\n")
        return 2
    if report is not None:
        sys.stdout.write(json.dumps(report.as_dict(), indent=2, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
