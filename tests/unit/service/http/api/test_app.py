"""The application of the HTTP API around handlers without a service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from darksight_service.http.api.app import make_api
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Service

LIMIT = 10_000


class Pool:
    """A pool that runs what it gets at once, and counts it."""

    def __init__(self) -> None:
        self.is_full = False
        self.limit = 4
        self.runs = 0

    def submit(self, run: Any) -> None:
        """Run it."""
        self.runs += 1
        run()


def call(pool: Pool, folder: Path, **options: Any) -> httpx.Response:
    """The response to a call, by default of ListModels, whose handler fails with an error that it does not expect."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("a secret")

    counts = ProcessCounts(folder, 0)
    service = Service(Broken(), Broken(), None, None, counts)  # type: ignore[arg-type]
    pools = dict.fromkeys(("call", "store", "stream", "open"), pool)
    app = make_api(service, Callers(None, counts=counts), pools, lambda run: run(), LIMIT)  # type: ignore[arg-type]

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8083") as client:
            return await client.request(**{"method": "GET", "url": "/v1/models", **options})

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8083", 500),
        ("http://127.0.0.1:9000", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_pages_of_other_hosts_are_refused_without_tokens(tmp_path: Path, origin: str, status: int) -> None:
    """A web page may not call a service on the machine of its visitor; 500 is what the handler gives."""
    assert call(Pool(), tmp_path, headers={"origin": origin}).status_code == status


def test_a_name_that_points_here_is_not_enough(tmp_path: Path) -> None:
    """A page whose host name was pointed at this address has the same origin and host."""
    headers = {"origin": "http://evil.example:8083", "host": "evil.example:8083"}

    assert call(Pool(), tmp_path, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8083", 500), ("[::1]:8083", 500), ("darksight:8083", 500), ("evil.example:8083", 403), ("", 403)],
)
def test_without_tokens_a_call_needs_a_local_host(tmp_path: Path, host: str, status: int) -> None:
    """A page whose host name was pointed at this address may not read either, which browsers do without an origin."""
    assert call(Pool(), tmp_path, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("body", "runs"),
    [
        (b'{"is_logits": true}', 0),
        (b'{"version": "abababababab"}', 1),
        (b'{"\\u0076ersion": "abababababab"}', 1),
        ('{"version": "abababababab"}'.encode("utf-16"), 1),
        ('{"version": "abababababab"}'.encode("utf-32-be"), 1),
        (b'{"rows": [[' + b"0," * 2040 + b"1]]}", 0),
        (b'{"rows": [[' + b"0," * 2047 + b"1]]}", 1),
    ],
    ids=["short", "version", "escaped", "utf-16", "utf-32", "values", "bulk"],
)
def test_what_may_wait_does_not_run_in_the_event_loop(tmp_path: Path, body: bytes, runs: int) -> None:
    """A call that may load a version, however it names it, or whose 2,048 values are for the bulk thread."""
    pool = Pool()

    call(pool, tmp_path, method="POST", url="/v1/models/digits/score", content=body)

    assert pool.runs == runs


def test_a_body_in_many_parts_takes_linear_time(tmp_path: Path) -> None:
    """Each part is measured once."""
    measured = 0

    class Part(bytes):
        def __len__(self) -> int:
            nonlocal measured
            measured += 1
            return super().__len__()

    async def parts() -> Any:
        for _ in range(200):
            yield Part(b" ")

    call(Pool(), tmp_path, method="POST", url="/v1/models/digits/score", content=parts())

    assert measured < 1000


def test_a_full_pool_refuses_with_a_time_to_retry(tmp_path: Path) -> None:
    """As over gRPC."""
    pool = Pool()
    pool.is_full = True

    response = call(pool, tmp_path)

    assert (response.status_code, response.json()["retry_seconds"]) == (429, 0.05)
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("content", [bytes(LIMIT + 1), [bytes(LIMIT), b"1"]], ids=["length", "chunks"])
def test_a_large_body_is_refused(tmp_path: Path, content: Any) -> None:
    """By its length, or when too much of it has come."""

    async def parts() -> Any:
        for part in content:
            yield part

    body = content if isinstance(content, bytes) else parts()

    assert call(Pool(), tmp_path, content=body).status_code == 413


def test_an_unexpected_error_tells_a_request_id_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The text of the exception stays in the log, under that id."""
    response = call(Pool(), tmp_path)

    assert response.status_code == 500
    assert "secret" not in response.text
    assert caplog.records[-1].request == response.json()["request_id"]  # type: ignore[attr-defined]
