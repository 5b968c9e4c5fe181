"""Who is asking: the tokens of gRPC, brought by a cookie.

A browser logs in with a token once and gets a cookie that scripts cannot read and other sites cannot send. The token
itself stays here, in memory, and is looked up in the token file at every request: a token that is revoked is out within
a second, and a restart of the explorer logs everybody out. A request that changes something must carry the session's
CSRF token in a header, which no form of another site can set, and come from this very origin.

Without a token file everybody on this machine may look and change, as over gRPC. Then a page elsewhere could still have
its own name point to this machine and read what it likes (DNS rebinding): so the name asked for must be one that nobody
can point elsewhere, an address, `localhost`, or a name without a dot.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from darksight_service.control.tokens import SCOPES, TokenFile
from darksight_service.errors import ForbiddenError, RequestError, UnauthenticatedError

__all__ = ["CSRF_HEADER", "Guard", "Session"]

CSRF_HEADER = "x-csrf-token"
"""Header of requests that change something."""

_LIFE_SECONDS = 12 * 3600.0
_MAX_SESSIONS = 1_000


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who logged in; `header` is what they would send over gRPC."""

    header: str
    csrf: str
    expires: float


class Guard:
    """Permits requests.

    Parameters
    ----------
    tokens
        Of the service; None where none are needed.
    is_secure
        Whether the explorer speaks TLS.
    clock
        Unix time in seconds.
    """

    def __init__(self, tokens: TokenFile | None, *, is_secure: bool, clock: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._is_secure = is_secure
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._open = Session("", secrets.token_urlsafe(32), float("inf"))
        # With this prefix a browser takes the cookie from this host alone, and over TLS alone.
        self._cookie = "__Host-darksight" if is_secure else "darksight"

    @property
    def needs_login(self) -> bool:
        """Whether a token is needed."""
        return self._tokens is not None

    def session(self, request: Request) -> Session:
        """The session of a request; UnauthenticatedError if it has none, or no longer."""
        if self._tokens is None:
            return self._open
        found = self._sessions.get(request.cookies.get(self._cookie, ""))
        if found is None or found.expires <= self._clock():
            raise UnauthenticatedError("log in with a token first", kind="missing")
        return found

    def permit(self, request: Request, scope: str) -> str:
        """Name of the caller, if the caller may do this."""
        session = self.session(request)
        if request.method != "GET":
            _check_origin(request)
            if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()):
                raise ForbiddenError("the request lacks this session's CSRF token; load the page again", kind="csrf")
        return "" if self._tokens is None else self._tokens.permit(session.header, scope)

    def describe(self, request: Request) -> dict[str, object]:
        """What a page needs to know about its session."""
        session = self.session(request)
        scopes, name = list(SCOPES), ""
        if self._tokens is not None:
            # Any known token may look at what it permits.
            scopes = [scope for scope in SCOPES if self._permits(session, scope)]
            name = self._tokens.permit(session.header, scopes[0]) if scopes else ""
        return {"name": name, "scopes": scopes, "csrf": session.csrf, "needs_login": self.needs_login}

    def log_in(self, request: Request, secret: str, response: Response) -> None:
        """Begin a session with a token that may look; its cookie goes with the response."""
        _check_origin(request)
        if self._tokens is None:
            raise RequestError("this server needs no token", field="token")
        header, now = f"Bearer {secret}", self._clock()
        self._tokens.permit(header, "read")
        name = secrets.token_urlsafe(32)
        with self._lock:
            kept = [(key, each) for key, each in self._sessions.items() if each.expires > now][1 - _MAX_SESSIONS :]
            self._sessions = {**dict(kept), name: Session(header, secrets.token_urlsafe(32), now + _LIFE_SECONDS)}
        response.set_cookie(
            self._cookie,
            name,
            max_age=int(_LIFE_SECONDS),
            httponly=True,
            samesite="strict",
            secure=self._is_secure,
        )

    def log_out(self, request: Request, response: Response) -> None:
        """End a session."""
        _check_origin(request)
        with self._lock:
            self._sessions.pop(request.cookies.get(self._cookie, ""), None)
        response.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._is_secure)

    def check_host(self, host: str) -> None:
        """Refuse a name that somebody could have pointed at this machine, where no token protects it."""
        if self._tokens is None and not _is_ours(host):
            raise ForbiddenError(
                "without tokens the explorer answers to an address, to localhost or to a name without a dot; "
                "open it by one of these, or set tokens_file",
                kind="host",
            )

    def _permits(self, session: Session, scope: str) -> bool:
        assert self._tokens is not None
        try:
            self._tokens.permit(session.header, scope)
        except ForbiddenError:
            return False
        return True


def _check_origin(request: Request) -> None:
    _, _, origin = request.headers.get("origin", "").partition("://")
    if not origin or origin != request.headers.get("host", ""):
        raise ForbiddenError("the request comes from another site", kind="origin")


def _is_ours(host: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and "." not in name
    return True
