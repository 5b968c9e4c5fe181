"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Group, Parameter, Token

from darksight_service.settings import Settings, read_settings

__all__ = [
    "DEFAULT_ALPHA",
    "INPUT",
    "OUTPUT",
    "STORE",
    "AsJson",
    "Files",
    "HeldOut",
    "Logits",
    "Overwrite",
    "Pair",
    "Quiet",
    "StoreOptions",
    "command_group",
    "keep_files_private",
    "load_settings",
]

DEFAULT_ALPHA = 0.01
"""Largest p-value of an outlier where a bundle has no outlier rule."""

INPUT = Group("Input", sort_key=1)
STORE = Group("Data", sort_key=5)
OUTPUT = Group("Output", sort_key=8)

AsJson = Annotated[bool, Parameter(name="--json", group=OUTPUT, help="Print the result as JSON.")]
Quiet = Annotated[bool, Parameter(group=OUTPUT, help="Show no progress bars.")]
Overwrite = Annotated[bool, Parameter(group=OUTPUT, help="Replace existing files.")]
Logits = Annotated[bool, Parameter(group=INPUT, help="The values are logits. Only .npy files need this option.")]
HeldOut = Annotated[
    bool,
    Parameter(
        group=INPUT,
        help="Use only the rows that the fit held out. FILE must be the file of the fit.",
    ),
]
Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True)]


def command_group(name: str, summary: str) -> App:
    """A command with subcommands."""
    # No --version flag: subcommands have an option of that name.
    return App(
        name=name,
        help=summary,
        group_commands=Group("Commands"),
        group_parameters=Group("Options", sort_key=4),
        version_flags=(),
    )


def _read_pair(kind: object, tokens: Sequence[Token]) -> tuple[float, float]:
    """Two numbers from `1,2`."""
    try:
        first, second = (float(part) for part in tokens[0].value.split(","))
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not two numbers such as 0,1.") from None
    return first, second


Pair = Annotated[tuple[float, float], Parameter(converter=_read_pair, n_tokens=1, allow_leading_hyphen=True)]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where a service keeps its data.

    Parameters
    ----------
    config
        TOML file with settings. Default: the file that DARKSIGHT_CONFIG names.
    data_dir
        Data directory of the service. Default: ./darksight-data.
    database_url
        sqlite:///FILE or postgresql://USER@HOST/NAME. Default: SQLite in the data directory.
    """

    config: Path | None = None
    data_dir: Path | None = None
    database_url: str | None = None


def keep_files_private() -> None:
    """Let this process and its children create directories as 0700 and files as 0600.

    The data directory has predictions, tokens of sessions and the audit trail.
    """
    os.umask(0o077)


def load_settings(options: StoreOptions, **overrides: Any) -> Settings:
    """Settings from options, from DARKSIGHT_* in the environment and from a TOML file, in this order."""
    return read_settings(options.config, data_dir=options.data_dir, database_url=options.database_url, **overrides)
