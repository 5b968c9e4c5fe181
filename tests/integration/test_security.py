"""Who gets in: tokens, scopes, TLS and client certificates, over real sockets."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from darksight_client import Client, PermissionDenied, Policy, Unauthenticated, Unavailable
from darksight_service.control.tokens import SCOPES, certificate_token, make_token

from tests.integration.test_service import K, gated_bundle
from tests.support.builders import make_probs
from tests.support.certificates import Certificates
from tests.support.servers import Server, running_server, wait_until


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle to serve."""
    return gated_bundle(tmp_path_factory.mktemp("bundle") / "digits.safetensors")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A token file with a token for each scope, and their secrets."""
    path, found = tmp_path_factory.mktemp("tokens") / "tokens", {}
    with path.open("w") as file:
        for scope in SCOPES:
            found[scope], token = make_token(f"only-{scope}", [scope])
            file.write(token.line())
    return path, found


@pytest.fixture(scope="module")
def guarded(
    bundle: Path, secrets: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A service that wants tokens, on loopback without TLS."""
    variables = {"DARKSIGHT_TOKENS_FILE": str(secrets[0])}
    with running_server(
        {"digits": bundle}, tmp_path_factory.mktemp("data"), "--workers", "1", environment=variables
    ) as server:
        yield server


def code_of(channel: grpc.Channel, path: str, is_stream: bool, token: str | None) -> grpc.StatusCode:
    """Status of a call with an empty message."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        if is_stream:
            list(channel.stream_stream(path)(iter([]), metadata=metadata, timeout=60))
        else:
            channel.unary_unary(path)(b"", metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_health_needs_no_token(guarded: Server):
    """Orchestrators have none."""
    with grpc.insecure_channel(guarded.grpc_target) as channel:
        assert code_of(channel, "/grpc.health.v1.Health/Check", False, None) is grpc.StatusCode.OK


def test_the_client_says_what_is_wrong_with_its_token(
    guarded: Server, secrets: tuple[Path, dict[str, str]], tmp_path: Path
):
    """No token, a wrong one, one without the scope, and the right one from a file."""
    (tmp_path / "secret").write_text(secrets[1]["score"] + "\n")

    with Client(guarded.grpc_target, timeout_seconds=60.0) as client, pytest.raises(Unauthenticated):
        client.score("digits", make_probs(1, K))
    with Client(guarded.grpc_target, token="ds_wrong", timeout_seconds=60.0) as client, pytest.raises(Unauthenticated):
        client.score("digits", make_probs(1, K))
    with Client(guarded.grpc_target, token_file=str(tmp_path / "secret"), timeout_seconds=60.0) as client:
        assert client.score("digits", make_probs(1, K)).recorded
        with pytest.raises(PermissionDenied, match="lacks the scope 'admin'"):
            client.set_policy("digits", Policy(alpha=0.5))
    assert "darksight_auth_failures_total" in guarded.get("/metrics")[1]


def test_a_revoked_token_is_refused_within_seconds(guarded: Server, secrets: tuple[Path, dict[str, str]]):
    """Its line is deleted, the server goes on; as it did when the line was added."""
    secret, token = make_token("old", ["score"])
    others = secrets[0].read_text()
    with Client(guarded.grpc_target, token=secret, timeout_seconds=60.0) as client:

        def is_refused() -> bool:
            try:
                client.score("digits", make_probs(1, K))
            except Unauthenticated:
                return True
            return False

        assert is_refused()
        secrets[0].write_text(others + token.line())
        wait_until(lambda: not is_refused(), what="the token to be known")
        secrets[0].write_text(others)
        wait_until(is_refused, what="the token to be refused")


def test_tls_with_client_certificates_lets_in_who_was_signed_and_nobody_else(bundle: Path, tmp_path: Path):
    """Plaintext, no certificate, another authority, another name: all fail; rotated files are taken up as they are."""
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    cert, key = ours.make("server")
    mine, foreign, wrong = ours.make("client"), theirs.make("client"), ours.make("wrong", host="elsewhere")
    served = tmp_path / "served.pem", tmp_path / "served.key"
    for source, copy in zip((cert, key), served, strict=True):
        copy.write_bytes(source.read_bytes())
    variables = {
        "DARKSIGHT_TLS_CERT": str(served[0]),
        "DARKSIGHT_TLS_KEY": str(served[1]),
        "DARKSIGHT_TLS_CLIENT_CA": str(ours.ca),
        "DARKSIGHT_TOKENS_FILE": str(tmp_path / "tokens"),
    }
    (tmp_path / "tokens").write_text(certificate_token("client", ["score"]).line())

    def can_call(target: str, **options: object) -> bool:
        with Client(target, timeout_seconds=60.0, retries=1, **options) as client:
            try:
                return client.score("digits", make_probs(1, K)).recorded
            except Unavailable:
                return False

    with running_server({"digits": bundle}, tmp_path / "data", "--workers", "1", environment=variables) as server:
        target = server.grpc_target
        good = {"tls_ca": str(ours.ca), "tls_cert": str(mine[0]), "tls_key": str(mine[1]), "server_name": "localhost"}
        assert can_call(target, **good)
        assert not can_call(target)
        assert not can_call(target, tls_ca=str(ours.ca), server_name="localhost")
        assert not can_call(target, **{**good, "tls_cert": str(foreign[0]), "tls_key": str(foreign[1])})
        assert not can_call(target, **{**good, "tls_ca": str(theirs.ca)})
        assert not can_call(target, **{**good, "server_name": "elsewhere"})

        for source, copy in zip(wrong, served, strict=True):
            temporary = copy.with_suffix(".new")
            temporary.write_bytes(source.read_bytes())
            os.replace(temporary, copy)
        wait_until(lambda: can_call(target, **{**good, "server_name": "elsewhere"}), what="the new certificate")


def test_the_explorer_keeps_its_certificate_until_certificate_and_key_belong_together(bundle: Path, tmp_path: Path):
    """A renewed certificate is written before its key: connections are possible all the time."""
    authority = Certificates(tmp_path / "ca")
    old, new = authority.make("old"), authority.make("new")
    served = tmp_path / "served.pem", tmp_path / "served.key"
    for source, copy in zip(old, served, strict=True):
        copy.write_bytes(source.read_bytes())
    variables = {"DARKSIGHT_TLS_CERT": str(served[0]), "DARKSIGHT_TLS_KEY": str(served[1])}
    options = ("--workers", "1", "--explorer-port", "0")
    with running_server({"digits": bundle}, tmp_path / "data", *options, environment=variables) as server:
        wait_until(lambda: "explorer" in server.children(), what="the explorer")
        port = int(server.explorer_url.rpartition(":")[2].strip("/"))

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port)).strip()

        def is_shown(path: Path) -> bool:
            return shown() in path.read_text()

        assert is_shown(old[0])
        served[0].write_bytes(new[0].read_bytes())
        wait_until(lambda: server.events("certificate_reload_failed"), what="the certificate to be refused")
        was_kept = is_shown(old[0])
        served[1].write_bytes(new[1].read_bytes())
        wait_until(lambda: is_shown(new[0]), what="the new certificate")

    assert was_kept
