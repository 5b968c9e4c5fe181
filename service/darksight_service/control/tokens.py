"""Bearer tokens with scopes.

The token file has one token per line, `NAME SCOPES SHA256 [EXPIRES]`, such as

    gateway score,report 3f79bb7b435b05321651daefd374cd... 2027-01-01

It contains hashes only. A token has 256 random bits, so a plain hash is safe. The file is reloaded when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from darksight_service.errors import ForbiddenError, SettingsError, UnauthenticatedError

__all__ = ["OPEN", "SCOPES", "Token", "TokenFile", "make_token"]

SCOPES = ("score", "report", "read", "admin")
"""What a token can permit. No scope includes another."""

OPEN = "open"
"""The scope of methods that need no token, such as health checks."""

_RELOAD_SECONDS = 1.0
# Maximum number of cached headers. Callers can vary the spaces around a token, so the cache must be bounded.
_MAX_CACHED = 1000

_log = logging.getLogger("darksight.auth")


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the token file."""

    name: str
    scopes: frozenset[str]
    digest: bytes
    expires: float

    def line(self) -> str:
        """The token as a line of the file."""
        until = "" if self.expires == float("inf") else f" {datetime.fromtimestamp(self.expires, UTC).date()}"
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        return f"{self.name} {scopes} {self.digest.hex()}{until}\n"


def make_token(name: str, scopes: list[str], expires: date | None = None) -> tuple[str, Token]:
    """A new secret, and its token for the file."""
    if not name or any(character.isspace() for character in name) or name.startswith("#"):
        raise SettingsError(f"{name!r} is not a valid token name; use letters, digits and dashes")
    secret = f"ds_{secrets.token_urlsafe(32)}"
    until = (
        float("inf") if expires is None else datetime(expires.year, expires.month, expires.day, tzinfo=UTC).timestamp()
    )
    return secret, Token(name, _scopes(scopes, "scopes"), _digest(secret), until)


class TokenFile:
    """The tokens of a file.

    Parameters
    ----------
    path
        Path of the file.
    clock
        Unix time in seconds.

    Raises
    ------
    SettingsError
        If the file cannot be read or has an invalid line. If that happens later, the previous tokens stay valid and
        the error is logged.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._status()
        # All tokens, and a cache by header. Both are replaced together.
        self._known: tuple[tuple[Token, ...], dict[str, Token]] = _parse(path), {}
        self._checked = clock()

    def permit(self, header: str | None, scope: str) -> str:
        """Name of the token in an `authorization` header.

        Raises
        ------
        UnauthenticatedError
            If the token is missing, unknown or expired.
        ForbiddenError
            If the token lacks the scope.
        """
        if not header or header[:7].lower() != "bearer ":
            raise UnauthenticatedError(
                "a token is required: send the metadata authorization: Bearer TOKEN", kind="missing"
            )
        now = self._clock()
        if now - self._checked > _RELOAD_SECONDS:
            self._reload(now)
        tokens, cached = self._known
        found = cached.get(header) or _find(tokens, header[7:].strip())
        if found is None:
            raise UnauthenticatedError("the token is unknown", kind="invalid")
        if len(cached) < _MAX_CACHED:
            cached[header] = found
        if found.expires <= now:
            raise UnauthenticatedError(f"the token {found.name!r} has expired", kind="expired")
        if scope not in found.scopes:
            raise ForbiddenError(f"the token {found.name!r} lacks the scope {scope!r}", kind="forbidden")
        return found.name

    def _reload(self, now: float) -> None:
        with self._lock:
            self._checked = now
            stamp = self._status()
            if stamp == self._stamp:
                return
            try:
                tokens = _parse(self._path)
                self._known = tokens, {}
                self._stamp = stamp
                _log.info("tokens_reloaded", extra={"tokens": len(tokens)})
            except SettingsError as error:
                _log.error("tokens_reload_failed", extra={"error": error.message})

    def _status(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


def _find(tokens: tuple[Token, ...], secret: str) -> Token | None:
    digest, found = _digest(secret), None
    # Compare with all of them, each in constant time, so that the duration reveals nothing.
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _parse(path: Path) -> tuple[Token, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}", file=str(path)) from error
    tokens = tuple(
        _parse_line(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if len({token.name for token in tokens}) != len(tokens):
        raise SettingsError(f"{path}: two tokens have the same name", file=str(path))
    return tokens


def _parse_line(line: str, where: str) -> Token:
    parts = line.split()
    try:
        name, scopes, digest = parts[:3]
        expires = datetime.fromisoformat(parts[3]).replace(tzinfo=UTC).timestamp() if len(parts) > 3 else float("inf")
        raw = bytes.fromhex(digest)
        if len(raw) != 32 or len(parts) > 4:
            raise ValueError(line)
    except ValueError:
        raise SettingsError(
            f"{where}: expected NAME SCOPES SHA256 [YYYY-MM-DD], as written by darksight token"
        ) from None
    return Token(name, _scopes(scopes.split(","), where), raw, expires)


def _scopes(scopes: list[str], where: str) -> frozenset[str]:
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SettingsError(f"{where}: unknown scope {', '.join(unknown) or repr('')}; scopes are {', '.join(SCOPES)}")
    return frozenset(scopes)
