"""What commands share: progress on stderr, results on stdout, and the words for a missing extra."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NoReturn, Protocol

from tqdm import tqdm

from darksight_core.errors import ConfigError

__all__ = ["Bars", "HelpFormatter", "print_json", "print_table", "require", "say"]


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names a default where there is one to name."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


class _Progress(Protocol):
    @property
    def stage(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def loss(self) -> float: ...


_STAGES: Mapping[str, str] = {
    "start": "map: starts",
    "sweep": "map: sweeps",
    "epoch": "map: epochs",
    "place": "placing rows",
    "distil": "f_p: distil",
    "fine-tune": "f_p: fine-tune",
    "calibrate": "calibrating",
    "score": "scoring",
    "read": "reading",
    "explain": "explaining",
    "attack": "attacking",
}


class Bars:
    """One progress bar per stage, on stderr, with loss, pace and time left; silent with `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: tqdm[NoReturn] | None = None
        self._stage = ""

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish the current bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, progress: _Progress) -> None:
        """Show where a computation stands."""
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
    """A line for people, on stderr."""
    print(f"darksight: {text}", file=sys.stderr)


def print_json(value: object) -> None:
    """One JSON document on stdout; figures that do not exist are null, never NaN."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """A plain text table on stdout, first column left, others right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *cells]) for i in range(len(header))]
    for line in [list(header), ["-" * width for width in widths], *cells]:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def require(module: str, extra: str) -> None:
    """Say which extra to install when a module that a command needs is missing."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"this command needs {module}, which is not installed; run: pip install 'darksight[{extra}]'"
        ) from error
