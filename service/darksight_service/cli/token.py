"""`darksight token`: make a bearer token for a server."""

from __future__ import annotations

import argparse
import os
from datetime import date
from pathlib import Path
from typing import Any

from darksight_service.cli.console import say

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `token` to the command line."""
    parser = commands.add_parser(
        "token",
        help="make a bearer token for a server",
        description="Adds a line to a token file and prints the new token, which is not kept anywhere: the file has "
        "its hash. A server reads its file (DARKSIGHT_TOKENS_FILE) again when it changes; to revoke a token, "
        "delete its line.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="token file, made if missing")
    parser.add_argument("name", metavar="NAME", help="who will use it; shows in errors")
    parser.add_argument(
        "--scopes", default="score,report", help="of score, report, read and admin, with commas (%(default)s)"
    )
    parser.add_argument("--expires", type=date.fromisoformat, metavar="YYYY-MM-DD", help="valid until then, in UTC")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a token."""
    from darksight_service.control.tokens import TokenFile, make_token
    from darksight_service.errors import SettingsError

    secret, token = make_token(args.name, args.scopes.split(","), args.expires)
    if args.file.exists():
        TokenFile(args.file)
        if any(line.split()[:1] == [args.name] for line in args.file.read_text(encoding="utf-8").splitlines()):
            raise SettingsError(
                f"{args.file}: has a token {args.name!r}; delete its line first, or choose another name"
            )
    try:
        descriptor = os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise SettingsError(f"{args.file}: cannot be written ({error.strerror}); name another file") from error
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(token.line())
    say(f"added {args.name} with {args.scopes} to {args.file}; this is its token, shown only now:")
    print(secret)
    return 0
