"""`darksight serve`: the service, with an embedded database unless settings name another."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from darksight_core.errors import ConfigError
from darksight_service.cli.console import on_interrupt, say
from darksight_service.cli.options import STORE, StoreOptions, keep_files_private, load_settings
from darksight_service.control.bundle_files import find_bundle
from darksight_service.control.changes import deploy_at_start
from darksight_service.control.installation import share_secret
from darksight_service.control.signatures import required_key
from darksight_service.control.state_file import StateFile
from darksight_service.errors import AuditError, SettingsError, StoreUnavailableError
from darksight_service.processes.start_checks import check_files, lock_data_dir
from darksight_service.processes.supervisor import Supervisor
from darksight_service.settings import Settings, service_links
from darksight_service.store.store import Store, Usage
from darksight_service.telemetry.logging import set_up_logs

__all__ = ["serve", "storage_cost"]

# Before anything is measured: a usual load, and the bytes of a row of ten classes with its index.
_STATED_RATE, _ROW_BYTES = 1_000.0, 200.0

_log = logging.getLogger("darksight.serve")


def serve(
    *,
    model: Annotated[tuple[str, ...], Parameter(metavar="NAME=BUNDLE")] = (),
    host: str | None = None,
    grpc_port: int | None = None,
    http_port: int | None = None,
    api_port: int | None = None,
    explorer_port: int | None = None,
    no_explorer: bool = False,
    workers: int | None = None,
    store: Annotated[StoreOptions, Parameter(name="*", group=STORE)] = StoreOptions(),
    bundle_dir: Annotated[Path | None, Parameter(group=STORE)] = None,
    keep_accepted: Annotated[float | None, Parameter(group=STORE)] = None,
    require_signature: Annotated[Path | None, Parameter(group=STORE)] = None,
) -> int:
    """Run the scoring service.

    Scores predictions over gRPC, stores every point in SQL, and serves metrics and health over HTTP and the explorer
    for browsers. Options override DARKSIGHT_* in the environment, which overrides the TOML file; the
    documentation lists all settings.

    Parameters
    ----------
    model
        Serve a bundle under a name. Repeatable. Adds to the setting models; models of earlier runs are kept.
    host
        Address to listen on. Default: 127.0.0.1.
    grpc_port
        Port of gRPC, or 0 for any free port. Default: 8081.
    http_port
        Port of metrics and health, or 0 for any free port. Default: 8080.
    api_port
        Port of the HTTP API, or 0 for any free port. Default: no HTTP API.
    explorer_port
        Port of the explorer, or 0 for any free port. Default: 8082.
    no_explorer
        Do not run the explorer.
    workers
        Worker processes. Default: one per core.
    bundle_dir
        Directory that bundles are deployed from. Default: bundles in the data directory.
    keep_accepted
        Share of accepted rows to store, beside all rejected, unusual and labelled ones and those drawn for an audit.
        All are counted. Default: 1.
    require_signature
        Public Ed25519 key, PEM. Bundles that it has not signed are refused; see darksight bundle sign.
    """
    keep_files_private()
    given = dict(_read_model(text) for text in model)
    settings = load_settings(
        store,
        host=host,
        grpc_port=grpc_port,
        http_port=http_port,
        api_port=api_port,
        explorer_port=explorer_port,
        explorer=False if no_explorer else None,
        workers=workers,
        bundle_dir=bundle_dir,
        keep_accepted=keep_accepted,
        require_signature=require_signature,
    )
    models = {**settings.models, **given}
    # Before the data directory is created.
    check_files(settings)
    missing = _missing_bundles(settings, models)
    set_up_logs("supervisor", settings.log_level)
    for name in missing:
        _tell("bundle_missing", f"{models.pop(name)}: file does not exist; model {name} is served as it was before")
    if ignored := service_links():
        _log.debug("service_links_ignored", extra={"variables": ignored})
    with lock_data_dir(settings.data_dir):
        return _run(settings, models)


def _missing_bundles(settings: Settings, models: Mapping[str, Path]) -> list[str]:
    """Known models whose bundles are gone: they are served from copies. ConfigError for those of a new model."""
    known, missing = StateFile(settings.data_dir / "registry.json").read().models, []
    for name, path in models.items():
        try:
            find_bundle(settings.bundles, path)
        except ConfigError:
            if name not in known:
                raise
            missing.append(name)
    return missing


def _run(settings: Settings, models: Mapping[str, Path]) -> int:
    """Deploy the models that are new, and run the service until it is stopped."""
    state_file = StateFile(settings.data_dir / "registry.json")
    key = required_key(settings.require_signature)
    opened = None
    try:
        opened = Store.open(settings.store_url, auto_upgrade=settings.upgrades_store)
        share_secret(settings.data_dir, opened)
        _tell("storage_cost", storage_cost(settings, opened.usage()), logging.INFO)
    except StoreUnavailableError as error:
        _tell("store_unavailable", f"{error.message}; starting without it, points wait in the spool")
    try:
        state = deploy_at_start(state_file, opened, settings.bundles, list(models.items()), key)
    except AuditError as error:
        _tell("audit_trail_broken", f"{error.message}; starting with the state of the last run", logging.ERROR)
        state = deploy_at_start(state_file, None, settings.bundles, list(models.items()), key)
    finally:
        if opened is not None:
            opened.close()
    if not state.models:
        raise SettingsError("there is no model to serve: name a bundle with --model NAME=BUNDLE or in settings")
    supervisor = Supervisor(settings)

    def announce() -> None:
        _tell(
            "serving",
            f"serving {', '.join(sorted(state.models))} on gRPC {settings.host}:{supervisor.grpc_port}, "
            f"metrics and health on {settings.http_url}:{supervisor.http_port}"
            + (f", explorer on {supervisor.explorer_url}" if supervisor.explorer_url else "")
            + (f", HTTP API on {supervisor.api_url}" if supervisor.api_url else ""),
            logging.INFO,
        )

    if settings.insecure:
        _tell("insecure", "INSECURE: the setting insecure permits plaintext or missing tokens beyond loopback")
    with on_interrupt("the service has stopped"):
        return supervisor.run(announce)


def storage_cost(settings: Settings, usage: Usage) -> str:
    """What a day takes, at the measured rate or at a stated one, and what bounds it."""
    rate, size = usage.rows_per_second, usage.bytes_per_day
    if not size:
        rate, size = _STATED_RATE, 86_400.0 * _STATED_RATE * _ROW_BYTES
    kept = "all rows are stored" if settings.keep_accepted >= 1.0 else f"keep_accepted is {settings.keep_accepted:g}"
    limits = {name: getattr(settings, f"retention_{name}") for name in ("days", "rows", "bytes")}
    bound = ", ".join(f"retention_{name} is {limit:g}" for name, limit in limits.items() if limit)
    at = f"{rate:,.3g} rows/s, as during the last day," if usage.bytes_per_day else f"{rate:,.0f} rows/s"
    return f"storing {at} takes {size / 1e9:.3g} GB a day; {kept}; {bound or 'points are never deleted'}"


def _tell(event: str, text: str, level: int = logging.WARNING) -> None:
    """A line of the log for programs, or the text alone for people at a terminal."""
    if sys.stderr.isatty():
        say(text)
    else:
        _log.log(level, event, extra={"text": text})


def _read_model(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(f"--model is {text!r}; it must be NAME=BUNDLE, such as digits=digits.safetensors")
    return name, Path(path)
