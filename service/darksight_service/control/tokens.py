"""Bearer tokens with scopes.

The token file has one token per line, `NAME SCOPES SHA256 [EXPIRES]`, such as

    gateway score,report 3f79bb7b435b05321651daefd374cd... 2027-01-01

It contains hashes only. A token has 256 random bits, so a plain hash is safe. With the word `certificate` in place of a
hash, a line gives the scopes to callers without a token whose client certificate has this common name.

The file is reloaded when it changes. Valid lines apply, and an invalid line is refused and reported, so that a typing
mistake does not keep revoked tokens valid. While the file cannot be read, no token is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from darksight_service.errors import ForbiddenError, SettingsError, UnauthenticatedError

__all__ = ["OPEN", "SCOPES", "Token", "TokenFile", "certificate_token", "make_token"]

SCOPES = ("score", "report", "read", "admin", "metrics")
"""What a token can permit. No scope includes another."""

OPEN = "open"
"""The scope of methods that need no token, such as health checks."""

_CERTIFICATE = "certificate"
_RELOAD_SECONDS = 1.0
# Maximum number of cached headers. Callers can vary the spaces around a token, so the cache must be bounded.
_MAX_CACHED = 1000

_log = logging.getLogger("darksight.auth")


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the token file; `digest` is empty for a client certificate."""

    name: str
    scopes: frozenset[str]
    digest: bytes
    expires: float

    def line(self) -> str:
        """The token as a line of the file."""
        until = "" if self.expires == float("inf") else f" {datetime.fromtimestamp(self.expires, UTC).date()}"
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        return f"{self.name} {scopes} {self.digest.hex() or _CERTIFICATE}{until}\n"


def make_token(name: str, scopes: list[str], expires: date | None = None) -> tuple[str, Token]:
    """A new secret, and its token for the file."""
    secret = f"ds_{secrets.token_urlsafe(32)}"
    return secret, replace(certificate_token(name, scopes, expires), digest=_digest(secret))


def certificate_token(name: str, scopes: list[str], expires: date | None = None) -> Token:
    """The line for client certificates with this common name."""
    if not name or any(character.isspace() for character in name) or name.startswith("#"):
        raise SettingsError(f"{name!r} is not a valid token name; use letters, digits and dashes")
    until = (
        float("inf") if expires is None else datetime(expires.year, expires.month, expires.day, tzinfo=UTC).timestamp()
    )
    return Token(name, _scopes(scopes, "scopes"), b"", until)


class TokenFile:
    """The tokens of a file.

    Parameters
    ----------
    path
        Path of the file.
    clock
        Unix time in seconds.

    Attributes
    ----------
    errors
        Why lines, or the whole file, are refused.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        # None while the file cannot be read, so that it is tried again.
        self._stamp: tuple[int, ...] | None = None
        self.errors: tuple[str, ...] = ()
        tokens = self._read()
        # All tokens, and a cache by header. Both are replaced together.
        self._known: tuple[tuple[Token, ...], dict[str, Token]] = tokens, {}
        self._checked = clock()

    def check(self) -> None:
        """SettingsError if the file cannot be read or has an invalid line."""
        if self.errors:
            raise SettingsError(self.errors[0], file=str(self._path))

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
        now = self.reload()
        tokens, cached = self._known
        found = cached.get(header) or _find(tokens, header[7:].strip())
        if found is None:
            raise UnauthenticatedError("the token is unknown", kind="invalid")
        if len(cached) < _MAX_CACHED:
            cached[header] = found
        return _permitted(found, scope, now, f"token {found.name!r}")

    def permit_certificate(self, name: str, scope: str) -> str:
        """The common name of a client certificate, if a line gives it the scope; raises the errors of `permit`."""
        now = self.reload()
        found = next((each for each in self._known[0] if not each.digest and each.name == name), None)
        if found is None:
            raise UnauthenticatedError(
                f"the certificate {name[:100]!r} has no line in the token file; send a token, or add the line",
                kind="missing",
            )
        return _permitted(found, scope, now, f"certificate {found.name!r}")

    def reload(self) -> float:
        """Read the file again if it changed, at most once a second; returns the time."""
        now = self._clock()
        # The clock may have been set back.
        if abs(now - self._checked) > _RELOAD_SECONDS:
            with self._lock:
                self._checked = now
                if self._stamp is None or self._status() != self._stamp:
                    before = self.errors
                    tokens = self._read()
                    self._known = tokens, {}
                    # A file that cannot be read is reported once.
                    if self._stamp is not None or self.errors != before:
                        facts = {"tokens": len(tokens), "errors": list(self.errors)}
                        _log.log(logging.ERROR if self.errors else logging.INFO, "tokens_reloaded", extra=facts)
        return now

    def _read(self) -> tuple[Token, ...]:
        stamp = self._status()
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            self._stamp, self.errors = None, (f"{self._path}: cannot be read: {error}",)
            return ()
        self._stamp = stamp
        tokens, self.errors = _parse(lines, self._path)
        return tokens

    def _status(self) -> tuple[int, ...]:
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _permitted(token: Token, scope: str, now: float, what: str) -> str:
    if token.expires <= now:
        raise UnauthenticatedError(f"the {what} has expired", kind="expired")
    if scope not in token.scopes:
        raise ForbiddenError(f"the {what} lacks the scope {scope!r}", kind="forbidden")
    return token.name


def _find(tokens: tuple[Token, ...], secret: str) -> Token | None:
    digest, found = _digest(secret), None
    # Compare with all of them, each in constant time, so that the duration reveals nothing.
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _parse(lines: list[str], path: Path) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """The tokens of the valid lines, and why other lines are refused."""
    tokens: dict[str, Token] = {}
    errors = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _parse_line(line, f"{path}, line {number}")
            if token.name in tokens:
                raise SettingsError(f"{path}, line {number}: the name {token.name!r} is already in use")
            tokens[token.name] = token
        except SettingsError as error:
            errors.append(error.message)
    return tuple(tokens.values()), tuple(errors)


def _parse_line(line: str, where: str) -> Token:
    parts = line.split()
    try:
        name, scopes, digest = parts[:3]
        expires = datetime.fromisoformat(parts[3]).replace(tzinfo=UTC).timestamp() if len(parts) > 3 else float("inf")
        raw = b"" if digest == _CERTIFICATE else bytes.fromhex(digest)
        if len(raw) not in (0, 32) or len(parts) > 4:
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
