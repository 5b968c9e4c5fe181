"""`darksight token`: create an access token for the service."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

from darksight_service.cli.console import say
from darksight_service.control.tokens import TokenFile, certificate_token, make_token
from darksight_service.errors import SettingsError

__all__ = ["token"]


def token(
    file: Path,
    name: str,
    /,
    *,
    scopes: str = "score,report",
    models: str | None = None,
    expires: date | None = None,
    certificate: bool = False,
) -> None:
    """Create an access token for the service.

    Prints a new token and adds a line with its hash to a token file; the token itself is not stored. A service reads
    the file that DARKSIGHT_TOKENS_FILE names, and reloads it when it changes. To revoke a token, delete its line.

    Parameters
    ----------
    file
        Token file. It is created if it does not exist.
    name
        Name of the user or program. It appears in error messages and is the author of changes in the audit trail.
    scopes
        Permissions, separated by commas: score, report, read, admin, metrics.
    models
        The only models that the token may see, score and change, separated by commas. Default: all models.
    expires
        Last day on which the token is valid, in UTC, such as 2027-01-31. Default: it does not expire.
    certificate
        Make no token: give the scopes to callers whose client certificate has this name as its common name.
    """
    permitted = None if models is None else models.split(",")
    if certificate:
        secret, entry = "", certificate_token(name, scopes.split(","), expires, permitted)
    else:
        secret, entry = make_token(name, scopes.split(","), expires, permitted)
    if file.exists():
        TokenFile(file).check()
        if any(line.split()[:1] == [name] for line in file.read_text(encoding="utf-8").splitlines()):
            raise SettingsError(f"{file}: already has a token {name!r}; delete its line or choose another name")
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise SettingsError(f"{file}: cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "a", encoding="utf-8") as opened:
        opened.write(entry.line())
    given = scopes if models is None else f"{scopes} for {models}"
    if certificate:
        say(f"added the certificate name {name} with {given} to {file}")
    else:
        say(f"added {name} with {given} to {file}; this is the token, it is not shown again:")
        print(secret)
