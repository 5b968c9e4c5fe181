"""Endpoints of regions, on the map page: previewed, saved, enforced, carried over; `control.regions` does it all."""

from __future__ import annotations

from typing import Any

from darksight_service.control.regions import CarryOver, ListedRegion, Preview
from darksight_service.errors import RequestError
from darksight_service.explorer.endpoint import Answer, Call, Endpoint, Sources

__all__ = ["endpoints"]


def endpoints(sources: Sources) -> list[Endpoint]:
    """All paths under `/api/regions`; a preview is a POST because its polygon may be long, and changes nothing."""
    regions = sources.control.regions

    def listed(call: Call) -> Answer:
        return {"regions": [_region(each) for each in regions.listed(call.text("model"))]}

    def preview(call: Call) -> Answer:
        body = call.body()
        name, polygon = _text(body, "name", ""), _polygon(body) if "polygon" in body else ()
        return _preview(regions.preview(_text(body, "model"), _text(body, "version", ""), name=name, polygon=polygon))

    def save(call: Call) -> Answer:
        body = call.body()
        saved = regions.save(
            _text(body, "model"),
            _text(body, "version"),
            _text(body, "name"),
            _polygon(body),
            expires_ms=_integer(body, "expires_ms"),
            author=call.author,
            comment=_text(body, "comment", ""),
        )
        return _region(saved)

    def set_mode(call: Call) -> Answer:
        body = call.body()
        names = (_text(body, name) for name in ("model", "version", "name"))
        return _region(regions.set_mode(*names, enforce=body.get("enforce") is True, author=call.author))

    def remove(call: Call) -> Answer:
        body = call.body()
        names = (_text(body, name) for name in ("model", "version", "name"))
        return _region(regions.remove(*names, author=call.author))

    def carry(call: Call) -> Answer:
        body = call.body()
        names = (_text(body, name) for name in ("model", "name", "version", "to_version"))
        return _carried(regions.carry_over(*names))

    return [
        Endpoint("GET", "/api/regions", "read", listed),
        Endpoint("POST", "/api/regions/preview", "read", preview),
        Endpoint("POST", "/api/regions/carry", "read", carry),
        Endpoint("POST", "/api/regions/save", "admin", save),
        Endpoint("POST", "/api/regions/mode", "admin", set_mode),
        Endpoint("POST", "/api/regions/remove", "admin", remove),
    ]


def _region(found: ListedRegion) -> dict[str, Any]:
    saved = found.saved
    return {
        "version": found.version,
        "name": saved.region.name,
        "polygon": [list(corner) for corner in saved.region.polygon],
        "is_enforced": saved.is_enforced,
        "is_from_bundle": found.is_from_bundle,
        "author": saved.author,
        "saved_ms": saved.saved_ms,
        "expires_ms": saved.region.expires_ms,
    }


def _preview(found: Preview) -> dict[str, Any]:
    return {
        **found.counts(),
        **{name: share.as_dict() for name, share in found.shares().items()},
        "accepted_share": found.accepted_share,
    }


def _carried(found: CarryOver) -> dict[str, Any]:
    return {
        **found.counts(),
        "polygon": [list(corner) for corner in found.region.polygon],
        "expires_ms": found.region.expires_ms,
    }


def _text(body: dict[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise RequestError(f"{name}: must be a text", field=name)
    return value


def _integer(body: dict[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name}: must be a whole number", field=name)
    return value


def _polygon(body: dict[str, Any]) -> list[tuple[float, float]]:
    try:
        return [(float(x), float(y)) for x, y in body["polygon"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RequestError("polygon: must be a list of corners [x, y]", field="polygon") from None
