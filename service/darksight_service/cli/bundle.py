"""`darksight bundle`: look at bundles, check them, compare two."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from darksight_core.bundle import Bundle, describe, diff, read_bundle
from darksight_service.cli.console import print_json

__all__ = ["add_parser", "run_diff", "run_show", "run_verify"]


def add_parser(commands: Any) -> None:
    """Add `bundle` to the command line."""
    parser = commands.add_parser("bundle", help="show, verify or compare bundles", description="Look at bundles.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="what a bundle holds", description="Print what a bundle holds.")
    show.add_argument("bundle", type=Path)
    show.add_argument("--json", action="store_true", help="print the manifest as JSON")
    show.set_defaults(run=run_show)
    verify = actions.add_parser(
        "verify",
        help="check every byte and score the probe rows again",
        description="Load a bundle as a server would: hashes, shapes, finiteness, overlap of fit and calibration rows, "
        "and the probe rows' scores. Exit 0 if it may be served, 2 with the reason if not.",
    )
    verify.add_argument("bundle", type=Path)
    verify.set_defaults(run=run_verify)
    compare = actions.add_parser("diff", help="what differs between two", description="Print what differs.")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.set_defaults(run=run_diff)


def run_show(args: argparse.Namespace) -> int:
    """Print one bundle, even one that must not be served."""
    found = read_bundle(args.bundle, verify=False)
    if args.json:
        print_json({"version": found.version, **found.manifest})
    else:
        print(describe(found))
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Load one bundle with every check."""
    found: Bundle = read_bundle(args.bundle, verify=True)
    print(f"{args.bundle}: sound, version {found.version}")
    return 0


def run_diff(args: argparse.Namespace) -> int:
    """Print the differences of two bundles, or that there are none."""
    lines = diff(read_bundle(args.old, verify=False), read_bundle(args.new, verify=False))
    print("\n".join(lines) if lines else "no difference")
    return 0
