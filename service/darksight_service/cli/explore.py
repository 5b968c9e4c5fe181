"""`darksight explore`: the explorer alone, beside a service or after it, on its data directory and database."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from darksight_service.cli.console import on_interrupt, say
from darksight_service.cli.options import STORE, StoreOptions, keep_files_private, load_settings
from darksight_service.errors import SettingsError
from darksight_service.http.web.sockets import listen, socket_url
from darksight_service.processes.explorer import serve
from darksight_service.processes.start_checks import check_files
from darksight_service.telemetry.logging import set_up_logs

__all__ = ["explore"]


def explore(
    *,
    host: str | None = None,
    explorer_port: int | None = None,
    store: Annotated[StoreOptions, Parameter(name="*", group=STORE)] = StoreOptions(),
    bundle_dir: Annotated[Path | None, Parameter(group=STORE)] = None,
) -> int:
    """Run the explorer alone.

    Serves the pages that `darksight serve` serves too, on the same data directory and database, with the same tokens
    and certificates. Options override DARKSIGHT_* in the environment, which overrides the TOML file.

    Parameters
    ----------
    host
        Address to listen on. Default: 127.0.0.1.
    explorer_port
        Port, or 0 for any free port. Default: 8082.
    bundle_dir
        Directory of bundles. Default: bundles in the data directory.
    """
    keep_files_private()
    settings = load_settings(store, host=host, explorer_port=explorer_port, bundle_dir=bundle_dir)
    if not (settings.data_dir / "registry.json").exists():
        raise SettingsError(
            f"{settings.data_dir}: is not the data directory of a service; name it with --data-dir, or start a service "
            "with darksight serve"
        )
    check_files(settings)
    set_up_logs("explorer", settings.log_level)
    stop = threading.Event()
    # At a terminal, SIGHUP means that it was closed.
    for name in (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if os.isatty(0) else [])):
        signal.signal(name, lambda *_: stop.set())
    with on_interrupt("the explorer has stopped"), listen(settings, "explorer_port") as bound:
        return serve(settings, bound, stop, lambda: say(f"explorer on {socket_url(settings, bound)}"))
