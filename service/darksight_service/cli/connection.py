"""The connection of a command to a running service, and the options of commands that use one."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from darksight_client import Client, DarkSightClientError

from darksight_core.errors import ConfigError
from darksight_service.cli.options import AsJson
from darksight_service.errors import RemoteError

__all__ = [
    "CONNECTION",
    "Change",
    "CommentedChange",
    "Credentials",
    "ModelName",
    "Query",
    "QueryOptions",
    "class_names_of",
    "connect",
]

CONNECTION = Group("Connection", sort_key=6)

_AUDIT = Group("Audit trail", sort_key=5)
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to authenticate a service, and to authenticate to it.

    Parameters
    ----------
    token
        Access token for the service. Other users of this machine can see it; prefer --token-file.
    token_file
        File with an access token for the service.
    tls
        Use TLS, with the certificate authorities of this machine.
    tls_ca
        PEM file with the certificate authority of the service, for TLS.
    tls_cert
        PEM file with a client certificate, for a service that asks for one.
    tls_key
        PEM file with the private key of --tls-cert.
    """

    token: str | None = None
    token_file: Path | None = None
    tls: Annotated[bool, Parameter(negative="")] = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@contextmanager
def connect(server: str, credentials: Credentials, timeout_seconds: float) -> Iterator[Client]:
    """A client of the service at `server`; its errors are raised as RemoteError, with the address."""
    if credentials.token is not None and credentials.token_file is not None:
        raise ConfigError("give either --token or --token-file")
    try:
        with Client(
            server,
            token=credentials.token,
            token_file=credentials.token_file,
            tls_ca=credentials.tls_ca or credentials.tls,
            tls_cert=credentials.tls_cert,
            tls_key=credentials.tls_key,
            timeout_seconds=timeout_seconds,
        ) as client:
            yield client
    except DarkSightClientError as error:
        raise RemoteError(f"{server}: {error}") from error


def class_names_of(client: Client, model: str) -> tuple[str, ...]:
    """The classes of a model; none if the caller may not read it."""
    try:
        return client.model(model).class_names
    except DarkSightClientError:
        return ()


@dataclass(frozen=True, slots=True)
class Query(Credentials):
    """A question to a service.

    Parameters
    ----------
    server
        Address of the service.
    """

    server: Annotated[str, Parameter(metavar="HOST:PORT")] = "localhost:8081"
    json: AsJson = False

    def connect(self) -> AbstractContextManager[Client]:
        """A client of the service."""
        return connect(self.server, self, _SECONDS)


@dataclass(frozen=True, slots=True)
class Change(Query):
    """A change, with its entry in the audit trail.

    Parameters
    ----------
    author
        Author of the change. Default: the user of this machine.
    """

    author: Annotated[str | None, Parameter(group=_AUDIT)] = None

    def entry(self) -> dict[str, str]:
        """The entry as the client takes it."""
        if self.author is not None:
            return {"author": self.author}
        try:
            return {"author": getpass.getuser()}
        except (OSError, KeyError):
            # In a container, the user may have no name.
            return {"author": ""}


@dataclass(frozen=True, slots=True)
class CommentedChange(Change):
    """A change whose entry in the audit trail has a comment.

    Parameters
    ----------
    comment
        Reason for the change.
    """

    comment: Annotated[str, Parameter(group=_AUDIT)] = ""

    def entry(self) -> dict[str, str]:
        """The entry as the client takes it."""
        return {**Change.entry(self), "comment": self.comment}


ModelName = Annotated[str, Parameter(help="Name of the model.")]
QueryOptions = Annotated[Query, Parameter(name="*", group=CONNECTION)]
