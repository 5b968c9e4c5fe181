"""`darksight doctor`: what is wrong with an installation, its settings or its machine, and how to mend it."""

from __future__ import annotations

import json as json_codec
import os
import shutil
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from packaging.requirements import Requirement

from darksight_core import __version__
from darksight_core.bundle import read_bundle
from darksight_core.errors import DarkSightError
from darksight_core.runtime.compilation import KERNEL
from darksight_core.runtime.cpus import cache_folder, use_named_cpu
from darksight_service.cli.colours import painted
from darksight_service.cli.console import print_json, print_table
from darksight_service.cli.options import STORE, AsJson, StoreOptions, load_settings
from darksight_service.cli.serve import storage_cost
from darksight_service.control.bundle_files import find_bundle
from darksight_service.errors import SchemaMismatchError
from darksight_service.metrics.instance import RENEWAL_SECONDS, certificate_expiry
from darksight_service.settings import Settings
from darksight_service.store.store import Store, Usage

__all__ = ["Finding", "doctor"]

_MEGABYTE = 1 << 20
_LEAST_DISK = 256 * _MEGABYTE
_LEAST_DAYS = 7.0
_MAX_CLOCK_MS = 5_000
_COMPILE = f"{Path(sys.executable).name} -m darksight_core.runtime.compilation"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was found and, unless the state is ok, how to mend it."""

    check: str
    state: Literal["ok", "warning", "error"]
    found: str
    remedy: str = ""


def doctor(
    *, store: Annotated[StoreOptions, Parameter(name="*", group=STORE)] = StoreOptions(), json: AsJson = False
) -> int:
    """Check the installation, the settings and the machine.

    Checks versions of packages, compiled code, settings, models, disk, database, ports and clock, changes nothing, and
    says how to mend what is wrong. The exit status is 1 if there is an error; warnings do not count.
    """
    findings = [*_check_packages(), _check_call_pool(), _check_compiled_code()]
    try:
        settings = load_settings(store)
    except DarkSightError as error:
        findings.append(Finding("settings", "error", error.message, "correct it; the documentation lists all settings"))
    else:
        findings.append(Finding("settings", "ok", "valid"))
        for check in _CHECKS:
            findings += check(settings)
    has_errors = any(finding.state == "error" for finding in findings)
    if json:
        print_json({"version": __version__, "ok": not has_errors, "findings": [asdict(each) for each in findings]})
    else:
        print_table([(each.check, each.state, each.found) for each in findings], ("check", "state", "found"))
        for each in findings:
            if each.remedy:
                print(f"{painted(each.state, each.state, sys.stdout)}: {each.check}: {each.remedy}")
    return int(has_errors)


def _check_packages() -> Iterator[Finding]:
    """Python, and the packages that the service and the installed extras need."""
    yield Finding("python", "ok", f"{sys.version.split()[0]}, darksight {__version__}")
    for line in requires("darksight") or ():
        needed = Requirement(line)
        extra = next((name for name in ("service", "fit") if needed.marker and f'"{name}"' in str(needed.marker)), "")
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        command = f"pip install --upgrade 'darksight[{extra or 'service'}]'"
        try:
            installed = version(needed.name)
        except PackageNotFoundError:
            if extra != "fit":
                yield Finding(needed.name, "error", "is not installed", f"run: {command}")
            elif needed.name == "torch":
                yield Finding("torch", "ok", "is not installed; only fit and explain need it")
            continue
        if needed.specifier.contains(installed, prereleases=True):
            if needed.name == "grpcio" and not extra:
                continue  # the service needs a newer one
            if needed.name in ("grpcio", "numba", "numpy", "sqlalchemy", "torch"):
                yield Finding(needed.name, "ok", installed)
        else:
            yield Finding(needed.name, "error", f"{installed}, but {needed.specifier} is needed", f"run: {command}")


def _check_call_pool() -> Finding:
    """Whether the worker takes calls from gRPC in the cheaper way."""
    from darksight_service.grpc_api.pools import supports_early_read

    if supports_early_read():
        return Finding("call pool", "ok", "reads messages before it occupies a thread")
    remedy = "upgrade darksight, or install the grpcio of its constraints.txt"
    return Finding("call pool", "warning", "unknown grpcio: calls take its ordinary way, at more CPU each", remedy)


def _check_compiled_code() -> Finding:
    """Whether machine code of the scorer is in the cache."""
    folder = cache_folder()
    if not KERNEL.is_available:
        remedy = "run: pip install 'darksight[service]' -c constraints.txt"
        return Finding("compiled code", "warning", f"{KERNEL.problem}: scoring takes ten times longer", remedy)
    use_named_cpu()
    from darksight_core.runtime.arrays import blank_arguments
    from darksight_core.runtime.kernel_cache import KernelCache

    if KernelCache(blank_arguments()).is_filled:
        return Finding("compiled code", "ok", f"in {folder}")
    if not os.access(_existing(folder), os.W_OK):
        remedy = "set NUMBA_CACHE_DIR to a directory that can be written, or every process compiles for itself"
        return Finding("compiled code", "warning", f"missing, and {folder} cannot be written", remedy)
    remedy = f"the first start compiles it, in about 12 s; to do so now, run: {_COMPILE}"
    return Finding("compiled code", "warning", f"none in {folder} for this version and CPU", remedy)


def _check_models(settings: Settings) -> Iterator[Finding]:
    """Whether the bundles that settings name can be served."""
    for name, path in settings.models.items():
        try:
            bundle = read_bundle(find_bundle(settings.bundles, path))
            found = f"bundle {bundle.short_version}, {len(bundle.class_names)} classes, rows of resolution"
            yield Finding(f"model {name}", "ok", f"{found} {bundle.resolutions.names}")
        except DarkSightError as error:
            yield Finding(f"model {name}", "error", error.message, "correct the setting models or the file")


def _check_disk(settings: Settings) -> Iterator[Finding]:
    """Whether the data directory can be written, and has space for the spools."""
    folder = settings.data_dir.absolute()
    existing = _existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        remedy = "name another with --data-dir or DARKSIGHT_DATA_DIR, or give this user the right to write"
        yield Finding("data directory", "error", f"{folder} cannot be written", remedy)
        return
    yield Finding("data directory", "ok", f"{folder}" + ("" if folder.exists() else ", created by darksight serve"))
    free = shutil.disk_usage(existing).free
    wanted = settings.spool_bytes * settings.worker_count
    text = f"{free // _MEGABYTE:,} MB free; full spools of {settings.worker_count} workers take {wanted // _MEGABYTE:,}"
    if free < _LEAST_DISK:
        yield Finding("disk", "error", text, "free some space, or points are dropped; see retention_days")
    elif free < wanted:
        yield Finding("disk", "warning", text, "lower the setting spool_bytes, or free some space")
    else:
        yield Finding("disk", "ok", text)


def _check_certificates(settings: Settings) -> Iterator[Finding]:
    """Whether certificates are valid for some time."""
    for name, path in (("tls_cert", settings.tls_cert), ("tls_client_ca", settings.tls_client_ca)):
        if path is None:
            continue
        expiry = certificate_expiry(path)
        if expiry is None:
            yield Finding(name, "error", f"{path} cannot be read", "name a file with certificates in PEM")
            continue
        left = expiry - time.time()
        text = f"{'expires' if left > 0 else 'expired'} on {time.strftime('%Y-%m-%d', time.gmtime(expiry))}"
        if left >= RENEWAL_SECONDS:
            yield Finding(name, "ok", text)
        else:
            state: Literal["warning", "error"] = "warning" if left > 0 else "error"
            yield Finding(name, state, text, f"renew {path}; a running service loads the new file by itself")


def _check_database(settings: Settings) -> Iterator[Finding]:
    """Whether the database answers and has the current tables; and whether its clock is that of this machine."""
    url = settings.read_store_url()
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        yield Finding("database", "ok", "SQLite, created by darksight serve")
        yield _check_clock(None)
        return
    try:
        with Store.open(url) as store:
            yield Finding("database", "ok", f"{url.partition(':')[0]}, tables are current")
            yield _check_clock(store.times())
            yield _check_growth(settings, store.usage())
    except SchemaMismatchError as error:
        upgrades = settings.upgrades_store
        remedy = "darksight serve upgrades them at its start" if upgrades else "run: darksight db upgrade"
        yield Finding("database", "warning" if upgrades else "error", error.message, remedy)
    except DarkSightError as error:
        remedy = "check that the server runs, and the setting database_url; until then points wait in the spool"
        yield Finding("database", "error", error.message, remedy)


def _check_growth(settings: Settings, usage: Usage) -> Finding:
    """How much a day takes, and how long the disk lasts, where it is known."""
    text = storage_cost(settings, usage)
    if not settings.store_url.startswith("sqlite") or not usage.bytes_per_day:
        return Finding("storage", "ok", text)
    days = shutil.disk_usage(_existing(settings.data_dir.absolute())).free / usage.bytes_per_day
    is_short = days < _LEAST_DAYS and not settings.retention_bytes
    remedy = "set retention_days or keep_accepted, or add disk" if is_short else ""
    return Finding("storage", "warning" if is_short else "ok", f"{text}; the disk is full in {days:,.1f} days", remedy)


def _check_clock(times: tuple[int, int] | None) -> Finding:
    """Whether this clock agrees with that of the database, and with the times of stored points."""
    now = time.time_ns() // 1_000_000
    remedy = "synchronise the clock, for example with chrony or systemd-timesyncd: ids and drift windows use it"
    written = Path(__file__).stat().st_mtime
    if now < 1000 * written:
        return Finding("clock", "error", "is earlier than the installation of darksight", remedy)
    if times is not None:
        database, newest = times
        if abs(database - now) > _MAX_CLOCK_MS:
            return Finding("clock", "error", f"differs by {(now - database) / 1000:+.1f} s from the database", remedy)
        if newest > now + _MAX_CLOCK_MS:
            return Finding("clock", "error", f"stored points are {(newest - now) / 1000:.0f} s in the future", remedy)
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now / 1000)))


def _check_ports(settings: Settings) -> Iterator[Finding]:
    """Whether the ports are free, or used by a DarkSight that runs."""
    ports = {"http_port": settings.http_port, "grpc_port": settings.grpc_port}
    if settings.explorer:
        ports["explorer_port"] = settings.explorer_port
    running = _running_version(settings)
    for name, port in ports.items():
        check, option = f"{name.removesuffix('_port')} port", f"--{name.replace('_', '-')}"
        host = (name == "http_port" and settings.http_host) or settings.host
        reason = _refusal(host, port)
        if reason is None:
            yield Finding(check, "ok", f"{port} is free" if port else "any free port")
        elif running:
            yield Finding(check, "ok", f"{port} is used by darksight {running}, which is running")
        else:
            yield Finding(check, "error", f"{host}:{port}: {reason}", f"choose another with {option}")


def _refusal(host: str, port: int) -> str | None:
    """Why a port cannot be listened on; None if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _running_version(settings: Settings) -> str:
    """Version of the service on the HTTP port; empty if there is none."""
    # Only to recognise the service: nothing secret is sent, and its certificate may be for another name.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = f"{settings.http_url}:{settings.http_port}/"
    with (
        suppress(OSError, ValueError, KeyError),
        urllib.request.urlopen(address, timeout=2.0, context=context) as answer,
    ):
        found = json_codec.load(answer)
        return str(found["version"]) if found["name"] == "darksight" else ""
    return ""


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


_CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _check_models,
    _check_certificates,
    _check_disk,
    _check_database,
    _check_ports,
)
