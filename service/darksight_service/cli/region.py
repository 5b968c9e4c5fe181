"""`darksight region`: the regions of a map where the gate rejects."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from darksight_client import Model, RegionPreview
from darksight_client import Region as ServedRegion

from darksight_core.bundle import read_bundle, refuse_existing, write_bundle
from darksight_core.errors import ConfigError
from darksight_core.map.regions import Region
from darksight_service.cli.connection import CONNECTION, CommentedChange, ModelName, Query, QueryOptions
from darksight_service.cli.console import print_json, print_result, print_table
from darksight_service.cli.options import OUTPUT, Overwrite, command_group
from darksight_service.control.registry import gate_of

__all__ = [
    "add",
    "carry_over",
    "enforce",
    "export",
    "list_regions",
    "preview",
    "region",
    "remove",
    "shadow",
]


def _read_polygon(kind: object, tokens: Sequence[Token]) -> tuple[tuple[float, float], ...]:
    """Corners from `x,y x,y ...` or from a JSON file."""
    text = tokens[0].value
    try:
        if "," in text and not Path(text).is_file():
            pairs: list[Any] = [pair.split(",") for pair in text.split()]
        else:
            pairs = json.loads(Path(text).read_text(encoding="utf-8"))
        return tuple((float(x), float(y)) for x, y in pairs)
    except OSError as error:
        raise ValueError(f"{text!r} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ValueError(f"{text[:60]!r} is not a polygon such as '0,0 1,0 1,1'") from None


def _read_time(kind: object, tokens: Sequence[Token]) -> datetime:
    try:
        found = datetime.fromisoformat(tokens[0].value)
        if found.tzinfo is None:
            raise ValueError
        return found
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a time with a zone, such as 2027-01-31T12:00Z") from None


_Name = Annotated[str, Parameter(help="Name of the region.")]
_Version = Annotated[
    str, Parameter(help="Version (sha256) of a bundle, or its first 12 digits. Default: the active version.")
]
_Polygon = Annotated[
    tuple[tuple[float, float], ...],
    Parameter(
        converter=_read_polygon,
        n_tokens=1,
        allow_leading_hyphen=True,
        metavar="POLYGON",
        help="Corners as 'x,y x,y x,y ...', or a JSON file with a list of [x, y].",
    ),
]
_Change = Annotated[CommentedChange, Parameter(name="*", group=CONNECTION)]

region = command_group(
    "region",
    "Manage the regions of a map where the gate rejects.\n\n"
    "A region is a polygon on the map of one bundle. A new region is in shadow mode and changes no decision. When it "
    "is enforced, accepted rows inside are rejected.",
)


@region.command(name="list")
def list_regions(
    model: ModelName, /, *, version: _Version = "", history: bool = False, query: QueryOptions = Query()
) -> None:
    """List the regions of a model.

    Parameters
    ----------
    history
        List the changes in the audit trail instead.
    """
    with query.connect() as client:
        changes = client.region_history(model) if history else ()
        found = () if history else client.regions(model, version=version)
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]
    if history:
        header = ("region", "version", "action", "time", "author", "comment")
        rows = [(c.name, c.version[:12], c.action, c.changed_at, c.author, c.comment) for c in changes]
    else:
        header = ("region", "version", "mode", "corners", "author", "saved", "expires")
        rows = [
            (r.name, r.version[:12], _mode(r), len(r.polygon), r.author, r.saved_at, r.expires_at or "never")
            for r in found
        ]
    print_result([*changes, *found], lambda: print_table(rows, header), json=query.json)


@region.command
def preview(
    model: ModelName,
    /,
    *,
    polygon: _Polygon = (),
    name: str = "",
    version: _Version = "",
    days: float | None = None,
    examples: int = 5,
    query: QueryOptions = Query(),
) -> None:
    """Show what a polygon or a saved region would reject.

    Counts the reference points and stored points inside, and how often the classifier was right about them, with exact
    95% intervals. The accuracy is too low if the region was drawn around known mistakes; for a saved region, points
    received since then are counted separately.

    Parameters
    ----------
    name
        Saved region, instead of a polygon.
    days
        Use only points received within this many days.
    examples
        Points to show, up to 100.
    """
    if bool(polygon) == bool(name):
        raise ConfigError("give either --polygon or --name")
    since = None if days is None else time.time() - 86_400.0 * days
    with query.connect() as client:
        found = client.preview_region(
            model, version=version, name=name, polygon=polygon, since=since, examples=examples
        )
        classes = () if query.json else _class_names(client.model(model), version)
    if query.json:
        names = [name for name in RegionPreview.__slots__ if name.endswith("accuracy")]
        accuracies = {name: {**asdict(each), "value": each.value} for name in names for each in [getattr(found, name)]}
        print_json({**asdict(found), **accuracies, "accepted_share": found.accepted_share})
    else:
        _print_preview(found, classes)


@region.command
def add(
    model: ModelName,
    name: _Name,
    /,
    *,
    polygon: _Polygon,
    expires: Annotated[datetime | None, Parameter(converter=_read_time, metavar="TIME")] = None,
    version: _Version = "",
    change: _Change = CommentedChange(),
) -> None:
    """Save a region in shadow mode.

    Parameters
    ----------
    expires
        Time when the region expires, such as 2027-01-31T12:00Z. Default: it does not expire.
    """
    with change.connect() as client:
        saved = client.save_region(model, name, polygon, version=version, expires_at=expires, **change.entry())
    _report(saved, change)


@region.command
def enforce(model: ModelName, name: _Name, /, *, version: _Version = "", change: _Change = CommentedChange()) -> None:
    """Let the gate reject accepted rows inside a region."""
    with change.connect() as client:
        enforced = client.enforce_region(model, name, version=version, **change.entry())
    _report(enforced, change)


@region.command
def shadow(model: ModelName, name: _Name, /, *, version: _Version = "", change: _Change = CommentedChange()) -> None:
    """Return a region to shadow mode, so that it changes no decision."""
    with change.connect() as client:
        found = client.shadow_region(model, name, version=version, **change.entry())
    _report(found, change)


@region.command
def remove(model: ModelName, name: _Name, /, *, version: _Version = "", change: _Change = CommentedChange()) -> None:
    """Remove a region. It stays in the audit trail."""
    with change.connect() as client:
        removed = client.remove_region(model, name, version=version, **change.entry())
    print_result(removed, f"removed region {removed.name} of version {removed.version[:12]}", json=change.json)


@region.command
def carry_over(
    model: ModelName,
    name: _Name,
    /,
    *,
    version: Annotated[str, Parameter(name="--from", metavar="VERSION")],
    to: Annotated[str, Parameter(metavar="VERSION")] = "",
    save: bool = False,
    change: _Change = CommentedChange(),
) -> None:
    """Propose a region for the map of another version.

    A new fit gives a new map. The rows inside the region are placed on the new map, and a polygon around them is
    proposed. With --save it is saved in shadow mode: preview it before enforcing it.

    Parameters
    ----------
    version
        Version of the map that the region is on.
    to
        Version of the map to propose a region for. Default: the active version.
    save
        Save the proposed region in shadow mode.
    """
    with change.connect() as client:
        found = client.carry_over_region(model, name, version, to_version=to, save=save, **change.entry())
    text = "Both versions have the same map: the polygon is the same."
    if not found.is_same_map:
        rows = found.stored_rows + found.reference_rows
        text = (
            f"It contains {found.rows_inside:,} of {rows:,} rows ({found.reference_rows:,} of them reference points)\n"
            f"that are inside the region, and {found.other_rows_inside:,} of {found.other_rows:,} other rows."
        )
    text += f"\npolygon: {' '.join(f'{x:.6g},{y:.6g}' for x, y in found.region.polygon)}\n"
    text += "saved in shadow mode" if found.is_saved else "not saved; use --save to save it"
    print_result(found, text, json=change.json)


@region.command
def export(
    model: ModelName,
    bundle: Path,
    /,
    *,
    query: QueryOptions = Query(),
    out: Annotated[Path, Parameter(group=OUTPUT)],
    overwrite: Overwrite = False,
) -> None:
    """Write a bundle whose gate has the enforced regions.

    The new bundle has the same map and another version.

    Parameters
    ----------
    bundle
        Bundle file of the version that the regions are for.
    out
        Bundle to write.
    """
    refuse_existing(out, overwrite=overwrite)
    loaded = read_bundle(bundle)
    with query.connect() as client:
        listed = client.regions(model, version=loaded.version)
    enforced = [_core_region(each) for each in listed if each.is_enforced and not each.is_from_bundle]
    gate = gate_of(loaded)
    everything = (*gate.regions, *enforced)
    changed = loaded.with_gate(replace(gate, regions=everything), loaded.manifest["certificate"])
    version = write_bundle(out, changed, overwrite=overwrite)
    found = {"bundle": str(out), "version": version, "regions": [each.name for each in everything]}
    text = f"wrote {out} (version {version[:12]}) with {len(everything)} regions in its gate"
    print_result(found, text, json=query.json)


def _report(changed: ServedRegion, change: CommentedChange) -> None:
    """Print a region after a change."""
    expires = "never" if changed.expires_at is None else changed.expires_at.isoformat(timespec="seconds")
    text = f"region {changed.name} of version {changed.version[:12]}: {_mode(changed)}, expires {expires}"
    print_result(changed, text, json=change.json)


def _class_names(model: Model, version: str) -> tuple[str, ...]:
    """Class names of a version, given by its first digits; of the active one if none are given."""
    wanted = version or model.active_version
    return next(each.class_names for each in model.versions if each.version.startswith(wanted))


def _print_preview(found: RegionPreview, names: Sequence[str]) -> None:
    counts = (
        ("reference points", found.reference_points, found.reference_inside, found.reference_accuracy),
        ("newest stored points", found.examined, found.inside, found.accuracy),
        ("accepted, would be rejected", found.accepted, found.inside_accepted, found.accepted_accuracy),
        ("received since it was saved", None, None, found.new_accuracy),
    )
    rows = [
        (name, among, inside, each.rows, each.rows - each.correct, each.value, f"{each.low:.4f} to {each.high:.4f}")
        for name, among, inside, each in counts
    ]
    print_table(rows, ("points", "in total", "inside", "labelled", "wrong", "accuracy", "95% interval"))
    if found.accepted_share is not None:
        print(f"\nIt would reject {found.accepted_share:.2%} of the accepted points.")
    print("If the region was drawn around known mistakes, their accuracy is too low: use points received since then.")
    for each in found.examples:
        top = sorted(zip(names, each.probabilities, strict=False), key=lambda pair: -pair[1])[:3]
        shown = ", ".join(f"{name} {value:.3f}" for name, value in top)
        predicted = "none" if each.predicted is None else names[each.predicted]
        label = "" if each.label is None else f", label {names[each.label]}"
        print(f"  {each.prediction_id}: predicted {predicted}{label}; {shown}")


def _mode(found: ServedRegion) -> str:
    if found.is_from_bundle:
        return "in bundle"
    return "enforced" if found.is_enforced else "shadow"


def _core_region(listed: ServedRegion) -> Region:
    """A region of a gate, from one that the service listed."""
    expires = listed.expires_at
    return Region(listed.name, listed.polygon, 0 if expires is None else round(expires.timestamp() * 1000))
