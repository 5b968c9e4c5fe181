"""What the supervisor knows of its instance at the time of a scrape: its processes and its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

__all__ = ["RENEWAL_SECONDS", "ProcessesCollector", "certificate_expiry"]

RENEWAL_SECONDS = 21 * 86_400.0
"""Time before the end of a certificate from when it should have been renewed, as in the alert."""


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
    # Only a service with TLS needs the package.
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return min(each.not_valid_after_utc for each in load_pem_x509_certificates(path.read_bytes())).timestamp()
    except (OSError, ValueError):
        return None
