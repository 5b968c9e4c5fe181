"""Rows by day, and those of them that were drawn for the audit, with their labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, func, select

from darksight_core.drift.audit import AuditedRows
from darksight_core.drift.segment_cells import Segment
from darksight_core.drift.urn import audit_numbers
from darksight_core.rows.schema import Reason
from darksight_core.rows.simplex import Floats
from darksight_service.store.engine import reading
from darksight_service.store.ids import DAY_MS, MINUTE_MS, id_ms
from darksight_service.store.points import PointFilter, PointTable
from darksight_service.store.read.point_table import PointQueries
from darksight_service.store.rollups import within
from darksight_service.store.tables import OTHER_CLASSES, detector_state, point, rollup, rollup_tag, tag

__all__ = ["MAX_DRAWN", "AuditQueries", "AuditedGroups"]

MAX_DRAWN = 50_000
"""Drawn rows that are read, the first in the order of labelling."""

_DAYS = 30
_Counts: TypeAlias = tuple[NDArray[np.int64], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class AuditedGroups:
    """Audited rows: all, and those of each predicted class and of each segment; see `AuditedRows`.

    Classes from `OTHER_CLASSES` on are counted as one, and have no group.
    """

    rows: AuditedRows
    classes: dict[int, AuditedRows]
    segments: dict[Segment, AuditedRows]


class AuditQueries(PointQueries):
    """Rows that audit a certificate."""

    def audited_rows(
        self, model: str, version: str, *, start_ms: int, is_accepted: bool = True, with_groups: bool = False
    ) -> AuditedGroups:
        """The scored rows of the last 30 days and those drawn, accepted ones alone unless asked otherwise.

        Rows count from when the evidence started, in Unix milliseconds, or from the oldest minute that retention has
        left whole. Segments are those of accepted rows whose drift is followed, if groups are asked for.
        """
        bundles, now_ms = self._names.known(model, version), self._clock()
        since_ms, until_ms = max(start_ms, (now_ms // DAY_MS - _DAYS + 1) * DAY_MS), now_ms + 1
        with reading(self._engine) as connection:
            since_ms = max(since_ms, _kept_since(connection, bundles))
            first, last = since_ms // DAY_MS, max(now_ms // DAY_MS, since_ms // DAY_MS)
            of_rows, span = rollup.c, within(rollup, bundles, False, since_ms, until_ms)
            covered = [of_rows.predicted >= 0, of_rows.reason != int(Reason.UNSCORED)]
            covered += [of_rows.is_accepted] if is_accepted else []
            day = _day(rollup)
            query = select(day, of_rows.predicted, func.sum(of_rows.points), func.sum(of_rows.chance_sum))
            query = query.where(span, *covered).group_by(day, of_rows.predicted)
            by_class = _by_group(connection.execute(query), first, last)
            by_segment = _segment_counts(connection, bundles, since_ms, until_ms) if with_groups and is_accepted else ()
        wanted = PointFilter(model, version, since_ms=since_ms // MINUTE_MS * MINUTE_MS)
        table, depth = self.drawn_points(wanted, limit=MAX_DRAWN, with_probs=False, with_tags=with_groups)
        if is_accepted:
            table = table.take(table.accepted)
        counts = _zeros(first, last)
        for of_class in by_class.values():
            counts = counts[0] + of_class[0], counts[1] + of_class[1]
        rows = _rows(table, counts, first, start_ms // DAY_MS, depth)
        if not with_groups:
            return AuditedGroups(rows, {}, {})
        classes = {
            number: _group(rows, of_class, table.predicted == number)
            for number, of_class in by_class.items()
            if number < OTHER_CLASSES
        }
        segments = {
            segment: _group(rows, of_segment, _has(table, segment))
            for segment, of_segment in _by_group(by_segment, first, last).items()
        }
        return AuditedGroups(rows, classes, segments)


def _kept_since(connection: Connection, bundles: Iterable[int]) -> int:
    """Start of the first minute whose points are all stored, if retention has deleted some before; else 0."""
    oldest = connection.scalar(select(point.c.id).order_by(point.c.id).limit(1))
    counted = connection.scalar(select(func.min(rollup.c.minute)).where(rollup.c.bundle_id.in_(list(bundles))))
    if oldest is None or counted is None or counted >= id_ms(oldest) // MINUTE_MS:
        return 0
    return (id_ms(oldest) // MINUTE_MS + 1) * MINUTE_MS


def _day(table: Table) -> Any:
    return (table.c.minute - table.c.minute % (DAY_MS // MINUTE_MS)).label("day")


def _segment_counts(connection: Connection, bundles: dict[int, str], since_ms: int, until_ms: int) -> Iterable[Any]:
    of, day = rollup_tag.c, _day(rollup_tag)
    followed = select(detector_state.c.tag_id).where(detector_state.c.bundle_id.in_(list(bundles)))
    query = (
        select(day, tag.c.key, tag.c.value, func.sum(of.audited), func.sum(of.chance_sum))
        .join(tag, tag.c.id == of.tag_id)
        .where(within(rollup_tag, bundles, False, since_ms, until_ms), of.tag_id.in_(followed))
        .group_by(day, tag.c.key, tag.c.value)
    )
    return [(start, (key, value), *sums) for start, key, value, *sums in connection.execute(query)]


def _by_group(found: Iterable[Any], first: int, last: int) -> dict[Any, _Counts]:
    """Numbers of rows and sums of their probabilities of being wrong by group, (days,) each."""
    groups: dict[Any, _Counts] = {}
    for minute, name, rows, chances in found:
        counts = groups.setdefault(name, _zeros(first, last))
        day = min(max(int(minute) * MINUTE_MS // DAY_MS - first, 0), last - first)
        counts[0][day] += int(rows)
        counts[1][day] += float(chances)
    return groups


def _zeros(first: int, last: int) -> _Counts:
    return np.zeros(last - first + 1, dtype=np.int64), np.zeros(last - first + 1)


def _rows(table: PointTable, counts: _Counts, first: int, start: int, depth: float) -> AuditedRows:
    """Rows from the day `first` on, whose evidence started on the day `start`."""
    return AuditedRows(
        first_day=first - start,
        rows=counts[0],
        chance_sums=counts[1],
        day=np.clip(table.id_ms // DAY_MS - first, 0, len(counts[0]) - 1),
        keys=audit_numbers(table.ids) / table.audit_odds,
        chances=table.error_chance,
        odds=table.audit_odds,
        is_labelled=table.is_labelled,
        is_wrong=table.errors,
        depth=depth,
    )


def _group(rows: AuditedRows, counts: _Counts, chosen: NDArray[np.bool_]) -> AuditedRows:
    return replace(rows.take(chosen), rows=counts[0], chance_sums=counts[1])


def _has(table: PointTable, segment: Segment) -> NDArray[np.bool_]:
    """Which points have a tag, (n,)."""
    found: NDArray[np.bool_] = np.array([segment in each for each in table.tag_sets], dtype=np.bool_)[table.tags]
    return found
