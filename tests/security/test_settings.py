"""A service that cannot work is refused at its start, and its pages can be closed."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from darksight_service.control.tokens import make_token
from darksight_service.errors import SettingsError
from darksight_service.http.api.health import HealthServer
from darksight_service.processes.start_checks import check_files
from darksight_service.settings import Settings, read_settings

from darksight_core.bundle import write_bundle
from tests.support.bundles import make_bundle
from tests.support.certificates import Certificates
from tests.support.servers import Server, running_server

SCRAPER, SCRAPER_TOKEN = make_token("prometheus", ["metrics"])
OTHER, OTHER_TOKEN = make_token("gateway", ["score"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The authority that signs the server's certificate."""
    found = Certificates(tmp_path_factory.mktemp("ca") / "ca")
    found.make("server")
    found.make("other")
    return found


@pytest.fixture(scope="module")
def server(authority: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service whose metrics have TLS, a token and an address of their own."""
    folder = tmp_path_factory.mktemp("service")
    write_bundle(folder / "m.safetensors", make_bundle(rows=400))
    (folder / "tokens").write_text(SCRAPER_TOKEN.line() + OTHER_TOKEN.line())
    variables = {
        "DARKSIGHT_TLS_CERT": str(authority.folder / "server.pem"),
        "DARKSIGHT_TLS_KEY": str(authority.folder / "server.key"),
        "DARKSIGHT_TOKENS_FILE": str(folder / "tokens"),
        "DARKSIGHT_HTTP_HOST": "127.0.0.2",
        "DARKSIGHT_HTTP_TLS": "true",
        "DARKSIGHT_METRICS_TOKEN": "true",
    }
    models = {"m": folder / "m.safetensors"}
    with running_server(models, folder / "data", "--workers", "1", environment=variables) as running:
        yield running


def test_metrics_can_need_tls_and_a_token(server: Server, authority: Certificates) -> None:
    """With the scope `metrics`, on an address of their own; health stays open, for probes."""
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    trusted.check_hostname = False

    def status(path: str, secret: str = "") -> int:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.get(server.http_url + path, headers=headers, verify=trusted).status_code

    assert server.http_url.startswith("https://127.0.0.2:")
    assert server.grpc_target.startswith("127.0.0.1:")
    assert [status("/metrics", secret) for secret in ("", "ds_wrong", OTHER, SCRAPER)] == [401, 401, 403, 200]
    assert status("/v2/health/ready") == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(server.http_url.replace("https", "http") + "/metrics")


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("10.0.0.7:8080", 200), ("evil.example.com", 403)])
def test_metrics_without_tokens_are_for_local_names(tmp_path: Path, host: str, status: int) -> None:
    """A web page that points its name to this machine could read them."""

    class Nothing:
        is_ready, explorer_url = True, ""

        def render_metrics(self, accept: str) -> tuple[bytes, str]:
            return b"", "text/plain"

    pages = HealthServer(Settings(data_dir=tmp_path, http_port=0), Nothing())
    pages.start()
    try:
        found = httpx.get(f"http://127.0.0.1:{pages.port}/metrics", headers={"host": host}, timeout=60)
    finally:
        pages.stop(20)

    assert found.status_code == status


def test_a_data_directory_has_one_service(server: Server) -> None:
    """A second one would write to the same state."""
    done = serve(server.data_dir)

    assert done.returncode == 2
    assert re.search(rf"another service uses it \(process {server.process.pid}\)", done.stderr)


def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    """In the parent, with one sentence; the workers were started again and again."""
    (tmp_path / "tokens").write_text("not a token\n")

    done = serve(tmp_path / "data", DARKSIGHT_TOKENS_FILE=str(tmp_path / "tokens"))

    assert done.returncode == 2
    assert "tokens, line 1: expected NAME SCOPES SHA256" in done.stderr
    assert not (tmp_path / "data").exists()


def serve(data_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a service that is expected not to start."""
    return subprocess.run(
        [sys.executable, "-m", "darksight_service.cli", "serve", "--data-dir", str(data_dir), "--grpc-port", "0"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("value", ["lots", "topK:0", "topK:-1", "float32"])
def test_a_wrong_way_to_keep_probabilities_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The service started, and stored nothing."""
    monkeypatch.setenv("DARKSIGHT_KEEP_PROBABILITIES", value)

    with pytest.raises(SettingsError, match=r"DARKSIGHT_KEEP_PROBABILITIES must be float16, topK:<k> or none"):
        read_settings()


@pytest.mark.parametrize(
    ("cert", "key", "ca", "message"),
    [
        ("none.pem", "server.key", "ca.pem", "tls_cert .*none.pem: cannot be read: No such file"),
        ("server.pem", "other.key", "ca.pem", "are not a certificate and its key"),
        ("server.key", "server.key", "ca.pem", "are not a certificate and its key"),
        ("server.pem", "server.key", "server.key", "tls_client_ca .*server.key: has no certificate"),
        ("server.pem", "server.key", "none.pem", "tls_client_ca .*none.pem: cannot be read"),
    ],
)
def test_a_bad_certificate_is_named(authority: Certificates, cert: str, key: str, ca: str, message: str) -> None:
    """Missing files, a key of another certificate, and files of another kind."""
    tls = {
        "tls_cert": authority.folder / cert,
        "tls_key": authority.folder / key,
        "tls_client_ca": authority.folder / ca,
    }

    with pytest.raises(SettingsError, match=message):
        check_files(Settings(**tls, tokens_file=authority.ca))
