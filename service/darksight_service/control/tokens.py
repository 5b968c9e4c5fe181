"""Bearer tokens with scopes.

The token file has one token per line, `NAME SCOPES SHA256 [EXPIRES] [models=A,B]`, such as

    gateway score,report 3f79bb7b435b05321651daefd374cd... 2027-01-01 models=digits

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path

from darksight_service.control.state_file import stamp
from darksight_service.errors import ForbiddenError, SettingsError, UnauthenticatedError

__all__ = [
    "ANYBODY",
    "OPEN",
    "SCOPES",
    "Caller",
    "Grant",
    "Token",
    "TokenFile",
    "certificate_token",
    "make_token",
    "permit_by_grants",
]

SCOPES = ("score", "report", "read", "admin", "metrics")
"""What a token can permit. No scope includes another."""

OPEN = "open"
"""The scope of methods that need no token, such as health checks."""

_CERTIFICATE = "certificate"
_MODELS = "models="
_RELOAD_SECONDS = 1.0
# Maximum number of cached headers. Callers can vary the spaces around a token, so the cache must be bounded.
_MAX_CACHED = 1000

_log = logging.getLogger("darksight.auth")


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller who has the scope that a call needs.

    Parameters
    ----------
    name
        Of the token, certificate or user; empty if everybody may call.
    models
        The models that the caller may use; None for all.
    """

    name: str
    models: frozenset[str] | None = None

    def may_use(self, model: str) -> bool:
        """Whether the caller may use a model."""
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """ForbiddenError if the caller may not use a model; the same whether the model exists or not."""
        if not self.may_use(model):
            raise ForbiddenError(f"{self.name!r} may not use the model {model[:100]!r}", kind="forbidden")

    def check_all_models(self, what: str) -> None:
        """ForbiddenError if the caller may use some models only, and `what` is about all."""
        if self.models is not None:
            raise ForbiddenError(f"{self.name!r} may use some models only, and {what} all", kind="forbidden")


ANYBODY = Caller("")
"""The caller of a service without tokens."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Scopes, and the models that they apply to; None for all."""

    scopes: frozenset[str]
    models: frozenset[str] | None = None

    @classmethod
    def read(cls, text: str, where: str) -> Grant:
        """A grant from a text `SCOPES [models=A,B]`; SettingsError names `where` the text is."""
        scopes, *rest = text.split() or [""]
        if len(rest) > 1 or not all(word.startswith(_MODELS) for word in rest):
            raise SettingsError(f"{where}: expected SCOPES [models=A,B], not {text[:100]!r}")
        return cls(_scopes(scopes.split(","), where), _models(rest, where))

    def __str__(self) -> str:
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        return scopes if self.models is None else f"{scopes} {_MODELS}{','.join(sorted(self.models))}"


def permit_by_grants(name: str, grants: Sequence[Grant], scope: str) -> Caller:
    """The caller with these grants, for the models of those that have the scope; ForbiddenError if none has."""
    models: set[str] = set()
    found = [grant for grant in grants if scope in grant.scopes]
    if not found:
        raise ForbiddenError(f"{name!r} lacks the scope {scope!r}", kind="forbidden")
    for grant in found:
        if grant.models is None:
            return Caller(name)
        models |= grant.models
    return Caller(name, frozenset(models))


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the token file; `digest` is empty for a client certificate."""

    name: str
    grant: Grant
    digest: bytes
    expires: float
    caller: Caller = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "caller", Caller(self.name, self.grant.models))

    def line(self) -> str:
        """The token as a line of the file."""
        until = "" if self.expires == float("inf") else f" {datetime.fromtimestamp(self.expires, UTC).date()}"
        scopes, _, models = str(self.grant).partition(" ")
        return f"{self.name} {scopes} {self.digest.hex() or _CERTIFICATE}{until} {models}".rstrip() + "\n"


def make_token(
    name: str, scopes: list[str], expires: date | None = None, models: list[str] | None = None
) -> tuple[str, Token]:
    """A new secret, and its token for the file."""
    secret = f"ds_{secrets.token_urlsafe(32)}"
    return secret, replace(certificate_token(name, scopes, expires, models), digest=_digest(secret))


def certificate_token(
    name: str, scopes: list[str], expires: date | None = None, models: list[str] | None = None
) -> Token:
    """The line for client certificates with this common name."""
    if not name or any(character.isspace() for character in name) or name.startswith("#"):
        raise SettingsError(f"{name!r} is not a valid token name; use letters, digits and dashes")
    until = (
        float("inf") if expires is None else datetime(expires.year, expires.month, expires.day, tzinfo=UTC).timestamp()
    )
    permitted = None if models is None else _models([f"{_MODELS}{','.join(models)}"], "models")
    return Token(name, Grant(_scopes(scopes, "scopes"), permitted), b"", until)


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

    def permit(self, header: str | None, scope: str) -> Caller:
        """The caller with the token in an `authorization` header.

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

    def permit_certificate(self, name: str, scope: str) -> Caller:
        """The caller with a client certificate, if a line gives its name the scope; raises the errors of `permit`."""
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
                if self._stamp is None or stamp(self._path) != self._stamp:
                    before = self.errors
                    tokens = self._read()
                    self._known = tokens, {}
                    # A file that cannot be read is reported once.
                    if self._stamp is not None or self.errors != before:
                        facts = {"tokens": len(tokens), "errors": list(self.errors)}
                        _log.log(logging.ERROR if self.errors else logging.INFO, "tokens_reloaded", extra=facts)
        return now

    def _read(self) -> tuple[Token, ...]:
        found = stamp(self._path)
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            self._stamp, self.errors = None, (f"{self._path}: cannot be read: {error}",)
            return ()
        self._stamp = found
        tokens, self.errors = _parse(lines, self._path)
        return tokens


def _permitted(token: Token, scope: str, now: float, what: str) -> Caller:
    if token.expires <= now:
        raise UnauthenticatedError(f"the {what} has expired", kind="expired")
    if scope not in token.grant.scopes:
        raise ForbiddenError(f"the {what} lacks the scope {scope!r}", kind="forbidden")
    return token.caller


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
        name, scopes, digest, *rest = parts
        models = [rest.pop()] if rest and rest[-1].startswith(_MODELS) else []
        expires = datetime.fromisoformat(rest[0]).replace(tzinfo=UTC).timestamp() if rest else float("inf")
        raw = b"" if digest == _CERTIFICATE else bytes.fromhex(digest)
        if len(raw) not in (0, 32) or len(rest) > 1:
            raise ValueError(line)
    except ValueError:
        raise SettingsError(
            f"{where}: expected NAME SCOPES SHA256 [YYYY-MM-DD] [models=A,B], as written by darksight token"
        ) from None
    return Token(name, Grant(_scopes(scopes.split(","), where), _models(models, where)), raw, expires)


def _scopes(scopes: list[str], where: str) -> frozenset[str]:
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SettingsError(f"{where}: unknown scope {', '.join(unknown) or repr('')}; scopes are {', '.join(SCOPES)}")
    return frozenset(scopes)


def _models(words: list[str], where: str) -> frozenset[str] | None:
    """The models of `models=A,B`, if there is such a word."""
    if not words:
        return None
    names = words[0].removeprefix(_MODELS).split(",")
    if not all(names) or any(character.isspace() for name in names for character in name):
        raise SettingsError(f"{where}: models must be names separated by commas, not {','.join(names)[:100]!r}")
    return frozenset(names)
