"""The command line as a whole: the list of commands, errors and exit statuses.

Each command is a module of its own, imported when it is run: `darksight --help` imports none of them. Results go to
stdout, as text or, with `--json`, as JSON; progress and logs go to stderr. The exit status is 0 for success, 2 for bad
usage or input, with one sentence that says what to do, and 130 for an interrupt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from darksight_core import __version__
from darksight_core.errors import DarkSightError, did_you_mean
from darksight_service.cli.colours import painted

__all__ = ["COMMANDS", "build_app", "install_completion", "run"]

COMMANDS = {
    "Fit and evaluate": {
        "fit": "Fit a map to predictions and write a bundle.",
        "evaluate": "Measure how faithful a map is and compare scores.",
        "calibrate": "Give a bundle a gate with certified thresholds.",
        "report": "Write an HTML report about a bundle.",
        "explain": "Show which parts of an input decide its point on the map.",
        "bundle": "Show, verify or compare bundles.",
    },
    "Score and serve": {
        "score": "Score predictions in files.",
        "ingest": "Send the predictions in logs to a running service.",
        "drift": "Test predictions in a file for drift, in order.",
        "serve": "Run the scoring service.",
        "explore": "Run the explorer alone.",
        "model": "List, deploy, activate and roll back the models of a service.",
        "policy": "Show, evaluate and change the gate policy of a model.",
        "evidence": "Restart the drift evidence of a model.",
        "region": "Manage the regions of a map where the gate rejects.",
        "token": "Create an access token for the service.",
        "db": "Migrate, check, prune or query the database.",
        "doctor": "Check the installation, the settings and the machine.",
    },
    "Try it": {
        "demo": "Fit, serve and monitor a small digit classifier.",
    },
}
"""Summaries of all commands, by heading and name. A command is `darksight_service.cli.NAME:NAME`."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    app = build_app(next(iter(arguments), None))
    try:
        status: int | None = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return status or 0
    except CycloptsError as error:
        return _refuse(_describe(error))
    except DarkSightError as error:
        return _refuse(error.message)
    except ImportError as error:
        if getattr(error.__cause__, "name", "") != "fcntl":
            raise
        return _refuse("this command needs the file locks of Linux or macOS; fit and score also work elsewhere")
    except KeyboardInterrupt as interrupt:
        effect = interrupt.args[0] if interrupt.args else "nothing was written"
        print(f"\n{painted('darksight:', 'warning', sys.stderr)} interrupted; {effect}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of stdout has exited, as `head` does. Without this, Python complains about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse(reason: str) -> int:
    """Print why a command ends, and return its exit status."""
    print(painted("darksight:", "error", sys.stderr), reason, file=sys.stderr)
    return 2


def build_app(chosen: str | None = None) -> App:
    """The parser of all commands; `chosen` is the one to run, the others keep only their summary."""
    app = App(
        name="darksight",
        help="Monitor a classifier through a 2D map of its predicted probabilities.",
        version=f"darksight {__version__}",
        # A repeated option takes its last value, as everywhere else.
        default_parameter=Parameter(
            negative_bool=(), negative_iterable=(), allow_repeating=True, show_default=_show_default
        ),
        group_parameters=Group("Options", sort_key=4),
        group_commands=Group("Options", sort_key=4),
        suppress_keyboard_interrupt=False,
    )
    if not any(chosen in commands for commands in COMMANDS.values()):
        # Markdown takes a fifth of the time of this page, which has none.
        app.help_format = "plaintext"
        app.help_epilogue = (
            "Start with:            darksight demo\n"
            "Fit your predictions:  darksight fit predictions.npz --out model.safetensors"
        )
    for position, (heading, commands) in enumerate(COMMANDS.items()):
        group = Group(heading, sort_key=position)
        for order, (name, summary) in enumerate(commands.items()):
            # A summary given here replaces the description that the command itself has.
            text = None if name == chosen else summary
            app.command(f"darksight_service.cli.{name}:{name}", name=name, help=text, group=group, sort_key=order)
    app.command(install_completion, name="--install-completion", help="Install tab completion for your shell.")
    return app


def install_completion(*, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    """Install tab completion.

    Parameters
    ----------
    shell
        Shell to install it for. Default: the current shell.
    """
    path: Path = build_app().install_completion(shell=shell)
    print(f"darksight: wrote {path}; open a new shell to use it", file=sys.stderr)


def _show_default(value: object) -> str | None:
    """Text of a default; None to show none."""
    return None if value is None or value is False or value in ("", ()) else str(value)


def _describe(error: CycloptsError) -> str:
    """One sentence about bad usage."""
    command = " ".join(error.command_chain or ())
    usage = f"see darksight {command} --help"
    if isinstance(error, UnknownCommandError) and error.app is not None and error.unused_tokens:
        # The text of the library would import every command.
        names = [name for name in error.app if not name.startswith("-")]
        hint = did_you_mean(error.unused_tokens[0], names, f"the commands are {', '.join(names)}")
        return f"there is no command {command} {error.unused_tokens[0]}".replace("  ", " ") + f"; {hint}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword is not None:
            return f"{error.keyword} needs a value; {usage}"
        return f"{command} needs {error.argument.name}; {usage}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"unexpected argument {error.unused_tokens[0]!r}; {usage}"
    return str(error)
