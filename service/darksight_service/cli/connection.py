"""The connection of a command to a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Group
from darksight_client import Client, DarkSightClientError

from darksight_service.errors import RemoteError

__all__ = ["CONNECTION", "Credentials", "connect"]

CONNECTION = Group("Connection", sort_key=6)


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to authenticate a service, and to authenticate to it.

    Parameters
    ----------
    token_file
        File with an access token for the service.
    tls_ca
        PEM file with the certificate authority of the service.
    """

    token_file: Path | None = None
    tls_ca: Path | None = None


@contextmanager
def connect(server: str, credentials: Credentials, timeout_seconds: float) -> Iterator[Client]:
    """A client of the service at `server`; its errors are raised as RemoteError, with the address."""
    try:
        with Client(
            server,
            token_file=credentials.token_file,
            tls_ca=credentials.tls_ca,
            timeout_seconds=timeout_seconds,
        ) as client:
            yield client
    except DarkSightClientError as error:
        raise RemoteError(f"{server}: {error}") from error
