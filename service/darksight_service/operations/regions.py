"""AdminService: regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from darksight_client.stubs.darksight.v1 import admin_pb2

from darksight_core.map.regions import MAX_CORNERS, Region
from darksight_service.control.regions import ListedRegion, Regions
from darksight_service.errors import RequestError
from darksight_service.operations.models import ADMIN
from darksight_service.operations.operation import Call, Service, operation
from darksight_service.operations.timestamps import optional_milliseconds, timestamp
from darksight_service.store.audit import Change
from darksight_service.store.read.share import Share

__all__ = [
    "carry_over_region",
    "list_regions",
    "preview_region",
    "remove_region",
    "save_region",
    "set_region_mode",
]

_SHADOW, _ENFORCE = admin_pb2.REGION_MODE_SHADOW, admin_pb2.REGION_MODE_ENFORCE


@operation(ADMIN, "read", "store", "GET /v1/models/{model}/regions")
def list_regions(service: Service, request: admin_pb2.ListRegionsRequest, call: Call) -> admin_pb2.ListRegionsResponse:
    """List regions."""
    regions = service.control.regions
    return admin_pb2.ListRegionsResponse(
        regions=map(_listed_region, regions.listed(request.model, request.version)),
        history=map(_change, regions.history(request.model) if request.include_history else ()),
    )


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/regions")
def save_region(service: Service, request: admin_pb2.SaveRegionRequest, call: Call) -> admin_pb2.SaveRegionResponse:
    """Add a region, in shadow mode."""
    saved = _as_caller(service, call).save(
        request.model,
        request.version,
        request.name,
        _corners(request.polygon),
        expires_ms=optional_milliseconds(request, "expires_at"),
        author=request.author,
        comment=request.comment,
    )
    return admin_pb2.SaveRegionResponse(region=_listed_region(saved))


@operation(ADMIN, "read", "store", "POST /v1/models/{model}/regions/preview")
def preview_region(
    service: Service, request: admin_pb2.PreviewRegionRequest, call: Call
) -> admin_pb2.PreviewRegionResponse:
    """Count the points that a region would reject."""
    found = service.control.regions.preview(
        request.model,
        request.version,
        name=request.name,
        polygon=_corners(request.polygon),
        since_ms=optional_milliseconds(request, "since"),
        until_ms=optional_milliseconds(request, "until"),
        examples=request.examples,
    )
    accuracies: dict[str, Any] = {name: _accuracy(share) for name, share in found.shares().items()}
    return admin_pb2.PreviewRegionResponse(
        **found.counts(),
        **accuracies,
        since=timestamp(found.since_ms) if found.examined else None,
        examples=map(_example, found.examples.rows()),
    )


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/regions/carry-over")
def carry_over_region(
    service: Service, request: admin_pb2.CarryOverRegionRequest, call: Call
) -> admin_pb2.CarryOverRegionResponse:
    """Propose a region for another version."""
    found = _as_caller(service, call).carry_over(
        request.model,
        request.name,
        request.version,
        request.to_version,
        save=request.save,
        author=request.author,
        comment=request.comment,
    )
    return admin_pb2.CarryOverRegionResponse(
        **found.counts(),
        region=_proposed_region(found.region, found.version) if found.saved is None else _listed_region(found.saved),
        is_saved=found.saved is not None,
    )


@operation(ADMIN, "admin", "store", "PUT /v1/models/{model}/regions/{name}/mode")
def set_region_mode(
    service: Service, request: admin_pb2.SetRegionModeRequest, call: Call
) -> admin_pb2.SetRegionModeResponse:
    """Enforce a region, or not."""
    if request.mode not in (_SHADOW, _ENFORCE):
        raise RequestError("mode: must be SHADOW or ENFORCE", field="mode")
    changed = _as_caller(service, call).set_mode(
        request.model,
        request.version,
        request.name,
        enforce=request.mode == _ENFORCE,
        author=request.author,
        comment=request.comment,
    )
    return admin_pb2.SetRegionModeResponse(region=_listed_region(changed))


@operation(ADMIN, "admin", "store", "DELETE /v1/models/{model}/regions/{name}")
def remove_region(
    service: Service, request: admin_pb2.RemoveRegionRequest, call: Call
) -> admin_pb2.RemoveRegionResponse:
    """Remove a region."""
    removed = _as_caller(service, call).remove(
        request.model, request.version, request.name, author=request.author, comment=request.comment
    )
    return admin_pb2.RemoveRegionResponse(region=_listed_region(removed))


def _as_caller(service: Service, call: Call) -> Regions:
    return service.control.on_behalf_of(call.caller.name).regions


def _corners(corners: Sequence[admin_pb2.Corner]) -> list[tuple[float, float]]:
    if len(corners) > MAX_CORNERS + 1:
        # Checked before the corners are converted.
        raise RequestError(f"polygon: has {len(corners):,} corners; the limit is {MAX_CORNERS:,}", field="polygon")
    return [(corner.x, corner.y) for corner in corners]


def _proposed_region(region: Region, version: str) -> admin_pb2.Region:
    return admin_pb2.Region(
        name=region.name,
        version=version,
        polygon=[admin_pb2.Corner(x=x, y=y) for x, y in region.polygon],
        mode=_SHADOW,
        expires_at=timestamp(region.expires_ms) if region.expires_ms else None,
    )


def _listed_region(listed: ListedRegion) -> admin_pb2.Region:
    saved = listed.saved
    message = _proposed_region(saved.region, listed.version)
    message.mode = _ENFORCE if saved.is_enforced else _SHADOW
    message.author, message.comment, message.is_from_bundle = saved.author, saved.comment, listed.is_from_bundle
    if saved.saved_ms:
        message.saved_at.CopyFrom(timestamp(saved.saved_ms))
    return message


def _change(change: Change) -> admin_pb2.RegionChange:
    return admin_pb2.RegionChange(
        changed_at=timestamp(change.changed_ms),
        version=change.payload["version"],
        name=change.payload["region"],
        action=change.payload["action"],
        author=change.authors,
        comment=change.comment,
    )


def _accuracy(share: Share) -> admin_pb2.Accuracy:
    return admin_pb2.Accuracy(rows=share.rows, correct=share.right, low=share.low, high=share.high)


def _example(point: dict[str, Any]) -> admin_pb2.RegionExample:
    return admin_pb2.RegionExample(
        **{name: point[name] for name in ("prediction_id", "x", "y", "is_accepted")},
        predicted=point["predicted"] if point["predicted"] >= 0 else None,
        label=point["label"] if point["label"] >= 0 else None,
        probabilities=point["probs"].tolist(),
        received_at=timestamp(point["received_ms"]),
    )
