"""A running service that a command asks: the options that name it, and the way there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from darksight_client import Client, DarkSightClientError

from darksight_service.errors import RemoteError

__all__ = ["add_server_options", "connected"]


def add_server_options(parser: argparse.ArgumentParser, *, default: str | None, help: str) -> None:
    """Add which service to ask, and what it takes to be answered."""
    parser.add_argument("--server", default=default, metavar="HOST:PORT", help=help)
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with a token for the service")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="certificates that vouch for the service, PEM")


@contextmanager
def connected(args: argparse.Namespace, timeout_seconds: float) -> Iterator[Client]:
    """A client of the service that was named; RemoteError, which names it too, for what goes wrong there."""
    options = {"token_file": args.token_file, "tls_ca": args.tls_ca, "timeout_seconds": timeout_seconds}
    try:
        with Client(args.server, **options) as client:
            yield client
    except DarkSightClientError as error:
        raise RemoteError(f"{args.server}: {error}") from error
