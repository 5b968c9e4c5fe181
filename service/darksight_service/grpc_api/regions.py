"""Handlers of AdminService for regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from darksight_client.stubs.darksight.v1 import admin_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from darksight_core.map.regions import MAX_CORNERS, Region
from darksight_service.control.regions import ListedRegion, Regions
from darksight_service.errors import RequestError
from darksight_service.grpc_api.scoring import parse
from darksight_service.grpc_api.timestamps import milliseconds, timestamp
from darksight_service.store.audit import Change
from darksight_service.store.read.live_accuracy import Share

__all__ = ["RegionCalls"]

_SHADOW, _ENFORCE = admin_pb2.REGION_MODE_SHADOW, admin_pb2.REGION_MODE_ENFORCE


class RegionCalls:
    """Handlers for regions. Each method handles the RPC of its name.

    Parameters
    ----------
    regions
        Reads regions.
    as_caller
        Makes changes in the name of the caller.
    """

    def __init__(self, regions: Regions, as_caller: Callable[[grpc.ServicerContext], Regions]) -> None:
        self._regions = regions
        self._as_caller = as_caller

    def list_regions(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ListRegions."""
        request = parse(admin_pb2.ListRegionsRequest, data)
        response = admin_pb2.ListRegionsResponse(
            regions=[_message(each) for each in self._regions.listed(request.model, request.version)],
            history=map(_change, self._regions.history(request.model) if request.include_history else ()),
        )
        return response.SerializeToString()

    def preview_region(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """PreviewRegion."""
        request = parse(admin_pb2.PreviewRegionRequest, data)
        found = self._regions.preview(
            request.model,
            request.version,
            name=request.name,
            polygon=_corners(request.polygon),
            since_ms=_ms(request, "since"),
            until_ms=_ms(request, "until"),
            examples=request.examples,
        )
        response = admin_pb2.PreviewRegionResponse(
            reference_points=found.reference_points,
            reference_inside=found.reference_inside,
            reference_accuracy=_accuracy(found.reference_accuracy),
            examined=found.examined,
            since=timestamp(found.since_ms) if found.examined else None,
            accepted=found.accepted,
            inside=found.inside,
            inside_accepted=found.inside_accepted,
            inside_rejected=found.inside_rejected,
            accuracy=_accuracy(found.accuracy),
            accepted_accuracy=_accuracy(found.accepted_accuracy),
            new_accuracy=_accuracy(found.new_accuracy),
            examples=[_example(point) for point in found.examples.rows()],
        )
        return response.SerializeToString()

    def save_region(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """SaveRegion."""
        request = parse(admin_pb2.SaveRegionRequest, data)
        saved = self._as_caller(context).save(
            request.model,
            request.version,
            request.name,
            _corners(request.polygon),
            expires_ms=_ms(request, "expires_at"),
            author=request.author,
            comment=request.comment,
        )
        return admin_pb2.SaveRegionResponse(region=_message(saved)).SerializeToString()

    def set_region_mode(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """SetRegionMode."""
        request = parse(admin_pb2.SetRegionModeRequest, data)
        if request.mode not in (_SHADOW, _ENFORCE):
            raise RequestError("mode: must be SHADOW or ENFORCE", field="mode")
        changed = self._as_caller(context).set_mode(
            request.model,
            request.version,
            request.name,
            enforce=request.mode == _ENFORCE,
            author=request.author,
            comment=request.comment,
        )
        return admin_pb2.SetRegionModeResponse(region=_message(changed)).SerializeToString()

    def remove_region(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """RemoveRegion."""
        request = parse(admin_pb2.RemoveRegionRequest, data)
        removed = self._as_caller(context).remove(
            request.model, request.version, request.name, author=request.author, comment=request.comment
        )
        return admin_pb2.RemoveRegionResponse(region=_message(removed)).SerializeToString()

    def carry_over_region(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """CarryOverRegion."""
        request = parse(admin_pb2.CarryOverRegionRequest, data)
        found = self._as_caller(context).carry_over(
            request.model,
            request.name,
            request.version,
            request.to_version,
            save=request.save,
            author=request.author,
            comment=request.comment,
        )
        response = admin_pb2.CarryOverRegionResponse(
            region=_polygon(found.region, found.version) if found.saved is None else _message(found.saved),
            is_same_map=found.is_same_map,
            stored_rows=found.stored_rows,
            reference_rows=found.reference_rows,
            rows_inside=found.rows_inside,
            other_rows=found.other_rows,
            other_rows_inside=found.other_rows_inside,
            is_saved=found.saved is not None,
        )
        return response.SerializeToString()


def _corners(corners: Sequence[admin_pb2.Corner]) -> list[tuple[float, float]]:
    if len(corners) > MAX_CORNERS + 1:
        # Checked before the corners are converted.
        raise RequestError(f"polygon: has {len(corners):,} corners; the limit is {MAX_CORNERS:,}", field="polygon")
    return [(corner.x, corner.y) for corner in corners]


def _ms(request: admin_pb2.PreviewRegionRequest | admin_pb2.SaveRegionRequest, field: str) -> int:
    time: Timestamp = getattr(request, field)
    return milliseconds(time, field) if request.HasField(field) else 0


def _polygon(region: Region, version: str) -> admin_pb2.Region:
    return admin_pb2.Region(
        name=region.name,
        version=version,
        polygon=[admin_pb2.Corner(x=x, y=y) for x, y in region.polygon],
        mode=_SHADOW,
        expires_at=timestamp(region.expires_ms) if region.expires_ms else None,
    )


def _message(listed: ListedRegion) -> admin_pb2.Region:
    saved = listed.saved
    message = _polygon(saved.region, listed.version)
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
