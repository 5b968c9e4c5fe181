"""Who may call what: bearer tokens with scopes.

The file has one token per line, `NAME SCOPES SHA256 [EXPIRES]`, such as

    gateway score,report 3f79bb7b435b05321651daefd374cd... 2027-01-01

and holds only the hash of each token: a token has 256 random bits, so that a plain hash gives nothing away. It is read
again when it changes. Every method has a scope in one table, and a method that is not in it can be called by nobody.
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
"""What a token can permit; they do not include each other."""

OPEN = "open"
"""The scope of what anybody may call: health."""

_REREAD_SECONDS = 1.0
# Headers whose token is remembered. Blanks around a token make others of it, so that there could be any number.
_SEEN = 1000

_log = logging.getLogger("darksight.auth")


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the file."""

    name: str
    scopes: frozenset[str]
    digest: bytes
    expires: float

    def line(self) -> str:
        """The line."""
        until = "" if self.expires == float("inf") else f" {datetime.fromtimestamp(self.expires, UTC).date()}"
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        return f"{self.name} {scopes} {self.digest.hex()}{until}\n"


def make_token(name: str, scopes: list[str], expires: date | None = None) -> tuple[str, Token]:
    """A new secret and the line for the file."""
    if not name or any(character.isspace() for character in name) or name.startswith("#"):
        raise SettingsError(f"{name!r} cannot name a token: use letters, digits and dashes")
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
        Of the file.
    clock
        Unix time in seconds.

    Raises
    ------
    SettingsError
        If it cannot be read or has a bad line. A file that goes bad later keeps the tokens of before, and is logged.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._status()
        # Tokens, and by header those that were found among them: they are forgotten together.
        self._known: tuple[tuple[Token, ...], dict[str, Token]] = _parse(path), {}
        self._checked = clock()

    def permit(self, header: str | None, scope: str) -> str:
        """Name of the token in an `authorization` header, if it permits `scope`.

        Raises
        ------
        UnauthenticatedError
            If there is no such token, or no longer.
        ForbiddenError
            If it does not permit this.
        """
        if not header or header[:7].lower() != "bearer ":
            raise UnauthenticatedError(
                "this server needs a token: send metadata authorization: Bearer TOKEN", kind="missing"
            )
        now = self._clock()
        if now - self._checked > _REREAD_SECONDS:
            self._reread(now)
        tokens, seen = self._known
        found = seen.get(header) or _find(tokens, header[7:].strip())
        if found is None:
            raise UnauthenticatedError("the token is not known to this server", kind="invalid")
        if len(seen) < _SEEN:
            seen[header] = found
        if found.expires <= now:
            raise UnauthenticatedError(f"the token {found.name!r} has expired", kind="expired")
        if scope not in found.scopes:
            raise ForbiddenError(f"the token {found.name!r} has no scope {scope!r}", kind="forbidden")
        return found.name

    def _reread(self, now: float) -> None:
        with self._lock:
            self._checked = now
            stamp = self._status()
            if stamp == self._stamp:
                return
            try:
                tokens = _parse(self._path)
                self._known = tokens, {}
                self._stamp = stamp
                _log.info("tokens_read", extra={"tokens": len(tokens)})
            except SettingsError as error:
                _log.error("tokens_kept_as_they_were", extra={"error": error.message})

    def _status(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


def _find(tokens: tuple[Token, ...], secret: str) -> Token | None:
    digest, found = _digest(secret), None
    # All of them, each in constant time: how long it takes tells nothing about any of them.
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
        raise SettingsError(f"{path}: a name is there twice", file=str(path))
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
            f"{where}: must be NAME SCOPES SHA256 [YYYY-MM-DD]; darksight token writes such lines"
        ) from None
    return Token(name, _scopes(scopes.split(","), where), raw, expires)


def _scopes(scopes: list[str], where: str) -> frozenset[str]:
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SettingsError(f"{where}: {', '.join(unknown) or 'none'} is no scope; there are {', '.join(SCOPES)}")
    return frozenset(scopes)
