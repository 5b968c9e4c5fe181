"""What the page says of the processes and the certificate of an instance."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from darksight_service.metrics.exposition import make_registry, render
from darksight_service.metrics.instance import certificate_expiry

EXPIRES_2027 = """
-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIUc6X2TIUgnau13dszKzFOVZOEIyswCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAeFw0yNjExMTcxOTIyMjBaFw0yNzEyMjIxOTIyMjBaMAwx
CjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARGrMOdELKHe3YT
rzLx7aujJVcHoFnc/a0rZ/4esqomfHKCaU2g3hSQrQwJg7Y+Ng/guLGay3S6jZQE
SijFRUxAo1MwUTAdBgNVHQ4EFgQUdCT3XojK6K9Ft+VCi0bEOZ+p1dUwHwYDVR0j
BBgwFoAUdCT3XojK6K9Ft+VCi0bEOZ+p1dUwDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNIADBFAiEAvol9pm4xJ+QsNAkY5zL5p3PLME5lY68kxQZyPuxiq1QC
IH7Yqb91hRdOLVRqCmSbwxsaEnLaDjuao2OyCXdVfBd1
-----END CERTIFICATE-----
"""
EXPIRES_2081 = """
-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIUTkS7GD5aXXId/C+Q5hZgmzFiptEwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYjAgFw0yNjExMTcxOTIyMjBaGA8yMDgxMDgyMDE5MjIyMFow
DDEKMAgGA1UEAwwBYjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABDs+mfwJuhy5
bAT5xrHdQAlGmeoKp+HB0+iUAfdfETXd1FTT7vOc8mX7z3arEWZ4dU5+wV1DuKfk
eEQb7a0DoiqjUzBRMB0GA1UdDgQWBBR1wSPWg6kgscYr9IBJN40jUo/R+TAfBgNV
HSMEGDAWgBR1wSPWg6kgscYr9IBJN40jUo/R+TAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCICRevKXiPKTvOTvcMH/cqzjiD/ECph80r9QViYjlCw2Z
AiEA3KXHvY3w/1JYEeOnbe6C+vd1fgLez4DH03X5tAPYCjQ=
-----END CERTIFICATE-----
"""
END_2027 = datetime(2027, 12, 22, 19, 22, 20, tzinfo=UTC).timestamp()
END_2081 = datetime(2081, 8, 20, 19, 22, 20, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EXPIRES_2027, END_2027),
        (EXPIRES_2081, END_2081),
        (EXPIRES_2081 + EXPIRES_2027, END_2027),
        ("", None),
        (EXPIRES_2027.replace(EXPIRES_2027.splitlines()[2], ""), None),
        ("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----", None),
    ],
    ids=["two-digit year", "four-digit year", "chain", "empty", "damaged", "short"],
)
def test_a_chain_expires_with_its_first_certificate(tmp_path: Path, text: str, expected: float | None) -> None:
    """As openssl prints it; a file that cannot be read has no time."""
    file = tmp_path / "tls.crt"
    file.write_text(text)

    assert certificate_expiry(file) == expected


def test_a_missing_certificate_has_no_time(tmp_path: Path) -> None:
    """The page is complete otherwise."""
    assert certificate_expiry(tmp_path / "none") is None
    assert b"darksight_build_info{" in render(tmp_path, certificate=tmp_path / "none")[0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_processes_are_told_apart(tmp_path: Path) -> None:
    """Each has its memory and start time; one that has exited has none."""
    exited = subprocess.Popen([sys.executable, "-c", ""])
    exited.wait()
    registry = make_registry(tmp_path, {"supervisor": os.getpid(), "worker-0": exited.pid})

    memory = registry.get_sample_value("process_resident_memory_bytes", {"process": "supervisor"})

    assert memory is not None
    assert memory > 1_000_000
    assert registry.get_sample_value("process_resident_memory_bytes", {"process": "worker-0"}) is None
