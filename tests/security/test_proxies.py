"""The configurations of reverse proxies: HAProxy with real traffic through it, Envoy as far as a file shows."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from darksight_client import Client

from tests.integration.test_service import K
from tests.support.builders import make_probs
from tests.support.certificates import Certificates
from tests.support.servers import Server, wait_until
from tests.support.tools import find_tool

PROXY = Path(__file__).parents[2] / "deploy" / "proxy"


@pytest.fixture(scope="module")
def proxy(attacked: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Port of a HAProxy before the service, and the authority of its certificate."""
    program, folder = find_tool("haproxy"), tmp_path_factory.mktemp("proxy")
    certificates = Certificates(folder / "ca")
    pair = certificates.make("localhost")
    (folder / "both.pem").write_bytes(b"".join(each.read_bytes() for each in pair))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ports = {
        "GRPC": int(attacked.grpc_target.rpartition(":")[2]),
        "API": urlsplit(attacked.api_url).port,
        "EXPLORER": urlsplit(attacked.explorer_url).port,
        "HTTP": urlsplit(attacked.http_url).port,
    }
    variables = {
        **os.environ,
        **{f"DARKSIGHT_{name}_PORT": str(number) for name, number in ports.items()},
        "PROXY_BIND": f"127.0.0.1:{port}",
        "PROXY_CERT": str(folder / "both.pem"),
    }
    command = [program, "-f", str(PROXY / "haproxy.cfg")]
    subprocess.run([*command, "-c"], env=variables, check=True, timeout=60)
    with subprocess.Popen([*command, "-db"], env=variables) as process:
        try:
            context = ssl.create_default_context(cafile=certificates.ca)

            def is_up() -> bool:
                with suppress(httpx.TransportError):
                    return httpx.get(f"https://localhost:{port}/login", verify=context).status_code == 200
                return False

            wait_until(is_up, what="the proxy")
            yield port, certificates.ca
        finally:
            process.terminate()


def test_every_door_works_through_haproxy(proxy: tuple[int, Path], tokens: tuple[dict[str, str], str]) -> None:
    """gRPC with its streams, the HTTP API and the explorer on one port with TLS."""
    port, ca = proxy
    rows = make_probs(3, K)
    with Client(f"localhost:{port}", token=tokens[0]["gateway"], tls_ca=ca, timeout_seconds=60.0) as client:
        assert len(client.score("digits", rows)) == 3
        assert len(list(client.stream("digits", [rows] * 4))) == 4
    context = ssl.create_default_context(cafile=ca)
    headers = {"authorization": f"Bearer {tokens[0]['gateway']}"}
    with httpx.Client(base_url=f"https://localhost:{port}", verify=context, headers=headers, timeout=60.0) as web:
        assert web.post("/v1/models/digits/score", json={"rows": rows.tolist()}).status_code == 200
        assert web.get("/v2").json()["name"] == "darksight"
        origin = {"origin": f"https://localhost:{port}"}
        assert web.post("/api/login", json={"token": tokens[0]["reader"]}, headers=origin).status_code == 200
        # What only the service and its operators are to see.
        assert web.get("/metrics").status_code == 404
        assert web.post("/v1/models/digits/score", content=bytes(5 << 20)).status_code == 413


def test_haproxy_limits_the_connections_of_an_address(proxy: tuple[int, Path], attacked: Server) -> None:
    """The others are refused there, and do not reach the service."""
    port, _ = proxy
    with ExitStack() as held:
        made = []
        for _ in range(150):
            with suppress(ConnectionResetError):
                made.append(held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)))

        def is_open(connection: socket.socket) -> bool:
            connection.settimeout(0.01)
            try:
                return connection.recv(1) != b""
            except TimeoutError:
                return True
            except OSError:
                return False

        wait_until(lambda: sum(map(is_open, made)) <= 101, what="refusals")
        assert attacked.get("/v2/health/ready")[0] == 200


def test_the_configuration_of_envoy_has_all_doors() -> None:
    """Envoy is no Debian package, so nothing runs it here."""
    found = yaml.safe_load((PROXY / "envoy.yaml").read_text(encoding="utf-8"))["static_resources"]
    (listener,) = found["listeners"]
    (manager,) = listener["filter_chains"][0]["filters"]
    routes = manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
    clusters = {each["name"]: each for each in found["clusters"]}

    assert [each["route"]["cluster"] for each in routes] == list(clusters) == ["grpc", "api", "explorer"]
    assert all(each["health_checks"] and each["circuit_breakers"] for each in clusters.values())
    assert "8080" in json.dumps(clusters["grpc"]["load_assignment"])
