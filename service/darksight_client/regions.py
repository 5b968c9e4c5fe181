"""The calls of an analyst: parts of a map where the gate refuses; generators of steps as in `calls`.

As in `admin`, changes are not repeated when the connection fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from darksight_client.calls import Calls
from darksight_client.errors import InvalidRequest
from darksight_client.replicas import CallSteps
from darksight_client.requests import Time, as_timestamp
from darksight_client.results import read_time
from darksight_client.stubs.darksight.v1 import admin_pb2

__all__ = [
    "Accuracy",
    "CarriedRegion",
    "Region",
    "RegionChange",
    "RegionExample",
    "RegionPreview",
    "carry_over_region",
    "enforce_region",
    "preview_region",
    "region_history",
    "regions",
    "remove_region",
    "save_region",
    "shadow_region",
]

_ADMIN = "/darksight.v1.AdminService/"


@dataclass(frozen=True, slots=True)
class Region:
    """A polygon on the map of one version.

    Parameters
    ----------
    name
        Different from that of every other region of the version.
    version
        sha256 of the bundle.
    polygon
        Corners (x, y).
    is_enforced
        Whether the gate refuses inside; else it is a shadow and changes no decision.
    author, comment
        Who saved it, and why.
    saved_at
        When; None for a region that came with its bundle.
    expires_at
        When it ends by itself; None for never.
    is_from_bundle
        Whether it came with its bundle, which then alone changes it.
    """

    name: str
    version: str
    polygon: tuple[tuple[float, float], ...]
    is_enforced: bool
    author: str
    comment: str
    saved_at: datetime | None
    expires_at: datetime | None
    is_from_bundle: bool


@dataclass(frozen=True, slots=True)
class RegionChange:
    """An entry of the audit trail; `action` is `save`, `enforce`, `shadow` or `remove`."""

    changed_at: datetime | None
    version: str
    name: str
    action: str
    author: str
    comment: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of the classifier on labelled points, with its exact 95% confidence interval."""

    rows: int
    correct: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        """The accuracy; None if there are no labelled points."""
        return self.correct / self.rows if self.rows else None


@dataclass(frozen=True, slots=True)
class RegionExample:
    """A stored point inside a region; `label` is None if the right class is not known."""

    prediction_id: str
    x: float
    y: float
    predicted: int | None
    label: int | None
    is_accepted: bool
    probabilities: tuple[float, ...]
    received_at: datetime | None


@dataclass(frozen=True, slots=True)
class RegionPreview:
    """What a region would reject.

    Parameters
    ----------
    reference_points, reference_inside, reference_accuracy
        Points that the map was fitted on, those inside, and how often the classifier was right about them.
    examined, since
        The newest stored points that were looked at, and when the oldest of them was received.
    accepted
        Those of them that were accepted.
    inside, inside_accepted, inside_rejected
        Those inside; of these, accepted ones, which would be rejected, and such as a region refused.
    accuracy, accepted_accuracy
        How often the classifier was right about those inside, and about those of them that were accepted. Too low if
        the region was drawn around known mistakes.
    new_accuracy
        About those received after the region was saved, by which it was not drawn.
    examples
        Some of those inside.
    """

    reference_points: int
    reference_inside: int
    reference_accuracy: Accuracy
    examined: int
    since: datetime | None
    accepted: int
    inside: int
    inside_accepted: int
    inside_rejected: int
    accuracy: Accuracy
    accepted_accuracy: Accuracy
    new_accuracy: Accuracy
    examples: tuple[RegionExample, ...]

    @property
    def accepted_share(self) -> float | None:
        """The part of accepted traffic that would be rejected; None if none was accepted."""
        return self.inside_accepted / self.accepted if self.accepted else None


@dataclass(frozen=True, slots=True)
class CarriedRegion:
    """A region on the map of another version.

    Parameters
    ----------
    region
        The proposal, or what was saved.
    is_saved
        Which of the two.
    is_same_map
        Whether both versions have one map, so that no row had to be placed.
    stored_rows, reference_rows
        Rows inside the old polygon that were placed on the new map.
    rows_inside
        Those of them that the new polygon holds.
    other_rows, other_rows_inside
        Rows from outside that were placed too, and those of them that the new polygon takes in.
    """

    region: Region
    is_saved: bool
    is_same_map: bool
    stored_rows: int
    reference_rows: int
    rows_inside: int
    other_rows: int
    other_rows_inside: int


def regions(calls: Calls, model: str, *, version: str = "") -> CallSteps[tuple[Region, ...]]:
    """Regions of a model that have not ended; with a version, those on its map."""
    request = admin_pb2.ListRegionsRequest(model=model, version=version)
    answer = yield from calls.unary(_ADMIN + "ListRegions", request, admin_pb2.ListRegionsResponse)
    return tuple(_region(each) for each in answer.regions)


def region_history(calls: Calls, model: str) -> CallSteps[tuple[RegionChange, ...]]:
    """The latest changes of a model's regions, the latest first."""
    request = admin_pb2.ListRegionsRequest(model=model, include_history=True)
    answer = yield from calls.unary(_ADMIN + "ListRegions", request, admin_pb2.ListRegionsResponse)
    return tuple(
        RegionChange(read_time(each, "changed_at"), each.version, each.name, each.action, each.author, each.comment)
        for each in answer.history
    )


def preview_region(
    calls: Calls,
    model: str,
    *,
    version: str = "",
    name: str = "",
    polygon: Sequence[Sequence[float]] = (),
    since: Time | None = None,
    until: Time | None = None,
    examples: int = 10,
) -> CallSteps[RegionPreview]:
    """What a saved region, or a polygon, would reject.

    Parameters
    ----------
    model, version
        Whose map; default: that of the active version.
    name, polygon
        A saved region, or corners (x, y).
    since, until
        Look at stored points received at or after, and before.
    examples
        Points to show, up to 100.
    """
    request = admin_pb2.PreviewRegionRequest(
        model=model,
        version=version,
        name=name,
        polygon=_corners(polygon),
        since=as_timestamp(since),
        until=as_timestamp(until),
        examples=examples,
    )
    answer = yield from calls.unary(_ADMIN + "PreviewRegion", request, admin_pb2.PreviewRegionResponse)
    found: dict[str, Any] = {name: getattr(answer, name) for name in RegionPreview.__slots__}
    found |= {name: _accuracy(value) for name, value in found.items() if name.endswith("accuracy")}
    found |= {"since": read_time(answer, "since"), "examples": tuple(map(_example, answer.examples))}
    return RegionPreview(**found)


def save_region(
    calls: Calls,
    model: str,
    name: str,
    polygon: Sequence[Sequence[float]],
    *,
    version: str = "",
    expires_at: Time | None = None,
    author: str = "",
    comment: str = "",
) -> CallSteps[Region]:
    """Add a region to the map of a version, by default the active one, as a shadow that changes no decision.

    Parameters
    ----------
    model, version
        Whose map.
    name
        By which it is known.
    polygon
        Corners (x, y).
    expires_at
        When it ends by itself; default: never.
    author, comment
        For the audit trail.
    """
    request = admin_pb2.SaveRegionRequest(
        model=model,
        version=version,
        name=name,
        polygon=_corners(polygon),
        expires_at=as_timestamp(expires_at),
        author=author,
        comment=comment,
    )
    return (yield from _changed(calls, "SaveRegion", request, admin_pb2.SaveRegionResponse))


def enforce_region(
    calls: Calls, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
) -> CallSteps[Region]:
    """Let the gate refuse inside a region."""
    return (yield from _set_mode(calls, model, name, admin_pb2.REGION_MODE_ENFORCE, version, author, comment))


def shadow_region(
    calls: Calls, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
) -> CallSteps[Region]:
    """Let a region change no decision any more."""
    return (yield from _set_mode(calls, model, name, admin_pb2.REGION_MODE_SHADOW, version, author, comment))


def remove_region(
    calls: Calls, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
) -> CallSteps[Region]:
    """End a region; returns what it was."""
    request = admin_pb2.RemoveRegionRequest(model=model, version=version, name=name, author=author, comment=comment)
    return (yield from _changed(calls, "RemoveRegion", request, admin_pb2.RemoveRegionResponse))


def carry_over_region(
    calls: Calls,
    model: str,
    name: str,
    version: str,
    *,
    to_version: str = "",
    save: bool = False,
    author: str = "",
    comment: str = "",
) -> CallSteps[CarriedRegion]:
    """Propose a region for the map of another version, around the rows that are inside it on its own.

    Parameters
    ----------
    model, name, version
        Of the region.
    to_version
        Where it is to be; default: the active one.
    save
        Whether to save what was found, as a shadow.
    author, comment
        For the audit trail.
    """
    request = admin_pb2.CarryOverRegionRequest(
        model=model, name=name, version=version, to_version=to_version, save=save, author=author, comment=comment
    )
    answer = yield from calls.unary(
        _ADMIN + "CarryOverRegion", request, admin_pb2.CarryOverRegionResponse, is_repeatable=not save
    )
    counts = {name: getattr(answer, name) for name in CarriedRegion.__slots__ if name != "region"}
    return CarriedRegion(region=_region(answer.region), **counts)


def _set_mode(
    calls: Calls, model: str, name: str, mode: Any, version: str, author: str, comment: str
) -> CallSteps[Region]:
    request = admin_pb2.SetRegionModeRequest(
        model=model, version=version, name=name, mode=mode, author=author, comment=comment
    )
    return (yield from _changed(calls, "SetRegionMode", request, admin_pb2.SetRegionModeResponse))


def _changed(calls: Calls, method: str, request: Message, answer: Any) -> CallSteps[Region]:
    reply = yield from calls.unary(_ADMIN + method, request, answer, is_repeatable=False)
    return _region(reply.region)


def _corners(polygon: Sequence[Sequence[float]]) -> list[admin_pb2.Corner]:
    try:
        return [admin_pb2.Corner(x=float(x), y=float(y)) for x, y in polygon]
    except (TypeError, ValueError):
        raise InvalidRequest("a polygon is a list of corners (x, y).") from None


def _region(message: Any) -> Region:
    return Region(
        name=message.name,
        version=message.version,
        polygon=tuple((corner.x, corner.y) for corner in message.polygon),
        is_enforced=message.mode == admin_pb2.REGION_MODE_ENFORCE,
        author=message.author,
        comment=message.comment,
        saved_at=read_time(message, "saved_at"),
        expires_at=read_time(message, "expires_at"),
        is_from_bundle=message.is_from_bundle,
    )


def _accuracy(message: Any) -> Accuracy:
    return Accuracy(message.rows, message.correct, message.low, message.high)


def _example(message: Any) -> RegionExample:
    return RegionExample(
        prediction_id=message.prediction_id,
        x=message.x,
        y=message.y,
        predicted=message.predicted if message.HasField("predicted") else None,
        label=message.label if message.HasField("label") else None,
        is_accepted=message.is_accepted,
        probabilities=tuple(message.probabilities),
        received_at=read_time(message, "received_at"),
    )
