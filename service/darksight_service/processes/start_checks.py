"""Checks of a start, in the parent, before any child process exists.

A child that finds an invalid file exits and is restarted again and again. So the parent reads every file that a child
will read, and refuses to start with one sentence.
"""

from __future__ import annotations

import fcntl
import os
import ssl
from pathlib import Path
from typing import IO

from darksight_service.control.signatures import required_key
from darksight_service.control.tokens import TokenFile
from darksight_service.errors import SettingsError
from darksight_service.http.explorer.oidc import read_groups
from darksight_service.settings import Settings

__all__ = ["check_files", "lock_data_dir"]


def check_files(settings: Settings) -> None:
    """SettingsError or ConfigError for a certificate, a key, a token file or a folder that cannot be used."""
    if settings.reference_dir is not None and not settings.reference_dir.is_dir():
        raise SettingsError(f"reference_dir {settings.reference_dir}: is not a directory", name="reference_dir")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if settings.tls_cert is not None and settings.tls_key is not None:
        for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
            _check_readable(name, path)
        try:
            # With an empty password, an encrypted key is an error and not a question at the terminal.
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(
                f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key}: are not a certificate and its key in "
                f"PEM, without a password ({getattr(error, 'reason', None) or error})",
                name="tls_cert",
            ) from None
    if settings.tls_client_ca is not None:
        _check_readable("tls_client_ca", settings.tls_client_ca)
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except ssl.SSLError:
            raise SettingsError(
                f"tls_client_ca {settings.tls_client_ca}: has no certificate in PEM", name="tls_client_ca"
            ) from None
    if settings.tokens_file is not None:
        TokenFile(settings.tokens_file).check()
    required_key(settings.require_signature)
    if settings.oidc_issuer and settings.explorer:
        read_groups(settings)


def lock_data_dir(folder: Path) -> IO[str]:
    """Create the data directory and lock it for this process; the lock ends with the file that is returned.

    Two services would write to the same state and count the same rows twice.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(os.open(folder / "serve.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    except OSError as error:
        raise SettingsError(f"data_dir {folder}: cannot be used: {error.strerror}", name="data_dir") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise SettingsError(
            f"data_dir {folder}: another service uses it (process {owner}); stop it, or name another --data-dir",
            name="data_dir",
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{name} {path}: cannot be read: {error.strerror}", name=name) from None
