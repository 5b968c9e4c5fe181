"""`darksight serve`: the service, with everything embedded unless settings say otherwise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from darksight_service.cli.console import HelpFormatter, say

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `serve` to the command line."""
    parser = commands.add_parser(
        "serve",
        help="score predictions over gRPC",
        description="Answers gRPC calls with point, densities, p-value, decision and reason of every prediction, "
        "stores all points in SQL, serves /metrics and health over HTTP, and the explorer for people. Settings come "
        "from options, then from DARKSIGHT_* in the environment, then from a TOML file; service/README.md lists them.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=BUNDLE",
        type=_model,
        help="serve a bundle under a name; may be given several times. Known versions stay as they are",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings (DARKSIGHT_CONFIG)")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--grpc-port", type=int, help="port of gRPC, 0 for any free one (8081)")
    parser.add_argument("--http-port", type=int, help="port of /metrics and health, 0 for any free one (8080)")
    parser.add_argument("--explorer-port", type=int, help="port of the explorer, 0 for any free one (8082)")
    parser.add_argument(
        "--no-explorer", dest="explorer", action="store_false", default=None, help="serve without the explorer"
    )
    parser.add_argument("--workers", type=int, help="worker processes (one per core)")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of everything that is kept (./darksight-data)"
    )
    parser.add_argument(
        "--bundle-dir",
        type=Path,
        metavar="DIR",
        help="folder that bundles are deployed from (bundles in the data folder)",
    )
    parser.add_argument(
        "--database-url", metavar="URL", help="sqlite:///FILE or postgresql://... (SQLite in the data folder)"
    )
    parser.set_defaults(run=run)


def _model(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=BUNDLE, such as digits=digits.safetensors")
    return name, Path(path)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from darksight_service.control.registry import named_bundle
    from darksight_service.settings import read_settings

    names = (
        *("host", "grpc_port", "http_port", "explorer_port", "explorer", "workers"),
        *("data_dir", "bundle_dir", "database_url"),
    )
    settings = read_settings(args.config, **{name: getattr(args, name) for name in names})
    # Before there is a data folder, and before long imports.
    for _, path in args.model:
        named_bundle(settings.bundles, path)
    from darksight_service.control.changes import deploy_at_start
    from darksight_service.control.state_file import StateFile
    from darksight_service.errors import SettingsError, StoreUnavailableError
    from darksight_service.logging import set_up_logs
    from darksight_service.processes.supervisor import Supervisor
    from darksight_service.store import Store

    set_up_logs("supervisor", settings.log_level)
    args.on_interrupt = "the service has stopped"
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    state_file = StateFile(settings.data_dir / "registry.json")
    store = None
    try:
        store = Store.open(settings.store_url, auto_upgrade=settings.store_url.startswith("sqlite"))
    except StoreUnavailableError as error:
        say(f"{error.message}; serving all the same, points wait in the spool")
    try:
        state = deploy_at_start(state_file, store, settings.bundles, args.model)
    finally:
        if store is not None:
            store.close()
    if not state.models:
        raise SettingsError("there is nothing to serve: name a bundle with --model NAME=BUNDLE")
    supervisor = Supervisor(settings)

    def announce() -> None:
        say(
            f"serving {', '.join(sorted(state.models))} on gRPC {settings.host}:{supervisor.grpc_port}, "
            f"metrics and health on http://{settings.host}:{supervisor.http_port}"
            + (f", explorer on {supervisor.explorer_url}" if supervisor.explorer_url else "")
        )

    if settings.insecure:
        say("INSECURE: plaintext or missing tokens are permitted beyond loopback, because a setting says so")
    return supervisor.run(announce)
