"""`darksight explore`: the explorer alone, beside a service or after it, on the same data folder and database."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import Any

from darksight_service.cli.console import HelpFormatter, require, say

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `explore` to the command line."""
    parser = commands.add_parser(
        "explore",
        help="look at maps and stored points in a browser",
        description="Serves the explorer alone: the pages that `darksight serve` serves too, on the same data folder "
        "and database, with the same tokens and certificates. Settings come from options, then from DARKSIGHT_* in the "
        "environment, then from a TOML file; service/README.md lists them.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings (DARKSIGHT_CONFIG)")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--explorer-port", type=int, help="port, 0 for any free one (8082)")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="data folder of a service (./darksight-data)")
    parser.add_argument("--bundle-dir", type=Path, metavar="DIR", help="folder of bundles (bundles in the data folder)")
    parser.add_argument(
        "--database-url", metavar="URL", help="sqlite:///FILE or postgresql://... (SQLite in the data folder)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    require("uvicorn", "service")
    from darksight_service.errors import SettingsError
    from darksight_service.explorer.sockets import explorer_url, listen
    from darksight_service.logging import set_up_logs
    from darksight_service.processes.explorer import serve
    from darksight_service.settings import read_settings

    names = ("host", "explorer_port", "data_dir", "bundle_dir", "database_url")
    settings = read_settings(args.config, **{name: getattr(args, name) for name in names})
    if not (settings.data_dir / "registry.json").exists():
        raise SettingsError(
            f"{settings.data_dir}: is not the data folder of a service; name one with --data-dir, "
            "or start with darksight serve"
        )
    set_up_logs("explorer", settings.log_level)
    args.on_interrupt = "the explorer has stopped"
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    with listen(settings) as bound:
        return serve(settings, bound, stop, lambda: say(f"explorer on {explorer_url(settings, bound)}"))
