"""The secret of an installation, of which the ids of batches are made (see `ScoringService`).

All replicas have the same one, so that a call that is repeated at another replica is stored once. The database has it,
and every data directory a copy, because scoring does not wait for the database. A replica makes one of its own until it
has reached the database for the first time.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from darksight_service.store.store import Store

__all__ = ["read_secret", "share_secret"]

_NAME = "secret"


def read_secret(folder: Path) -> bytes:
    """The secret in a data directory, 32 bytes, which are drawn if there is none."""
    try:
        found = (folder / _NAME).read_bytes()
    except FileNotFoundError:
        found = b""
    return found if len(found) == 32 else _write(folder, secrets.token_bytes(32))


def share_secret(folder: Path, store: Store) -> None:
    """Give the database the secret of a data directory or, if it has one, the directory that of the database."""
    own = read_secret(folder)
    shared = store.keep_secret(own)
    if shared != own:
        _write(folder, shared)


def _write(folder: Path, secret: bytes) -> bytes:
    draft = folder / f"{_NAME}.new"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / _NAME)
    return secret
