"""What an export reads: hours that have points, how many points and labels each has, and the points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import func, select

from darksight_service.store.engine import reading
from darksight_service.store.ids import MINUTE_MS, first_id, id_ms
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.read.point_table import MAX_PAGE, PointQueries
from darksight_service.store.tables import bundle, model, outcome, outcome_point, point, rollup, tag

__all__ = ["HOUR_MS", "Hour", "HourQueries"]

HOUR_MS = 60 * MINUTE_MS

# Bounds the weights of labels, so that their sum has less than 64 bits.
_MODULUS = 1_000_003


class Hour(NamedTuple):
    """An hour by its number since 1970, its points and labels, and a number that changes when a label is corrected."""

    number: int
    points: int
    labels: int
    revision: int


class HourQueries(PointQueries):
    """What an export reads."""

    def model_names(self) -> list[str]:
        """All models that have points or outcomes."""
        with reading(self._engine) as connection:
            return list(connection.scalars(select(model.c.name).order_by(model.c.name)))

    def bundle_classes(self, name: str) -> dict[str, list[str]]:
        """Class names by version of a model; of none if they are not known."""
        query = select(bundle.c.version, bundle.c.class_names).join(model).where(model.c.name == name)
        with reading(self._engine) as connection:
            return {version: names or [] for version, names in connection.execute(query)}

    def tag_keys(self, name: str) -> list[str]:
        """The keys of a model's tags, sorted."""
        query = select(tag.c.key).distinct().join(model).where(model.c.name == name).order_by(tag.c.key)
        with reading(self._engine) as connection:
            return list(connection.scalars(query))

    def stored_hours(self, name: str, *, since_ms: int = 0) -> list[Hour]:
        """The hours since a time from which points are stored, oldest first, those of shadow versions included."""
        bundles = self._names.known(name, None)
        minutes = HOUR_MS // MINUTE_MS
        with reading(self._engine) as connection:
            first = connection.scalar(select(point.c.id).order_by(point.c.id).limit(1))
            if first is None:
                return []
            oldest = max(since_ms, id_ms(first)) // HOUR_MS
            number = (rollup.c.minute // minutes).label("hour")
            counts = (
                select(number, func.sum(rollup.c.points))
                .where(rollup.c.bundle_id.in_(list(bundles)), rollup.c.minute >= oldest * minutes)
                .group_by(number)
                .order_by(number)
            )
            found = [(int(hour), int(points)) for hour, points in connection.execute(counts)]
            # Weighted, so that two labels that are exchanged change it too.
            revision = func.coalesce(func.sum((outcome.c.id % _MODULUS) * (outcome.c.label + 1)), 0)
            labels = select(func.count(), revision).select_from(outcome_point.join(outcome).join(model))

            def labelled(hour: int) -> tuple[int, int]:
                start, end = first_id(hour * HOUR_MS), first_id((hour + 1) * HOUR_MS)
                within = (model.c.name == name, outcome_point.c.point_id >= start, outcome_point.c.point_id < end)
                count, number = connection.execute(labels.where(*within)).one()
                return int(count), int(number)

            return [Hour(hour, points, *labelled(hour)) for hour, points in found]

    def points_of_hour(self, name: str, hour: int) -> Iterator[PointTable]:
        """All points of an hour in parts, newest first, then those of shadow versions."""
        for is_shadow in (False, True):
            wanted = PointFilter(name, None, hour * HOUR_MS, (hour + 1) * HOUR_MS, is_shadow=is_shadow)
            token = ""
            while True:
                page = self.list_points(wanted, page_size=MAX_PAGE, page_token=token)
                if len(page.points):
                    yield page.points
                token = page.next_token
                if not token:
                    break
