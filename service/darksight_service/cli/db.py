"""`darksight db`: migrate, check, prune, query and export the database."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from darksight_core.errors import ConfigError
from darksight_service.cli.console import on_interrupt, print_result, print_table
from darksight_service.cli.options import STORE, AsJson, StoreOptions, command_group, keep_files_private, load_settings
from darksight_service.control.changes import check_gates
from darksight_service.control.state_file import StateFile
from darksight_service.settings import Settings
from darksight_service.store import revisions
from darksight_service.store.store import Store
from darksight_service.store.write.retention import Limits

__all__ = ["check", "db", "downgrade", "export", "history", "prune", "stats", "upgrade"]

_DAY_MS = 86_400_000
_LIMITS = Group("Limits", sort_key=1)
_Where = Annotated[StoreOptions, Parameter(name="*", group=STORE)]

db = command_group("db", "Migrate, check, prune, query or export the database.")


@db.command
def upgrade(*, where: _Where = StoreOptions(), json: AsJson = False) -> None:
    """Run the missing migrations.

    Services of an older version can keep running. Several upgrades can run at once: one migrates, the others wait.
    """
    keep_files_private()
    settings = load_settings(where)
    if settings.store_url.startswith("sqlite"):
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    with on_interrupt("an unfinished migration was rolled back"), _open(settings, check=False) as store:
        before, after = store.upgrade()
    text = f"revision {after}" + (", unchanged" if before == after else f", was {before or 'empty'}")
    print_result({"before": before, "after": after}, text, json=json)


@db.command
def downgrade(revision: str, /, *, delete: bool = False, where: _Where = StoreOptions(), json: AsJson = False) -> None:
    """Undo migrations, to return to an older release.

    Stop all services of the newer release first. What the undone migrations added, tables and columns, is deleted: make
    a backup. docs/how-to/operations.md describes the steps.

    Parameters
    ----------
    revision
        The last revision of the older release, which db history names; base for none.
    delete
        Confirm that what the undone migrations added may be deleted.
    """
    if not delete:
        raise ConfigError("db downgrade deletes what the undone migrations added; make a backup, then add --delete")
    with on_interrupt("an unfinished migration was rolled back"), _open(load_settings(where), check=False) as store:
        before, after = store.downgrade(revision)
    text = f"revision {after or 'none'}, was {before or 'empty'}"
    print_result({"before": before, "after": after}, text, json=json)


@db.command
def history(*, where: _Where = StoreOptions(), json: AsJson = False) -> None:
    """List the revisions of the schema with the first release that has each.

    To return to a release, downgrade to the last revision of that release or of an earlier one.
    """
    with _open(load_settings(where), check=False) as store:
        current = store.revision()
    rows = [(name, release, "current" if name == current else "") for name, release in revisions.releases().items()]
    found = [{"revision": name, "release": release, "is_current": bool(now)} for name, release, now in rows]
    print_result(found, lambda: print_table(rows, ("revision", "release", "database")), json=json)


@db.command
def check(
    *,
    anchor: Annotated[tuple[str, ...], Parameter(metavar="NUMBER:HASH")] = (),
    where: _Where = StoreOptions(),
    json: AsJson = False,
) -> None:
    """Check the tables and the audit trail.

    The exit status is 0 if the tables are those of this version and the audit trail was not altered, 2 with the reason
    if not. The trail must also have the last entry that the service of the data directory has applied, and say nothing
    looser than the gates that it has. Prints the anchor of the trail: store it elsewhere. Somebody who can write to the
    database can recompute all hashes; only a check with an earlier anchor detects that.

    Parameters
    ----------
    anchor
        An anchor that an earlier check printed, or the service logged (audit_anchor, every day). Repeatable.
    """
    settings = load_settings(where)
    state_file = StateFile(settings.data_dir / "registry.json")
    state = state_file.read()
    anchors = {state.last_change: state.last_hash, **dict(_read_anchor(text) for text in anchor)}
    with _open(settings) as store:
        changes, last_hash = store.check(anchors)
        check_gates(state_file, store)
    found = {"changes": changes, "last_hash": last_hash, "anchor": f"{changes}:{last_hash}"}
    text = f"valid: tables are current, {changes} entries in the audit trail, anchor {found['anchor']}"
    print_result(found, text, json=json)


@db.command
def prune(
    *,
    max_days: Annotated[float | None, Parameter(group=_LIMITS)] = None,
    max_rows: Annotated[int | None, Parameter(group=_LIMITS)] = None,
    max_bytes: Annotated[int | None, Parameter(group=_LIMITS)] = None,
    max_rollup_days: Annotated[float, Parameter(group=_LIMITS)] = 0.0,
    dry_run: bool = False,
    where: _Where = StoreOptions(),
    json: AsJson = False,
) -> None:
    """Delete the oldest points until the rest is within the limits.

    PostgreSQL drops whole days, and never the current day.

    Parameters
    ----------
    max_days
        Largest age of points and outcomes. Default: the setting retention_days.
    max_rows
        Largest number of points. Default: the setting retention_rows.
    max_bytes
        Largest size of the points on disk. Default: the setting retention_bytes.
    max_rollup_days
        Largest age of the counts per minute; 0 keeps all of them.
    dry_run
        Only print what would be deleted.
    """
    settings = load_settings(where)
    limits = Limits(
        max_age_ms=round((settings.retention_days if max_days is None else max_days) * _DAY_MS),
        max_rows=settings.retention_rows if max_rows is None else max_rows,
        max_bytes=settings.retention_bytes if max_bytes is None else max_bytes,
        max_rollup_age_ms=round(max_rollup_days * _DAY_MS),
    )
    if limits == Limits():
        raise ConfigError("there is no limit: give --max-days, --max-rows, --max-bytes or --max-rollup-days")
    with on_interrupt("points that were deleted before are gone"), _open(settings) as store:
        pruned = store.prune(limits, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    text = f"{verb} {pruned.points:,} points, {pruned.outcomes:,} outcomes, {pruned.rollups:,} counts per minute"
    print_result(pruned, text, json=json)


@db.command
def stats(*, where: _Where = StoreOptions(), json: AsJson = False) -> None:
    """Print how much is stored."""
    with _open(load_settings(where)) as store:
        found = asdict(store.stats())
    lines = [f"{name:<10} {len(value) if isinstance(value, list) else value}" for name, value in found.items()]
    print_result(found, "\n".join(lines), json=json)


@db.command
def export(
    target: str,
    /,
    *,
    model: tuple[str, ...] = (),
    days: float | None = None,
    probs: bool = True,
    where: _Where = StoreOptions(),
    json: AsJson = False,
) -> None:
    """Write stored points with tags, decisions and labels to parquet files.

    There is a file for each hour, in directories by model and day. Run it again to add what is new: only hours with new
    points or labels are written. It can be killed at any time; rerun the same command to resume.

    Parameters
    ----------
    target
        A directory, or a URL of fsspec such as s3://bucket/points, whose package must be installed.
    model
        Name of a model. Repeatable. Default: all models.
    days
        Look for changes in points received within this many days. Default: all stored points.
    probs
        Whether to write probabilities.
    """
    from darksight_service.scoring.files.export import export_points

    since = 0 if days is None else time.time_ns() // 1_000_000 - round(days * _DAY_MS)
    with on_interrupt("rerun the same command to resume"), _open(load_settings(where)) as store:
        found = export_points(store, target, models=model, since_ms=max(since, 0), with_probs=probs)
    text = f"wrote {found.points:,} points to {found.written:,} files; {found.unchanged:,} files were up to date"
    if found.incomplete:
        text += f"\n{found.incomplete:,} files were kept: retention has deleted points that they have"
    print_result(found, text, json=json)


def _read_anchor(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    if not number.isdecimal() or (len(digest) != 64 and int(number)):
        raise ConfigError(f"--anchor is {text!r}; it must be NUMBER:HASH, as db check prints it")
    return int(number), digest.lower()


def _open(settings: Settings, *, check: bool = True) -> Store:
    url = settings.store_url
    file = Path(url.removeprefix("sqlite:///"))
    if check and url.startswith("sqlite:///") and not file.exists():
        raise ConfigError(
            f"{file}: the database does not exist; name it with --data-dir or --database-url, or run: "
            "darksight db upgrade"
        )
    return Store.open(url, check=check)
