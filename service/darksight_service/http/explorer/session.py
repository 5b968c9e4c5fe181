"""Sessions: login with a token of the service or through an OpenID provider, session cookie, CSRF protection.

A browser logs in with a token and gets a cookie that scripts cannot read and other sites cannot send. The token stays
in the memory of the explorer and is checked against the token file at every request: a revoked token stops working
within a second, and a restart of the explorer ends all sessions. A request that changes something must have the
session's CSRF token in a header, which a form of another site cannot set, and the right origin. A user of an OpenID
provider (`oidc`) keeps the permissions of the login until the session ends.

Without a token file everybody on this machine may read and change, as over gRPC.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from darksight_service.control.tokens import ANYBODY, OPEN, SCOPES, Caller, TokenFile, permit_by_grants
from darksight_service.errors import ForbiddenError, RequestError, UnauthenticatedError
from darksight_service.http.explorer.oidc import User
from darksight_service.http.requests import Request

__all__ = ["CSRF_HEADER", "Guard", "Session"]

CSRF_HEADER = "x-csrf-token"
"""Header of the CSRF token."""

_SESSION_SECONDS = 12 * 3600.0
# Sessions of one token. One more ends the oldest of this token, and of no other.
_MAX_SESSIONS = 100


@dataclass(frozen=True, slots=True)
class Session:
    """A session.

    Parameters
    ----------
    name
        Name of the token or of the user.
    csrf
        Its CSRF token.
    expires
        Unix time in seconds.
    header
        The authorization header that the token has over gRPC; empty for a user.
    user
        The user of an OpenID provider.
    """

    name: str
    csrf: str
    expires: float
    header: str = ""
    user: User | None = None


class Guard:
    """Decides which requests are permitted.

    Parameters
    ----------
    tokens
        Tokens of the service; None if no token is needed.
    is_secure
        Whether the explorer uses TLS.
    clock
        Unix time in seconds.

    Attributes
    ----------
    needs_token
        Whether a token is needed.
    """

    def __init__(self, tokens: TokenFile | None, *, is_secure: bool, clock: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self.needs_token = tokens is not None
        self._is_secure = is_secure
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._open = Session("", secrets.token_urlsafe(32), float("inf"))
        # With this prefix a browser accepts the cookie over TLS and from this host only.
        self._cookie = "__Host-darksight" if is_secure else "darksight"

    def session(self, request: Request) -> Session:
        """The session of a request; UnauthenticatedError if it has none or it has expired."""
        if self._tokens is None:
            return self._open
        found = self._sessions.get(request.cookies.get(self._cookie, ""))
        if found is None or found.expires <= self._clock():
            raise UnauthenticatedError("log in with a token first", kind="missing")
        return found

    def permit(self, request: Request, scope: str) -> Caller:
        """The caller; an error if it lacks the scope."""
        if scope == OPEN:
            return ANYBODY
        session = self.session(request)
        if request.method != "GET":
            _check_origin(request)
            if not hmac.compare_digest(request.header(CSRF_HEADER).encode(), session.csrf.encode()):
                raise ForbiddenError(
                    "the CSRF token is missing or belongs to another session; reload the page", kind="csrf"
                )
        return self._permitted(session, scope)

    def describe(self, request: Request) -> dict[str, object]:
        """The session as a page needs it."""
        session = self.session(request)
        scopes, name = list(SCOPES), ""
        if self._tokens is not None:
            scopes = [scope for scope in SCOPES if self._permits(session, scope)]
            name = session.name
        return {"name": name, "scopes": scopes, "csrf": session.csrf, "needs_login": self.needs_token}

    def log_in(self, request: Request, secret: str, response: Response) -> None:
        """Start a session with a token of scope `read`, and set its cookie."""
        _check_origin(request)
        if self._tokens is None:
            raise RequestError("token: this service needs none", field="token")
        header = f"Bearer {secret}"
        self._start(response, self._tokens.permit(header, "read").name, header=header)

    def log_in_user(self, user: User, response: Response) -> None:
        """Start a session of a user with the scope `read`, and set its cookie."""
        self._start(response, permit_by_grants(user.name, user.grants, "read").name, user=user)

    def log_out(self, request: Request) -> Session | None:
        """End a session and return it, if there is one; `forget` then deletes its cookie."""
        _check_origin(request)
        with self._lock:
            return self._sessions.pop(request.cookies.get(self._cookie, ""), None)

    def forget(self, response: Response) -> None:
        """Delete the cookie of a session that was ended."""
        response.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._is_secure)

    def _start(self, response: Response, name: str, *, header: str = "", user: User | None = None) -> None:
        now, cookie = self._clock(), secrets.token_urlsafe(32)
        with self._lock:
            kept = {key: each for key, each in self._sessions.items() if each.expires > now}
            mine = [key for key, each in kept.items() if each.name == name]
            for key in mine[: len(mine) + 1 - _MAX_SESSIONS]:
                del kept[key]
            kept[cookie] = Session(name, secrets.token_urlsafe(32), now + _SESSION_SECONDS, header, user)
            self._sessions = kept
        response.set_cookie(
            self._cookie,
            cookie,
            max_age=int(_SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=self._is_secure,
        )

    def _permitted(self, session: Session, scope: str) -> Caller:
        if self._tokens is None:
            return ANYBODY
        if session.user is not None:
            return permit_by_grants(session.name, session.user.grants, scope)
        return self._tokens.permit(session.header, scope)

    def _permits(self, session: Session, scope: str) -> bool:
        try:
            self._permitted(session, scope)
        except ForbiddenError:
            return False
        return True


def _check_origin(request: Request) -> None:
    if not request.header("origin") or not request.is_same_origin:
        raise ForbiddenError("the request comes from another origin", kind="origin")
