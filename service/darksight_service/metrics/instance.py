"""What the supervisor knows of its instance at the time of a scrape: its processes and its certificate."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

__all__ = ["ProcessesCollector", "certificate_expiry"]

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME = 0x17
_VERSION = 0xA0


class ProcessesCollector(Collector):
    """The standard `process_*` metrics of several processes, with their names as the label `process`.

    Parameters
    ----------
    processes
        Process ids by name.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = processes

    def collect(self) -> Iterable[Family]:
        """CPU time, memory, start time and open files; nothing for a process that has exited."""
        merged: dict[str, Family] = {}
        for name, pid in self._processes.items():
            for family in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                found = merged.setdefault(family.name, Family(family.name, family.documentation, family.type))
                for sample in family.samples:
                    found.add_sample(sample.name, {"process": name}, sample.value)
        return merged.values()


def certificate_expiry(path: Path) -> float | None:
    """When the first certificate of a PEM file expires, in seconds since 1970; None if it cannot be read."""
    try:
        chain = _CERTIFICATE.findall(path.read_text(encoding="utf-8"))
        return min(_not_after(ssl.PEM_cert_to_DER_cert(each)) for each in chain)
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    """The end of the validity of a certificate (RFC 5280, 4.1)."""
    _, certificate, _ = _element(der)
    _, signed, _ = _element(certificate)
    tag, _, rest = _element(signed)
    # The version is optional; then come serial number, signature algorithm and issuer.
    for _ in range(3 if tag == _VERSION else 2):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, rest = _element(validity)
    tag, moment, _ = _element(rest)
    text = moment.decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text < "5" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first DER element, and the bytes after it."""
    start, size = 2, der[1]
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    return der[0], der[start : start + size], der[start + size :]
