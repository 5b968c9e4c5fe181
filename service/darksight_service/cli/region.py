"""`darksight region`: parts of a map where the gate refuses; previewed, saved, enforced, carried over, exported."""

from __future__ import annotations

import argparse
import getpass
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from darksight_client import Accuracy, RegionPreview
from darksight_client import Region as ServedRegion

from darksight_core.bundle import read_bundle, refuse_existing, write_bundle
from darksight_core.errors import ConfigError
from darksight_core.map.regions import Region
from darksight_service.cli.console import print_json, print_table
from darksight_service.cli.remote import add_server_options, connected
from darksight_service.control.registry import gate_of

__all__ = [
    "add_parser",
    "run_add",
    "run_carry_over",
    "run_export",
    "run_list",
    "run_mode",
    "run_preview",
    "run_remove",
]

_SECONDS = 60.0
_POLYGON = "corners as 'x,y x,y x,y ...', or a JSON file with a list of [x, y]"


def add_parser(commands: Any) -> None:
    """Add `region` to the command line."""
    parser = commands.add_parser(
        "region",
        help="parts of a map where the gate refuses",
        description="A region is a polygon on the map of one bundle. Saved, it is a shadow and changes no decision; "
        "enforced, accepted rows inside are rejected, and nothing else changes.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    server = _options()
    add_server_options(server, default="localhost:8081", help="service to ask (%(default)s)")
    server.add_argument("--json", action="store_true", help="print the result as JSON")
    model = _options()
    model.add_argument("model", metavar="MODEL", help="name of the watched classifier")
    which = _options(model)
    which.add_argument("--version", default="", help="sha256 of a bundle, or its first 12 digits; default: the active")
    name = _options()
    name.add_argument("name", metavar="NAME", help="by which the region is known")
    said = _options()
    said.add_argument("--author", default=None, help="who, for the audit trail; default: the user of this machine")
    said.add_argument("--comment", default="", help="why, for the audit trail")

    def action(verb: str, run: Callable[..., int], help: str, description: str, *parents: Any) -> Any:
        found = actions.add_parser(verb, parents=[*parents, server], help=help, description=description)
        found.set_defaults(run=run)
        return found

    listing = action("list", run_list, "regions and how they changed", "Regions that have not ended.", which)
    listing.add_argument("--history", action="store_true", help="the audit trail of regions instead")
    preview = action(
        "preview",
        run_preview,
        "what a polygon or a saved region would reject",
        "Counts reference and stored points inside, and how often the classifier was right about them, with the exact "
        "95%% interval. That is too low where the region was drawn around known mistakes; for a saved region, points "
        "received since are told apart.",
        which,
    )
    what = preview.add_mutually_exclusive_group(required=True)
    what.add_argument("--polygon", type=_polygon, metavar="POLYGON", help=_POLYGON)
    what.add_argument("--name", default="", help="a saved region")
    preview.add_argument("--days", type=float, help="only points received within the last days")
    preview.add_argument("--examples", type=int, default=5, help="points to show, up to 100 (%(default)s)")
    changing = (which, name, said)
    add = action("add", run_add, "save a region, as a shadow", "Save a region; it changes no decision.", *changing)
    add.add_argument("--polygon", type=_polygon, required=True, metavar="POLYGON", help=_POLYGON)
    add.add_argument("--expires", type=_moment, metavar="TIME", help="when it ends, such as 2027-01-31T12:00Z")
    for mode, text in (("enforce", "let the gate refuse inside"), ("shadow", "let it change no decision any more")):
        action(mode, run_mode, text, f"{text.capitalize()}.", *changing).set_defaults(mode=mode)
    action("remove", run_remove, "end a region", "End a region; the audit trail keeps it.", *changing)
    _add_carry_over(action, model, name, said)
    _add_export(action, model)


def _options(*parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options that several actions have."""
    return argparse.ArgumentParser(add_help=False, parents=parents)


def _add_carry_over(action: Callable[..., Any], *parents: argparse.ArgumentParser) -> None:
    carry = action(
        "carry-over",
        run_carry_over,
        "propose a region for another version's map",
        "After a refit the map is another one. The rows inside the region are placed on the new map, and a polygon is "
        "proposed around them. Nothing is saved without --save, and then as a shadow: preview it before enforcing it.",
        *parents,
    )
    carry.add_argument("--from", dest="version", required=True, metavar="VERSION", help="version it is on")
    carry.add_argument("--to", default="", metavar="VERSION", help="version it is to be on; default: the active")
    carry.add_argument("--save", action="store_true", help="save what was found, as a shadow")


def _add_export(action: Callable[..., Any], *parents: argparse.ArgumentParser) -> None:
    export = action(
        "export",
        run_export,
        "write a bundle whose gate carries the enforced regions",
        "Reads a bundle and the regions that are enforced for its version, from the service or from what list --json "
        "printed, and writes a bundle with them in its gate. Its map is the same, its version is another.",
        *parents,
    )
    export.add_argument("bundle", type=Path, metavar="BUNDLE", help="file of the version")
    export.add_argument("--out", type=Path, required=True, help="where to write")
    export.add_argument("--overwrite", action="store_true", help="replace an existing file")
    export.add_argument("--regions", type=Path, metavar="FILE", help="what list --json printed, instead of a service")


def run_list(args: argparse.Namespace) -> int:
    """Print regions, or their history."""
    with connected(args, _SECONDS) as client:
        if args.history:
            changes = client.region_history(args.model)
            if args.json:
                print_json([_plain(asdict(change)) for change in changes])
            else:
                rows = [(c.name, c.version[:12], c.action, _time(c.changed_at), c.author, c.comment) for c in changes]
                print_table(rows, ("region", "version", "action", "when", "author", "comment"))
            return 0
        found = client.regions(args.model, version=args.version)
    if args.json:
        print_json([_plain(asdict(region)) for region in found])
    else:
        print_table(
            [
                (r.name, r.version[:12], _mode(r), len(r.polygon), r.author, _time(r.saved_at), _time(r.expires_at))
                for r in found
            ],
            ("region", "version", "mode", "corners", "author", "saved", "ends"),
        )
    return 0


def run_preview(args: argparse.Namespace) -> int:
    """Print what a region would reject."""
    since = None if args.days is None else time.time() - 86_400.0 * args.days
    with connected(args, _SECONDS) as client:
        found = client.preview_region(
            args.model,
            version=args.version,
            name=args.name,
            polygon=args.polygon or (),
            since=since,
            examples=args.examples,
        )
    if args.json:
        accuracies = {
            name: _accuracy(getattr(found, name)) for name in RegionPreview.__slots__ if name.endswith("accuracy")
        }
        print_json({**_plain(asdict(found)), **accuracies, "accepted_share": found.accepted_share})
    else:
        _print_preview(found)
    return 0


def run_add(args: argparse.Namespace) -> int:
    """Save a region."""
    with connected(args, _SECONDS) as client:
        saved = client.save_region(
            args.model,
            args.name,
            args.polygon,
            version=args.version,
            expires_at=args.expires,
            author=_author(args),
            comment=args.comment,
        )
    return _print_region(args, saved)


def run_mode(args: argparse.Namespace) -> int:
    """Enforce a region, or make it a shadow again."""
    with connected(args, _SECONDS) as client:
        change = client.enforce_region if args.mode == "enforce" else client.shadow_region
        found = change(args.model, args.name, version=args.version, author=_author(args), comment=args.comment)
    return _print_region(args, found)


def run_remove(args: argparse.Namespace) -> int:
    """End a region."""
    with connected(args, _SECONDS) as client:
        found = client.remove_region(
            args.model, args.name, version=args.version, author=_author(args), comment=args.comment
        )
    if args.json:
        print_json(_plain(asdict(found)))
    else:
        print(f"region {found.name} of version {found.version[:12]} has ended")
    return 0


def run_carry_over(args: argparse.Namespace) -> int:
    """Propose a region for another map."""
    with connected(args, _SECONDS) as client:
        found = client.carry_over_region(
            args.model,
            args.name,
            args.version,
            to_version=args.to,
            save=args.save,
            author=_author(args),
            comment=args.comment,
        )
    if args.json:
        print_json(_plain(asdict(found)))
        return 0
    if found.is_same_map:
        print("Both versions have one map: the polygon is the same.")
    else:
        rows = found.stored_rows + found.reference_rows
        print(
            f"Of {rows:,} rows inside ({found.reference_rows:,} of them reference points) it holds {found.rows_inside:,}."
        )
        print(f"Of {found.other_rows:,} other rows it holds {found.other_rows_inside:,}.")
    print(f"polygon: {' '.join(f'{x:.6g},{y:.6g}' for x, y in found.region.polygon)}")
    print("saved as a shadow" if found.is_saved else "not saved; --save does")
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Write a bundle with regions."""
    refuse_existing(args.out, overwrite=args.overwrite)
    bundle = read_bundle(args.bundle)
    if args.regions is None:
        with connected(args, _SECONDS) as client:
            found = client.regions(args.model, version=bundle.version)
        wanted = [_core(asdict(region)) for region in found if region.is_enforced and not region.is_from_bundle]
    else:
        listed = _read_json(args.regions)
        foreign = {str(each.get("version"))[:12] for each in listed if each.get("version") != bundle.version}
        if foreign:
            raise ConfigError(
                f"{args.regions}: has regions of version {', '.join(sorted(foreign))}, but {args.bundle} is "
                f"{bundle.short_version}; on another map they are other places. Use darksight region carry-over."
            )
        wanted = [_core(each) for each in listed if each["is_enforced"] and not each["is_from_bundle"]]
    gate = gate_of(bundle)
    whole = bundle.with_gate(replace(gate, regions=(*gate.regions, *wanted)), bundle.manifest["certificate"])
    version = write_bundle(args.out, whole, overwrite=args.overwrite)
    if args.json:
        regions = [region.name for region in (*gate.regions, *wanted)]
        print_json({"bundle": str(args.out), "version": version, "regions": regions})
    else:
        print(f"wrote {args.out} (version {version[:12]}) with {len(gate.regions) + len(wanted)} regions in its gate")
    return 0


def _polygon(text: str) -> list[tuple[float, float]]:
    """Corners from `x,y x,y ...` or from a JSON file."""
    try:
        if "," in text and not Path(text).is_file():
            pairs: list[Any] = [pair.split(",") for pair in text.split()]
        else:
            pairs = json.loads(Path(text).read_text(encoding="utf-8"))
        return [(float(x), float(y)) for x, y in pairs]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} has no polygon; write {_POLYGON}") from None


def _print_preview(found: RegionPreview) -> None:
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
    print_table(rows, ("points", "in all", "inside", "labelled", "wrong", "accuracy", "95% interval"))
    if found.accepted_share is not None:
        print(f"\nIt would reject {found.accepted_share:.2%} of what is accepted.")
    print("If it was drawn around known mistakes, the accuracy on them is too low: trust points received since.")
    for each in found.examples:
        top = sorted(enumerate(each.probabilities), key=lambda pair: -pair[1])[:3]
        shown = ", ".join(f"class {number} {value:.3f}" for number, value in top)
        label = "" if each.label is None else f", right is {each.label}"
        print(f"  {each.prediction_id}: predicted {each.predicted}{label}; {shown}")


def _print_region(args: argparse.Namespace, region: ServedRegion) -> int:
    if args.json:
        print_json(_plain(asdict(region)))
    else:
        print(
            f"region {region.name} of version {region.version[:12]}: {_mode(region)}, ends {_time(region.expires_at)}"
        )
    return 0


def _mode(region: ServedRegion) -> str:
    if region.is_from_bundle:
        return "in bundle"
    return "enforced" if region.is_enforced else "shadow"


def _core(region: dict[str, Any]) -> Region:
    """A region of the gate from one of the service."""
    ends = region["expires_at"]
    if isinstance(ends, str):
        ends = datetime.fromisoformat(ends)
    return Region(region["name"], tuple(region["polygon"]), 0 if ends is None else round(ends.timestamp() * 1000))


def _read_json(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    needed = {"name", "version", "polygon", "expires_at", "is_enforced", "is_from_bundle"}
    if not isinstance(found, list) or not all(isinstance(each, dict) and needed <= each.keys() for each in found):
        raise ConfigError(f"{path}: is not what darksight region list --json prints")
    return found


def _accuracy(accuracy: Accuracy) -> dict[str, Any]:
    return {**asdict(accuracy), "value": accuracy.value}


def _plain(value: Any) -> Any:
    """As JSON knows it."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else moment.isoformat(timespec="seconds")


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError(text)
        return found
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time with a zone, such as 2027-01-31T12:00Z") from None


def _author(args: argparse.Namespace) -> str:
    if args.author is not None:
        return str(args.author)
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container without a user of that number.
        return ""
