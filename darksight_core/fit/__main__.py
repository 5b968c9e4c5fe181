"""A fit without the service, for torchrun: `torchrun --nproc-per-node 2 -m darksight_core.fit FILE ... --out BUNDLE`.

The first process prints the report as JSON.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from dataclasses import fields
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from darksight_core.errors import DarkSightError
from darksight_core.fit.config import FitConfig
from darksight_core.fit.job import run_fit
from darksight_core.fit.options import BundleOptions, FitOptions, RowOptions

__all__ = ["main"]

Options = TypeVar("Options")


def main() -> int:
    """Run one process of a fit."""
    parser = argparse.ArgumentParser(
        prog="python -m darksight_core.fit",
        description="Fits a map in the processes that torchrun starts, writes a bundle and prints the report as JSON.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("predictions", nargs="+", metavar="FILE", help="files of predictions, or a quoted pattern")
    for options in (BundleOptions, RowOptions, FitConfig):
        _add_options(parser, options)
    args = parser.parse_args()
    try:
        report = run_fit(
            FitOptions(
                tuple(args.predictions), _read(RowOptions, args), _read(FitConfig, args), _read(BundleOptions, args)
            )
        )
    except DarkSightError as error:
        sys.stderr.write(f"darksight: {error.message}\n")
        return 2
    if report is not None:
        sys.stdout.write(json.dumps(report.as_dict(), indent=2, allow_nan=False) + "\n")
    return 0


def _add_options(parser: argparse.ArgumentParser, options: Any) -> None:
    """Add an option for each field of a dataclass, with its docstring entry as help."""
    hints = get_type_hints(options)
    entries = re.findall(r"^(\w+)\n((?:    .+\n?)+)", inspect.getdoc(options) or "", re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in entries}
    for field in fields(options):
        hint = hints[field.name]
        settings: dict[str, Any] = {"default": field.default, "help": texts[field.name]}
        if hint is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif get_origin(hint) is Literal:
            settings["choices"] = get_args(hint)
        else:
            settings["type"] = next(kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
        parser.add_argument(f"--{field.name.replace('_', '-')}", **settings)


def _read(options: type[Options], args: argparse.Namespace) -> Options:
    """The values of a dataclass's options."""
    return options(**{field.name: getattr(args, field.name) for field in fields(options)})  # type: ignore[arg-type]  # a dataclass


if __name__ == "__main__":
    sys.exit(main())
