"""Output of commands: results on stdout, progress bars and messages on stderr."""

from __future__ import annotations

import importlib
import json
import logging
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from itertools import zip_longest
from typing import NoReturn, Self

from tqdm import tqdm

from darksight_core.errors import ConfigError
from darksight_core.evaluation.progress import Progress
from darksight_service.cli.colours import painted

__all__ = [
    "Bars",
    "on_interrupt",
    "print_facts",
    "print_json",
    "print_result",
    "print_table",
    "require",
    "say",
]

_STAGES: Mapping[str, str] = {
    "start": "map: starts",
    "sweep": "map: sweeps",
    "epoch": "map: epochs",
    "place": "placing rows",
    "distil": "f_p: distil",
    "fine-tune": "f_p: fine-tune",
    "calibrate": "calibrating",
    "anchors": "f_p: anchors",
    "score": "scoring",
    "measure": "measuring",
    "read": "reading",
    "explain": "explaining",
    "attack": "attacking",
}


class Bars:
    """One progress bar per stage, on stderr, with loss, rate and time left; none with `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: tqdm[NoReturn] | None = None
        self._stage = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the current bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, progress: Progress) -> None:
        """Show the progress of a computation."""
        if self._quiet:
            return
        bar = self._bar
        if bar is None or progress.stage != self._stage:
            self.close()
            self._stage = progress.stage
            name = _STAGES.get(progress.stage, progress.stage)
            bar = self._bar = tqdm(
                total=progress.total, desc=f"{name:<15}", file=sys.stderr, leave=True, dynamic_ncols=True
            )
        bar.set_postfix_str(f"KL_sym {progress.loss:.4f}" if progress.loss == progress.loss else "", refresh=False)
        bar.update(progress.done - bar.n)


def say(text: str) -> None:
    """Print a message on stderr."""
    print(f"darksight: {text}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print one JSON document on stdout. NaN is an error: a figure that does not exist is null."""

    def encode(other: object) -> object:
        if isinstance(other, datetime):
            return other.isoformat()
        if is_dataclass(other) and not isinstance(other, type):
            return asdict(other)
        raise TypeError(f"{type(other).__name__} has no JSON form")

    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False, default=encode))


def print_result(value: object, text: str | Callable[[], None], *, json: bool) -> None:
    """Print the result of a command: the value as JSON, or a text, which a function may also print itself."""
    if json:
        print_json(value)
    elif callable(text):
        text()
    else:
        print(text)


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Print a table on stdout, numbers right-aligned; states have colours on a terminal."""
    cells = [[_cell(value) for value in row] for row in rows]
    is_text = [i == 0 or any(line[i][:1].isalpha() for line in cells) for i in range(len(header))]
    widths = [max(len(line[i]) for line in [list(header), *cells]) for i in range(len(header))]
    for line in [list(header), ["-" * width for width in widths], *cells]:
        padded = (
            painted(cell.ljust(width) if is_left else cell.rjust(width), cell, sys.stdout)
            for cell, width, is_left in zip(line, widths, is_text, strict=True)
        )
        print("  ".join(padded).rstrip())


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print named facts on stdout; on a terminal, long ones are wrapped beside their names and warnings coloured."""
    print(title)
    for name, text in facts:
        lines = [text]
        if sys.stdout.isatty():
            lines = textwrap.wrap(text, max(shutil.get_terminal_size().columns - 15, 20)) or [""]
        for heading, line in zip_longest([name], lines, fillvalue=""):
            print(painted(f"  {heading:<12} {line}", name, sys.stdout))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return f"{value:.4f}" if isinstance(value, float) else str(value)


@contextmanager
def on_interrupt(effect: str) -> Iterator[None]:
    """State what an interrupt within the block leaves behind, for the message that ends the command."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            interrupt.args = (effect,)
        raise


def require(module: str, extra: str) -> None:
    """Raise ConfigError with the extra to install if a module is missing."""
    # matplotlib logs that it builds its cache of fonts, which nobody who runs a command can act on.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"this command needs {module}, which is not installed; run: pip install 'darksight[{extra}]'"
        ) from error
