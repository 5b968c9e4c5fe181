"""Commands in the process of the tests, where torch is imported already: to start a process takes 2 s of CPU time."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from darksight_service.cli import main

__all__ = ["run_command"]


def run_command(*arguments: object) -> CompletedProcess[str]:
    """Run a command to its end."""
    command = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(command)
    assert "Traceback" not in err.getvalue()
    return CompletedProcess(command, status, out.getvalue(), err.getvalue())
