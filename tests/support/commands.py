"""Commands in the process of the tests, where torch is imported already: to start a process takes 2 s of CPU time.

`QUICK_FIT` are variables for a process that has to be one, and fits.
"""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from darksight_service.cli import main

__all__ = ["QUICK_FIT", "run_command"]

_ROOT = Path(__file__).parents[2]

QUICK_FIT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).with_name("quick_fit"), _ROOT, _ROOT / "service"))),
}


def run_command(*arguments: object) -> CompletedProcess[str]:
    """Run a command to its end."""
    command = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(command)
    assert "Traceback" not in err.getvalue()
    return CompletedProcess(command, status, out.getvalue(), err.getvalue())
