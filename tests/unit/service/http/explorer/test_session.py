"""Who may ask the explorer for what."""

from __future__ import annotations

from pathlib import Path

import pytest
from darksight_service.control.tokens import TokenFile, make_token
from darksight_service.errors import ForbiddenError, UnauthenticatedError
from darksight_service.http.explorer.session import CSRF_HEADER, Guard
from darksight_service.http.requests import Request
from starlette.responses import Response

HOST = "explorer.example:8082"


def make_request(method: str = "GET", *, host: str = HOST, **headers: str) -> Request:
    """A request with these headers."""
    given = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Request({}, b"", b"", {name.encode(): value for name, value in given.items()}, method)


class Clock:
    """A clock that is set by hand."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        """Unix time in seconds."""
        return self.now


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Secrets of a reader and of an operator, whose hashes are in the file `tokens`."""
    secrets = {}
    with (tmp_path / "tokens").open("w") as file:
        for name, scopes in (("reader", ["read"]), ("operator", ["read", "admin"]), ("caller", ["score"])):
            secrets[name], token = make_token(name, scopes)
            file.write(token.line())
    return secrets


def log_in(guard: Guard, secret: str) -> str:
    """Log in; the cookie header that the browser would send."""
    response = Response()
    guard.log_in(make_request("POST", origin=f"https://{HOST}"), secret, response)
    return response.headers["set-cookie"].partition(";")[0]


def make_guard(tmp_path: Path, clock: Clock, **options: bool) -> Guard:
    """A guard with the tokens of the file."""
    return Guard(TokenFile(tmp_path / "tokens", clock), clock=clock, **{"is_secure": False, **options})


def test_a_session_may_what_its_token_may(tmp_path: Path, tokens: dict[str, str]) -> None:
    """A reader looks and changes nothing."""
    guard = make_guard(tmp_path, Clock())
    cookie = log_in(guard, tokens["reader"])
    csrf = guard.session(make_request(cookie=cookie)).csrf
    change = make_request("POST", cookie=cookie, origin=f"https://{HOST}", **{CSRF_HEADER.replace("-", "_"): csrf})

    assert guard.permit(make_request(cookie=cookie), "read").name == "reader"
    assert guard.describe(make_request(cookie=cookie))["scopes"] == ["read"]
    with pytest.raises(ForbiddenError, match="lacks the scope 'admin'"):
        guard.permit(change, "admin")


@pytest.mark.parametrize("secret", ["", "ds_wrong"])
def test_an_unknown_token_begins_no_session(tmp_path: Path, tokens: dict[str, str], secret: str) -> None:
    """And neither does one that may not look."""
    guard = make_guard(tmp_path, Clock())

    with pytest.raises(UnauthenticatedError):
        log_in(guard, secret)
    with pytest.raises(ForbiddenError):
        log_in(guard, tokens["caller"])
    with pytest.raises(UnauthenticatedError):
        guard.permit(make_request(), "read")


def test_a_change_needs_the_csrf_token_and_the_same_origin(tmp_path: Path, tokens: dict[str, str]) -> None:
    """The cookie alone changes nothing, whoever made the browser send it."""
    guard = make_guard(tmp_path, Clock())
    cookie = log_in(guard, tokens["operator"])
    csrf = guard.session(make_request(cookie=cookie)).csrf
    ours = f"https://{HOST}"

    assert guard.permit(make_request("POST", cookie=cookie, origin=ours, x_csrf_token=csrf), "admin").name == "operator"
    for headers in (
        {"origin": ours},
        {"origin": ours, "x_csrf_token": "guess"},
        {"origin": "https://elsewhere.example", "x_csrf_token": csrf},
        {"x_csrf_token": csrf},
        {"origin": "null", "x_csrf_token": csrf},
    ):
        with pytest.raises(ForbiddenError):
            guard.permit(make_request("POST", cookie=cookie, **headers), "admin")


def test_a_session_ends_with_its_token_its_time_or_its_log_out(tmp_path: Path, tokens: dict[str, str]) -> None:
    """Deleting the line of a token puts its sessions out within a second or so."""
    clock = Clock()
    guard = make_guard(tmp_path, clock)
    cookies = [log_in(guard, tokens[name]) for name in ("reader", "operator", "operator")]
    guard.log_out(make_request("POST", cookie=cookies[1], origin=f"https://{HOST}"))
    lines = (tmp_path / "tokens").read_text().splitlines(keepends=True)
    (tmp_path / "tokens").write_text("".join(line for line in lines if not line.startswith("reader")))
    clock.now += 2.0

    for cookie in cookies[:2]:
        with pytest.raises(UnauthenticatedError):
            guard.permit(make_request(cookie=cookie), "read")
    assert guard.permit(make_request(cookie=cookies[2]), "read").name == "operator"
    clock.now += 13 * 3600.0
    with pytest.raises(UnauthenticatedError):
        guard.permit(make_request(cookie=cookies[2]), "read")


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_cookie_is_for_this_site_alone(tmp_path: Path, tokens: dict[str, str], is_secure: bool) -> None:
    """No script reads it, no other site sends it, and under TLS it travels in no other way."""
    response = Response()
    guard = make_guard(tmp_path, Clock(), is_secure=is_secure)
    guard.log_in(make_request("POST", origin=f"https://{HOST}"), tokens["reader"], response)
    cookie = response.headers["set-cookie"].lower()

    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert ("secure" in cookie) == is_secure
    assert cookie.startswith("__host-") == is_secure
