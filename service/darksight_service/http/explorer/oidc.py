"""Login through an OpenID provider: authorization code with PKCE.

    /oidc/login       sends the browser to the provider
    /oidc/callback    the provider sends it back with a code, for which the explorer gets an ID token

State, nonce and PKCE verifier of a login are sealed in a cookie of the browser, with a key of this process: a
login that is only started takes no memory here, and a code cannot be used in another browser. A login ends after ten
minutes and can be finished once. The signature of an ID token, its issuer, audience, times and nonce are checked; its
groups are mapped to permissions by the setting `oidc_groups`.

authlib and requests, the extra `oidc`, are imported when a provider is configured.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from darksight_service.control.tokens import Grant
from darksight_service.errors import ForbiddenError, ProviderError, SettingsError, UnauthenticatedError
from darksight_service.settings import Settings

__all__ = ["LOGIN_SECONDS", "MAX_WAITING", "Provider", "User", "local_path", "read_groups"]

LOGIN_SECONDS = 600
"""Time for a login at the provider."""

MAX_WAITING = 8
"""Logins that wait for the provider at a time."""

# Signatures by a key that the provider alone has: neither `none` nor one by the client secret.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_LEEWAY_SECONDS = 60
_TIMEOUT_SECONDS = 10.0
# Metadata and keys of the provider are read again after this time; keys also if none of them fits.
_FRESH_SECONDS = 3600.0
_MAX_TARGET = 2000
_MAX_NAME = 95

_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")

_log = logging.getLogger("darksight.oidc")


@dataclass(frozen=True, slots=True)
class User:
    """A user of the provider: the name in the audit trail, permissions, and the ID token, which a logout needs."""

    name: str
    grants: tuple[Grant, ...]
    id_token: str = ""


def local_path(target: str) -> str:
    """A path of this site, as it was asked for; `/` for anything that a browser could take for another site."""
    return target if len(target) <= _MAX_TARGET and _PATH.fullmatch(target) else "/"


def read_groups(settings: Settings) -> dict[str, Grant]:
    """The permissions of groups; SettingsError if they are invalid, or if the extra `oidc` is not installed."""
    try:
        import authlib  # noqa: F401
        import requests  # noqa: F401
    except ImportError:
        raise SettingsError("oidc_issuer needs packages: pip install 'darksight[oidc]'", name="oidc_issuer") from None
    return {name: Grant.read(text, f"oidc_groups: {name}") for name, text in settings.oidc_groups.items()}


class Provider:
    """The OpenID provider of the settings.

    Parameters
    ----------
    settings
        With an `oidc_issuer`.
    clock
        Unix time in seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        from cryptography.fernet import Fernet

        self._settings = settings
        self._clock = clock
        self._groups = read_groups(settings)
        self._url = settings.explorer_url.rstrip("/")
        self._seal = Fernet(Fernet.generate_key())
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MAX_WAITING)
        # Documents by URL, each with the time at which it was read.
        self._documents: dict[str, tuple[float, dict[str, Any]]] = {}
        # States of finished logins, with the time from which their cookie is too old anyway.
        self._finished: dict[str, float] = {}

    def start(self, target: str) -> tuple[str, str]:
        """The URL that a login begins at, and what to put into a cookie; `target` is the page to show afterwards."""
        login = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        with self._client() as client:
            url, _ = client.create_authorization_url(
                self._metadata("authorization_endpoint"),
                state=login["state"],
                code_verifier=login["verifier"],
                nonce=login["nonce"],
            )
        sealed = json.dumps({**login, "target": local_path(target)}).encode()
        return str(url), self._seal.encrypt_at_time(sealed, int(self._clock())).decode()

    def finish(self, query: Mapping[str, str], sealed: str) -> tuple[User, str]:
        """The user and the page to show, when the provider has sent the browser back.

        Parameters
        ----------
        query
            Parameters of the callback.
        sealed
            The cookie of the login.

        Raises
        ------
        UnauthenticatedError
            If the login was not started in this browser, or the provider does not confirm it.
        ForbiddenError
            If no group of the user permits anything.
        ProviderError
            If the provider does not answer.
        """
        login = self._unseal(sealed)
        if not hmac.compare_digest(query.get("state", "").encode(), login["state"].encode()):
            raise _refused("the answer belongs to another login")
        # RFC 9207: the answer of another provider, to which a browser was led.
        if query.get("iss", self._settings.oidc_issuer) != self._settings.oidc_issuer:
            raise _refused("the answer is of another provider")
        if "error" in query or not query.get("code"):
            raise _refused(f"the provider answered {query.get('error', 'without a code')[:100]!r}")
        token = self._exchange(query["code"], login["verifier"])
        claims = self._verify(token, login["nonce"])
        # Not before: anybody can send answers that are refused, and must not fill the memory with them.
        self._use(login["state"])
        return self._user(claims, str(token["id_token"])), login["target"]

    def logout_url(self, user: User) -> str:
        """Where a browser logs out of the provider too; empty if the provider has no such page."""
        try:
            endpoint = self._metadata("end_session_endpoint")
        except ProviderError:
            return ""
        from authlib.common.urls import add_params_to_uri

        parameters = {
            "id_token_hint": user.id_token,
            "client_id": self._settings.oidc_client_id,
            "post_logout_redirect_uri": f"{self._url}/login",
        }
        return str(add_params_to_uri(endpoint, list(parameters.items())))

    def _unseal(self, sealed: str) -> dict[str, str]:
        from cryptography.fernet import InvalidToken

        try:
            text = self._seal.decrypt_at_time(sealed.encode(), LOGIN_SECONDS, int(self._clock()))
        except InvalidToken:
            raise _refused("it was not started in this browser, or took too long") from None
        found: dict[str, str] = json.loads(text)
        return found

    def _use(self, state: str) -> None:
        """Refuse a login that was finished before."""
        now = self._clock()
        with self._lock:
            self._finished = {known: until for known, until in self._finished.items() if until > now}
            if state in self._finished:
                raise _refused("it was finished before")
            self._finished[state] = now + LOGIN_SECONDS

    def _client(self) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        settings = self._settings
        return OAuth2Session(
            settings.oidc_client_id,
            settings.oidc_client_secret or None,
            scope=settings.oidc_scopes,
            redirect_uri=f"{self._url}/oidc/callback",
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if settings.oidc_client_secret else "none",
        )

    def _exchange(self, code: str, verifier: str) -> dict[str, Any]:
        """The tokens for a code."""
        import requests
        from authlib.integrations.base_client import OAuthError

        try:
            with self._waiting(), self._client() as client:
                token = client.fetch_token(
                    self._metadata("token_endpoint"),
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=verifier,
                    timeout=_TIMEOUT_SECONDS,
                    allow_redirects=False,
                )
        except OAuthError as error:
            raise _refused(f"the provider refused the code: {str(error.error)[:100]!r}") from None
        except (requests.RequestException, ValueError) as error:
            raise _unavailable(error) from error
        if not isinstance(token.get("id_token"), str):
            raise _refused("the provider sent no ID token")
        return dict(token)

    def _verify(self, token: dict[str, Any], nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token; its signature may be by a key that the provider has had for moments only."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
        from joserfc.jwk import KeySet
        from joserfc.jws import JWSRegistry

        registry = JWSRegistry(algorithms=_ALGORITHMS, strict_check_header=False)

        def decode(*, is_new: bool) -> jwt.Token:
            keys = self._document(self._metadata("jwks_uri"), is_new=is_new)
            return jwt.decode(token["id_token"], KeySet.import_key_set(keys), registry=registry)  # type: ignore[arg-type]

        try:
            try:
                decoded = decode(is_new=False)
            except (InvalidKeyIdError, BadSignatureError):
                decoded = decode(is_new=True)
            options = {
                "iss": {"essential": True, "value": self._settings.oidc_issuer},
                "aud": {"essential": True, "value": self._settings.oidc_client_id},
            }
            parameters = {
                "nonce": nonce,
                "client_id": self._settings.oidc_client_id,
                "access_token": token.get("access_token"),
            }
            claims: Any = CodeIDToken(decoded.claims, decoded.header, options, parameters)
            claims.validate(now=int(self._clock()), leeway=_LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            _log.warning("id_token_refused", extra={"error": f"{type(error).__name__}: {error}"[:200]})
            raise _refused("the ID token of the provider is not valid") from None
        return dict(claims)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Wait for the provider, if few others do: anybody can start a login, and each takes a thread."""
        if not self._free.acquire(blocking=False):
            raise ProviderError("too many logins wait for the OpenID provider; try again later")
        try:
            yield
        finally:
            self._free.release()

    def _user(self, claims: Mapping[str, Any], id_token: str) -> User:
        settings = self._settings
        name = claims.get(settings.oidc_name_claim)
        # An address that the provider has not checked may be that of somebody else.
        is_checked = settings.oidc_name_claim != "email" or claims.get("email_verified") is True
        is_name = isinstance(name, str) and name and name.isprintable() and is_checked
        shown = str(name if is_name else claims["sub"])
        given = claims.get(settings.oidc_groups_claim, [])
        groups = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        grants = tuple(self._groups[group] for group in groups if isinstance(group, str) and group in self._groups)
        user = User(f"oidc:{shown[:_MAX_NAME]}", grants, id_token)
        if not any("read" in grant.scopes for grant in grants):
            raise ForbiddenError(
                f"no group of {user.name} has the scope 'read' (setting oidc_groups)", kind="forbidden"
            )
        return user

    def _metadata(self, name: str) -> str:
        """A URL of the provider's metadata."""
        issuer = self._settings.oidc_issuer
        found = self._document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise ProviderError(f"the metadata of {issuer} are those of another issuer")
        if not isinstance(found.get(name), str):
            raise ProviderError(f"the metadata of {issuer} have no {name}")
        return str(found[name])

    def _document(self, url: str, *, is_new: bool = False) -> dict[str, Any]:
        """A JSON object of the provider."""
        import requests

        read_at, found = self._documents.get(url, (-_FRESH_SECONDS, {}))
        if is_new or not 0.0 <= self._clock() - read_at < _FRESH_SECONDS:
            try:
                with self._waiting():
                    answer = requests.get(url, timeout=_TIMEOUT_SECONDS, allow_redirects=False)
                answer.raise_for_status()
                found = answer.json()
                if not isinstance(found, dict):
                    raise ValueError("not a JSON object")
            except (requests.RequestException, ValueError) as error:
                raise _unavailable(error) from error
            self._documents[url] = self._clock(), found
        return found


def _refused(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(f"the login failed: {why}; log in again", kind="invalid")


def _unavailable(error: Exception) -> ProviderError:
    _log.error("provider_failed", extra={"error": f"{type(error).__name__}: {error}"[:500]})
    return ProviderError("the OpenID provider does not answer; try again later, or log in with a token")
