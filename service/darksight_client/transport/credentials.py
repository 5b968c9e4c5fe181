"""Bearer tokens and TLS credentials from files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from darksight_client.errors import DarkSightClientError

__all__ = ["Token", "tls_credentials"]

_CHECK_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Token:
    """A bearer token, reloaded when its file changes.

    Parameters
    ----------
    text
        The token; empty for none.
    file
        File that contains the token.
    clock
        Monotonic seconds.
    """

    text: str = ""
    file: Path | None = None
    clock: Callable[[], float] = time.monotonic
    _stamp: tuple[int, int] | None = field(init=False, default=None)
    _next_check: float = field(init=False, default=0.0)

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """Metadata of a call. Checks the file at most once a second."""
        if self.file is not None and self.clock() >= self._next_check:
            self._reload(self.file)
        return (("authorization", f"Bearer {self.text}"),) if self.text else None

    def _reload(self, file: Path) -> None:
        try:
            stat = os.stat(file)
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                text = file.read_text(encoding="utf-8").strip()
                if text:
                    self.text, self._stamp = text, stamp
        except OSError as error:
            # While the file is being replaced, the previous token is still used.
            if not self.text:
                raise DarkSightClientError(f"cannot read token_file {file}: {error.strerror}.") from None
        if not self.text:
            raise DarkSightClientError(f"token_file {file} is empty.")
        self._next_check = self.clock() + _CHECK_SECONDS


def tls_credentials(
    ca: str | Path | bool | None, cert: str | Path | None, key: str | Path | None
) -> grpc.ChannelCredentials | None:
    """TLS credentials from PEM files, or None for a plaintext connection.

    Parameters
    ----------
    ca
        File with the trusted certificates; True for those of the system.
    cert, key
        Files with the client's certificate and private key, for mutual TLS.
    """
    if (cert is None) != (key is None):
        raise DarkSightClientError("tls_cert and tls_key must be given together.")
    if not ca and cert is None:
        return None
    roots = None if ca is None or isinstance(ca, bool) else _read(ca)
    chain = (None, None) if cert is None or key is None else (_read(key), _read(cert))
    return grpc.ssl_channel_credentials(roots, *chain)


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DarkSightClientError(f"cannot read {path}: {error.strerror}.") from None
