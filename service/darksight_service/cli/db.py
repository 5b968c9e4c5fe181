"""`darksight db`: bring the database up to date, check it, prune it, look at what it knows."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darksight_core.errors import ConfigError
from darksight_service.cli.console import HelpFormatter, print_json, print_table, require

if TYPE_CHECKING:
    from darksight_service.settings import Settings
    from darksight_service.store import Store

__all__ = ["add_parser", "run_accuracy", "run_check", "run_prune", "run_stats", "run_upgrade"]

_DAY_MS = 86_400_000


def add_parser(commands: Any) -> None:
    """Add `db` to the command line."""
    parser = commands.add_parser(
        "db", help="migrate, check, prune or measure the store", description="Look after the SQL database."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--database-url", metavar="URL", help="sqlite:///FILE or postgresql://... (DARKSIGHT_DATABASE_URL)"
    )
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of the SQLite file (DARKSIGHT_DATA_DIR)")
    where.add_argument("--json", action="store_true", help="print the result as JSON")

    upgrade = actions.add_parser(
        "upgrade",
        parents=[where],
        help="run the migrations that are missing",
        description="Run the migrations that are missing. It may run while older servers go on, and several at a time: "
        "one migrates and the others wait.",
    )
    upgrade.set_defaults(run=run_upgrade, on_interrupt="a migration that was not finished left nothing")
    check = actions.add_parser(
        "check",
        parents=[where],
        help="compare tables and audit trail with what they must be",
        description="Exit 0 if the database has the tables of this program and its audit trail was not altered, 2 with "
        "the reason if not. Prints the last hash of the trail: note it elsewhere, and a later check shows whether "
        "entries were cut off.",
    )
    check.set_defaults(run=run_check)
    prune = actions.add_parser(
        "prune",
        parents=[where],
        help="delete points that are too old or too many",
        description="Delete the oldest points until what is left is within the limits; by default the limits of the "
        "settings. PostgreSQL drops whole days, and never the current one.",
        formatter_class=HelpFormatter,
    )
    prune.add_argument("--max-days", type=float, help="age of points and outcomes (DARKSIGHT_RETENTION_DAYS)")
    prune.add_argument("--max-rows", type=int, help="number of points (DARKSIGHT_RETENTION_ROWS)")
    prune.add_argument("--max-bytes", type=int, help="size of points on disk (DARKSIGHT_RETENTION_BYTES)")
    prune.add_argument("--max-rollup-days", type=float, default=0.0, help="age of counts per minute; 0 keeps them")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.set_defaults(run=run_prune, on_interrupt="what was pruned until then is gone")
    stats = actions.add_parser("stats", parents=[where], help="how much is stored", description="Say what is stored.")
    stats.set_defaults(run=run_stats)
    accuracy = actions.add_parser(
        "accuracy",
        parents=[where],
        help="how often accepted and rejected predictions were right",
        description="Accuracy of accepted and rejected points whose right class was reported, with exact 95%% "
        "intervals, and how the accuracy of the rest grows as each score rejects more. Where outcomes are not "
        "reported at random, this is about the reported points and not about the traffic.",
        formatter_class=HelpFormatter,
    )
    accuracy.add_argument("model", metavar="MODEL", help="name of the watched classifier")
    accuracy.add_argument("--version", help="sha256 of a bundle; default: all versions")
    accuracy.add_argument("--days", type=float, default=30.0, help="received within the last days")
    accuracy.set_defaults(run=run_accuracy)


def run_upgrade(args: argparse.Namespace) -> int:
    """Migrate to the newest revision."""
    settings = _settings(args)
    if settings.store_url.startswith("sqlite"):
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    with _open(args, check=False) as store:
        before, after = store.upgrade()
    if args.json:
        print_json({"before": before, "after": after})
    else:
        print(f"revision {after}" + (", as it was" if before == after else f", was {before or 'empty'}"))
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Check tables and audit trail."""
    with _open(args) as store:
        changes, last_hash = store.check()
    if args.json:
        print_json({"changes": changes, "last_hash": last_hash})
    else:
        print(f"sound: tables as they must be, {changes} entries in the audit trail, last hash {last_hash or '-'}")
    return 0


def run_prune(args: argparse.Namespace) -> int:
    """Delete what is over the limits."""
    from darksight_service.store import Limits

    settings = _settings(args)
    days = settings.retention_days if args.max_days is None else args.max_days
    limits = Limits(
        max_age_ms=round(days * _DAY_MS),
        max_rows=settings.retention_rows if args.max_rows is None else args.max_rows,
        max_bytes=settings.retention_bytes if args.max_bytes is None else args.max_bytes,
        max_rollup_age_ms=round(args.max_rollup_days * _DAY_MS),
    )
    if limits == Limits():
        raise ConfigError("there is no limit: give --max-days, --max-rows, --max-bytes or --max-rollup-days")
    with _open(args) as store:
        pruned = store.prune(limits, dry_run=args.dry_run)
    if args.json:
        print_json(asdict(pruned))
    else:
        verb = "would go" if args.dry_run else "gone"
        print(f"{verb}: {pruned.points:,} points, {pruned.outcomes:,} outcomes, {pruned.rollups:,} counts per minute")
    return 0


def run_stats(args: argparse.Namespace) -> int:
    """Print how much is stored."""
    with _open(args) as store:
        found = asdict(store.stats())
    if args.json:
        print_json(found)
    else:
        for name, value in found.items():
            print(f"{name:<10} {len(value) if isinstance(value, list) else value}")
    return 0


def run_accuracy(args: argparse.Namespace) -> int:
    """Print live accuracy and risk against coverage."""
    from darksight_service.store.read.live_accuracy import COVERAGES, live_accuracy

    now = time.time_ns() // 1_000_000
    with _open(args) as store:
        since = now - round(args.days * _DAY_MS)
        points = store.labelled_frame(args.model, args.version, since_ms=since, until_ms=now + 1)
    found = live_accuracy(points)
    if args.json:
        print_json(found.as_dict())
        return 0
    if not found.everything.rows:
        print(f"no outcome of {args.model} is known in the last {args.days:g} days; report them with ReportOutcomes")
        return 0
    parts = (("all", found.everything), ("accepted", found.accepted), ("rejected", found.rejected))
    print_table(
        [(name, each.rows, each.right, each.share, f"{each.low:.4f} to {each.high:.4f}") for name, each in parts],
        ("points", "labelled", "right", "accuracy", "95% interval"),
    )
    print("\nAccuracy of the rest if a score rejects until this share is left:")
    print_table(
        [(name, *curve, found.scores[name].augrc) for name, curve in found.curves.items()],
        ("score", *(f"{share:.0%}" for share in COVERAGES), "AUGRC"),
    )
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    from darksight_service.settings import read_settings

    return read_settings(database_url=args.database_url, data_dir=args.data_dir)


def _open(args: argparse.Namespace, *, check: bool = True) -> Store:
    require("sqlalchemy", "service")
    from darksight_service.store import Store

    url = _settings(args).store_url
    file = Path(url.removeprefix("sqlite:///"))
    if check and url.startswith("sqlite:///") and not file.exists():
        raise ConfigError(
            f"{file}: there is no store; give --data-dir or --database-url; to make one run: darksight db upgrade"
        )
    return Store.open(url, check=check)
