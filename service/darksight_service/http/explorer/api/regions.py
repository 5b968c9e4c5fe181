"""Endpoints of regions, on the map page; `control.regions` does the work."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from darksight_service.control.regions import ListedRegion, Regions
from darksight_service.http.explorer.answers import Answer
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import ModelInput, Name, VersionInput

__all__ = ["endpoints"]

_Polygon = Annotated[list[tuple[float, float]], Field(max_length=10_000)]


class _PreviewInput(VersionInput):
    name: str = ""
    polygon: _Polygon = Field(default_factory=list)


class _RegionInput(ModelInput):
    version: Name
    name: Name


class _SaveInput(_RegionInput):
    polygon: _Polygon
    expires_ms: int = 0
    comment: str = ""


class _ModeInput(_RegionInput):
    enforce: bool


class _CarryOverInput(_RegionInput):
    to_version: Name


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """All paths below `/api/regions`; the preview is a POST because its polygon may be long."""
    regions = sources.control.regions

    def as_caller(call: Call[Any]) -> Regions:
        return sources.control.on_behalf_of(call.caller.name).regions

    def listed(call: Call[ModelInput]) -> Answer:
        return {"regions": [_region(each) for each in regions.listed(call.input.model)]}

    def preview(call: Call[_PreviewInput]) -> Answer:
        given = call.input
        found = regions.preview(given.model, given.version, name=given.name, polygon=given.polygon)
        shares = {name: share.as_dict() for name, share in found.shares().items()}
        return {**found.counts(), **shares, "accepted_share": found.accepted_share}

    def carry_over(call: Call[_CarryOverInput]) -> Answer:
        given = call.input
        found = regions.carry_over(given.model, given.name, given.version, given.to_version)
        return {**found.counts(), "polygon": found.region.polygon, "expires_ms": found.region.expires_ms}

    def save(call: Call[_SaveInput]) -> Answer:
        given = call.input
        saved = as_caller(call).save(
            given.model,
            given.version,
            given.name,
            given.polygon,
            expires_ms=given.expires_ms,
            comment=given.comment,
        )
        return _region(saved)

    def set_mode(call: Call[_ModeInput]) -> Answer:
        given = call.input
        found = as_caller(call).set_mode(given.model, given.version, given.name, enforce=given.enforce)
        return _region(found)

    def remove(call: Call[_RegionInput]) -> Answer:
        given = call.input
        return _region(as_caller(call).remove(given.model, given.version, given.name))

    return [
        Endpoint("GET", "/api/regions", "read", ModelInput, listed),
        Endpoint("POST", "/api/regions/preview", "read", _PreviewInput, preview),
        Endpoint("POST", "/api/regions/carry-over", "read", _CarryOverInput, carry_over),
        Endpoint("POST", "/api/regions/save", "admin", _SaveInput, save),
        Endpoint("POST", "/api/regions/mode", "admin", _ModeInput, set_mode),
        Endpoint("POST", "/api/regions/remove", "admin", _RegionInput, remove),
    ]


def _region(found: ListedRegion) -> dict[str, Any]:
    saved = found.saved
    return {
        "version": found.version,
        "name": saved.region.name,
        "polygon": saved.region.polygon,
        "is_enforced": saved.is_enforced,
        "is_from_bundle": found.is_from_bundle,
        "author": saved.author,
        "expires_ms": saved.region.expires_ms,
    }
