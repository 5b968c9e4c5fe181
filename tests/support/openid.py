"""A small OpenID provider on loopback: it logs everybody in, checks what a provider must, and lies on request."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "OpenIdProvider", "hmac_signer", "running_provider"]

CLIENT_ID, CLIENT_SECRET = "explorer", "a secret with : and %"


class OpenIdProvider:
    """What the provider says.

    Attributes
    ----------
    issuer
        Its URL.
    claims
        Claims of the next ID tokens that differ from the right ones; None for one that is left out.
    header
        Header of the next ID tokens.
    sign
        Signs the next ID tokens; by default the key that the provider publishes.
    is_down
        Whether it answers with status 500.
    logins, keys_read
        How often it was asked for a login, and for its keys.
    """

    def __init__(self, host: str) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.issuer = f"http://{host}:{self._server.server_port}"
        self.is_down = False
        self.logins = self.keys_read = 0
        self._codes: dict[str, dict[str, str]] = {}
        self.rotate()
        self.reset()

    def reset(self) -> None:
        """Say the truth again."""
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {"alg": "RS256", "kid": self.kid}
        self.sign = self.sign_with_own_key
        self.is_down = False

    def rotate(self) -> None:
        """Sign with a new key, and publish that one alone."""
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid = secrets.token_hex(4)
        self.header = {"alg": "RS256", "kid": self.kid}

    def sign_with_own_key(self, data: bytes) -> bytes:
        """A signature with the published key."""
        return self.key.sign(data, padding.PKCS1v15(), hashes.SHA256())

    @property
    def public_numbers(self) -> rsa.RSAPublicNumbers:
        """The published key."""
        return self.key.public_key().public_numbers()

    def serve(self) -> None:
        """Answer until `close`."""
        self._server.serve_forever()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of a page."""
        if self.is_down:
            return 500, {}, {}
        if path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            names["end_session_endpoint"] = "logout"
            return 200, {}, {"issuer": self.issuer, **{name: f"{self.issuer}/{end}" for name, end in names.items()}}
        if path == "/keys":
            self.keys_read += 1
            number = self.public_numbers
            key = {
                "kty": "RSA",
                "use": "sig",
                "kid": self.kid,
                "n": _encoded_int(number.n),
                "e": _encoded_int(number.e),
            }
            return 200, {}, {"keys": [key]}
        if path == "/authorize":
            return self._authorize(query)
        if path == "/logout":
            return 302, {"Location": query["post_logout_redirect_uri"]}, {}
        return 404, {}, {}

    def _authorize(self, query: dict[str, str]) -> tuple[int, dict[str, str], Any]:
        self.logins += 1
        if query.get("code_challenge_method") != "S256" or query.get("response_type") != "code":
            return 400, {}, {"error": "invalid_request"}
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        answer = urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        return 302, {"Location": f"{query['redirect_uri']}?{answer}"}, {}

    def post(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of the token endpoint."""
        if self.is_down:
            return 500, {}, {}
        expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, {}, {"error": "invalid_client"}
        # A code is for one use.
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = _encoded(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form.get("redirect_uri"):
            return 400, {}, {"error": "invalid_grant"}
        access = secrets.token_urlsafe(16)
        found = {"access_token": access, "token_type": "Bearer", "id_token": self._id_token(asked["nonce"], access)}
        return 200, {"Cache-Control": "no-store"}, found

    def _id_token(self, nonce: str, access: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "sub": "user-1", "aud": CLIENT_ID, "exp": now + 300, "iat": now, "nonce": nonce,
            "at_hash": _encoded(hashlib.sha256(access.encode()).digest()[:16]),
            "email": "ann@example.com", "email_verified": True, "groups": ["analysts"], **self.claims,
        }  # fmt: skip
        parts = (self.header, {name: value for name, value in claims.items() if value is not None})
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_encoded(self.sign(text.encode()))}"


def hmac_signer(key: bytes) -> Any:
    """Signs with a secret, as HS256 does."""
    return lambda data: hmac.new(key, data, hashlib.sha256).digest()


@contextmanager
def running_provider(host: str = "127.0.0.1") -> Iterator[OpenIdProvider]:
    """A provider for the time of a block; `host` is its name in URLs."""
    provider = OpenIdProvider(host)
    thread = threading.Thread(target=provider.serve, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.close()
        thread.join()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encoded_int(number: int) -> str:
    return _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def _handler(provider: OpenIdProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            self._answer(*provider.get(parts.path, query))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(*provider.post(form, self.headers.get("Authorization", "")))

        def _answer(self, status: int, headers: dict[str, str], found: Any) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
