"""Parts of a map where an analyst refuses: added, listed, removed, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, or_, select

from darksight_core.errors import ConfigError
from darksight_service.errors import NotFoundError
from darksight_service.store.engine import reading, writing
from darksight_service.store.tables import bundle, model, region

__all__ = ["MODES", "Region", "add_region", "list_regions", "remove_region"]

MODES = ("shadow", "enforce")


@dataclass(frozen=True, slots=True)
class Region:
    """A polygon on the map of one bundle; `expires_ms` and `removed_ms` are 0 if that never happens or has not yet."""

    id: int
    model: str
    version: str
    name: str
    polygon: tuple[tuple[float, float], ...]
    mode: str
    author: str
    created_ms: int
    expires_ms: int
    removed_ms: int


def add_region(
    engine: Engine,
    bundle_id: int,
    *,
    name: str,
    polygon: Sequence[tuple[float, float]],
    mode: str,
    author: str,
    expires_ms: int,
    now_ms: int,
) -> int:
    """Add a region and return its number."""
    if mode not in MODES:
        raise ConfigError(f"a region is one of {', '.join(MODES)}, not {mode!r}")
    if len(polygon) < 3:
        raise ConfigError(f"a polygon has three corners or more, not {len(polygon)}")
    values = {
        "bundle_id": bundle_id,
        "name": name,
        "polygon": [[float(x), float(y)] for x, y in polygon],
        "mode": mode,
        "author": author,
        "created_at": now_ms,
        "expires_at": expires_ms or None,
    }
    with writing(engine) as connection:
        number = connection.scalar(region.insert().values(**values).returning(region.c.id))
        assert number is not None
        return int(number)


def list_regions(
    engine: Engine, name: str, version: str | None, *, now_ms: int, include_past: bool = False
) -> list[Region]:
    """Regions of a model, or of one version, that are in force; with `include_past` also those that were."""
    query = (
        select(region, bundle.c.version)
        .join(bundle, bundle.c.id == region.c.bundle_id)
        .join(model, model.c.id == bundle.c.model_id)
        .where(model.c.name == name)
        .order_by(region.c.id)
    )
    if version is not None:
        query = query.where(bundle.c.version == version)
    if not include_past:
        query = query.where(
            region.c.removed_at.is_(None), or_(region.c.expires_at.is_(None), region.c.expires_at > now_ms)
        )
    with reading(engine) as connection:
        return [_region(row, name) for row in connection.execute(query)]


def remove_region(engine: Engine, number: int, *, now_ms: int) -> None:
    """End a region; NotFoundError if it is not in force."""
    query = region.update().where(region.c.id == number, region.c.removed_at.is_(None)).values(removed_at=now_ms)
    with writing(engine) as connection:
        if not connection.execute(query).rowcount:
            raise NotFoundError(f"there is no region {number}", region=number)


def _region(row: Any, name: str) -> Region:
    polygon = tuple((float(x), float(y)) for x, y in row.polygon)
    return Region(
        row.id, name, row.version, row.name, polygon, row.mode, row.author, row.created_at, row.expires_at or 0,
        row.removed_at or 0,
    )  # fmt: skip
