"""Replicas as deploy/helm runs them, on one machine: as many, with its settings, one PostgreSQL behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.chart import render_chart
from tests.support.faults.nemesis import Service

__all__ = ["REPLICAS", "SETTINGS", "running_services", "service_links", "services_of_manifest"]

_MANIFESTS = render_chart()
# Addresses and secrets, which are those of a cluster.
_OF_A_CLUSTER = {"HOST", "DATABASE_URL_FILE", "TOKENS_FILE", "TLS_CERT", "TLS_KEY"}


def _read() -> tuple[int, dict[str, str]]:
    by_kind: dict[str, dict[str, Any]] = {each["kind"]: each["spec"] for each in _MANIFESTS if "spec" in each}
    spec = by_kind["StatefulSet"]
    (container,) = spec["template"]["spec"]["containers"]
    settings = {each["name"]: str(each["value"]) for each in container["env"]}
    return by_kind["HorizontalPodAutoscaler"]["minReplicas"], {
        name: value for name, value in settings.items() if name.removeprefix("DARKSIGHT_") not in _OF_A_CLUSTER
    }


def service_links() -> dict[str, str]:
    """The variables that a kubelet sets in a pod for the services of the manifests, unless the pod forbids it."""
    found = {}
    for service in (each for each in _MANIFESTS if each["kind"] == "Service"):
        name = service["metadata"]["name"].upper().replace("-", "_")
        # Kubernetes sets none for a headless service; its variables are here for manifests that have another one.
        for port in service["spec"]["ports"]:
            number, address = port["port"], "10.96.14.7"
            url, prefix = f"tcp://{address}:{number}", f"{name}_PORT_{number}_TCP"
            found |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(number), f"{name}_PORT": url}
            found |= {f"{name}_SERVICE_PORT_{port['name'].upper()}": str(number), prefix: url}
            found |= {f"{prefix}_PROTO": "tcp", f"{prefix}_PORT": str(number), f"{prefix}_ADDR": address}
    return found


REPLICAS, SETTINGS = _read()
"""How many there are, and the variables that each is started with."""


def services_of_manifest(folder: Path, bundle: Path, url: str, others: Mapping[str, Path]) -> list[Service]:
    """The replicas, not started yet, each with a data folder and a port of its own.

    Parameters
    ----------
    folder
        Of their data folders.
    bundle, others
        What they serve, see `Service`.
    url
        Of their database.
    """
    settings = {**service_links(), **SETTINGS}
    workers = int(settings.pop("DARKSIGHT_WORKERS"))
    return [
        Service(folder / f"darksight-{number}", bundle, url, settings, others=dict(others), workers=workers)
        for number in range(REPLICAS)
    ]


@contextmanager
def running_services(services: list[Service]) -> Iterator[None]:
    """Services that start together and run for the time of a block; nothing of them is left at the end."""
    try:
        with ThreadPoolExecutor(len(services)) as pool:
            list(pool.map(Service.start, services))
        yield
    finally:
        for service in services:
            service.kill()
