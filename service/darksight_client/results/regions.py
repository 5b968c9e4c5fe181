"""Regions of a map, as the service returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from darksight_client.errors import InvalidRequest
from darksight_client.stubs.darksight.v1 import admin_pb2

__all__ = [
    "Accuracy",
    "CarriedRegion",
    "Region",
    "RegionChange",
    "RegionExample",
    "RegionPreview",
    "as_corners",
]


@dataclass(frozen=True, slots=True)
class Region:
    """A polygon on the map of one version.

    Parameters
    ----------
    name
        Unique within the version.
    version
        sha256 of the bundle.
    polygon
        Corners (x, y).
    is_enforced
        Whether the gate rejects rows inside. Otherwise the region is in shadow mode and changes no decision.
    author, comment
        Who saved it, and why.
    saved_at
        When it was saved; None for a region from the bundle.
    expires_at
        When it expires; None for never.
    is_from_bundle
        Whether it is part of the bundle and cannot be changed.
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

    @staticmethod
    def read_message(message: Any) -> dict[str, Any]:
        """Fields that have other names in the message."""
        return {"is_enforced": message.mode == admin_pb2.REGION_MODE_ENFORCE}


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
    """A stored point inside a region; `label` is None if the true class is not known."""

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
    """The points that a region would reject.

    Parameters
    ----------
    reference_points, reference_inside, reference_accuracy
        Number of reference points in the bundle, number of those inside, and the accuracy on those inside.
    examined, since
        Number of stored points examined, and when the oldest of them was received.
    accepted
        Number of examined points that were accepted.
    inside, inside_accepted, inside_rejected
        Number of examined points inside; of these, the accepted ones, which would be rejected, and those that a region
        already rejected.
    accuracy, accepted_accuracy
        Accuracy on the points inside, and on the accepted ones. Both are biased if the region was drawn around known
        errors.
    new_accuracy
        Accuracy on the points inside received after the region was saved, which is not biased.
    examples
        Some of the points inside.
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
        """The share of accepted points that would be rejected; None if no point was accepted."""
        return self.inside_accepted / self.accepted if self.accepted else None


@dataclass(frozen=True, slots=True)
class CarriedRegion:
    """A region proposed for the map of another version.

    Parameters
    ----------
    region
        The proposed or saved region.
    is_same_map
        Whether both versions have the same map, so that the polygon is unchanged.
    stored_rows, reference_rows
        Number of rows inside the old polygon that were placed on the new map.
    rows_inside
        Number of those rows inside the new polygon.
    other_rows, other_rows_inside
        Number of rows outside the old polygon that were placed on the new map, and of those inside the new polygon.
    is_saved
        Whether the region was saved.
    """

    region: Region
    is_same_map: bool
    stored_rows: int
    reference_rows: int
    rows_inside: int
    other_rows: int
    other_rows_inside: int
    is_saved: bool


def as_corners(polygon: Sequence[Sequence[float]]) -> list[admin_pb2.Corner]:
    """The message for a polygon."""
    try:
        return [admin_pb2.Corner(x=float(x), y=float(y)) for x, y in polygon]
    except (TypeError, ValueError):
        raise InvalidRequest("a polygon is a list of corners (x, y).") from None
