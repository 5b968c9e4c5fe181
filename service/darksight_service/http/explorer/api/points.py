"""Endpoints of the points page: a filtered table, one point by its prediction id, and a CSV file."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, StringConstraints

from darksight_core.rows.schema import Column, Decision, Reason, stored_name
from darksight_service.http.explorer.answers import Answer, Download
from darksight_service.http.explorer.columns import LABELS, point_fields
from darksight_service.http.explorer.endpoint import Call, Endpoint, Sources
from darksight_service.http.explorer.inputs import DAY_MS, ClassNumbers, ModelInput, SpanInput, TagPairs, members
from darksight_service.scoring.files.csv_text import csv_text
from darksight_service.store.points import LISTED_COLUMNS, PointFilter

__all__ = ["CSV_ROWS", "endpoints"]

CSV_ROWS = 100_000
"""Maximum number of rows in a CSV file."""

_PAGE = 2_000


class _FilterInput(SpanInput):
    default_span_ms: ClassVar[int] = 7 * DAY_MS

    decisions: Annotated[tuple[Decision, ...], BeforeValidator(partial(members, Decision))] = ()
    reasons: Annotated[tuple[Reason, ...], BeforeValidator(partial(members, Reason))] = ()
    classes: ClassNumbers = ()
    shadow: bool = False
    tags: TagPairs = ()


class _PageInput(_FilterInput):
    page_size: int = Field(50, ge=1, le=500)
    page_token: str = ""


class _CsvInput(_FilterInput):
    limit: int = Field(CSV_ROWS, ge=1, le=CSV_ROWS)


class _FindInput(ModelInput):
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def endpoints(sources: Sources) -> list[Endpoint[Any]]:
    """`/api/points`, `/api/points/find` and `/api/points.csv`."""

    def page(call: Call[_PageInput]) -> Answer:
        given = call.input
        found = sources.store().list_points(
            _filter(sources, given), page_size=given.page_size, page_token=given.page_token
        )
        return {
            "class_names": _class_names(sources, given.model),
            "labels": LABELS,
            "points": [point_fields(each) for each in found.points.rows()],
            "next_token": found.next_token,
            "since_ms": given.start_ms,
            "until_ms": given.until_ms,
        }

    def find(call: Call[_FindInput]) -> Answer:
        found = sources.store().points_by_name(call.input.model, call.input.name)
        points = [{**point_fields(each), "probs": each["probs"]} for each in found.rows()]
        return {"class_names": _class_names(sources, call.input.model), "labels": LABELS, "points": points}

    def export(call: Call[_CsvInput]) -> Answer:
        wanted, limit = _filter(sources, call.input), call.input.limit
        names = _class_names(sources, wanted.model)
        # Read before the response starts, so that an error still has a status.
        first = sources.store().list_points(wanted, page_size=min(_PAGE, limit))

        def parts() -> Iterator[bytes]:
            yield _csv([_HEADER])
            found, left = first, limit
            while True:
                yield _csv([_cells(each, names) for each in found.points.rows()])
                left -= len(found.points)
                if not found.next_token or left <= 0:
                    return
                found = sources.store().list_points(wanted, page_size=min(_PAGE, left), page_token=found.next_token)

        return Download(f"{wanted.model}-points.csv", "text/csv; charset=utf-8", parts())

    return [
        Endpoint("GET", "/api/points", "read", _PageInput, page),
        Endpoint("GET", "/api/points/find", "read", _FindInput, find),
        Endpoint("GET", "/api/points.csv", "read", _CsvInput, export),
    ]


def _filter(sources: Sources, given: _FilterInput) -> PointFilter:
    return PointFilter(
        given.model,
        sources.active_model(given).version if given.version else None,
        since_ms=given.start_ms,
        until_ms=given.until_ms,
        decisions=given.decisions,
        reasons=given.reasons,
        predicted=given.classes,
        is_shadow=given.shadow,
        tags=given.tags,
    )


def _class_names(sources: Sources, model: str) -> tuple[str, ...]:
    return tuple(sources.registry.get(model).bundle.class_names)


_HEADER = (
    "prediction_id", "received_at", "version", "decision", "reason", "predicted", "label", *LISTED_COLUMNS,
    "prediction_set", "point_id", "tags", "trace_id",
)  # fmt: skip


def _cells(point: dict[str, Any], names: Sequence[str]) -> list[Any]:
    received = datetime.datetime.fromtimestamp(point["received_ms"] / 1000, datetime.UTC)
    return [
        csv_text(point["prediction_id"]),
        received.isoformat(timespec="milliseconds"),
        point["version"],
        stored_name(Decision, point["decision"]),
        stored_name(Reason, point["reason"]),
        csv_text(_class_name(point["predicted"], names)),
        csv_text(_class_name(point["label"], names)),
        *(_number(point[name], column) for name, column in LISTED_COLUMNS.items()),
        csv_text("|".join(_class_name(number, names) for number in point["prediction_set"])),
        point["id"],
        # JSON starts with a brace, which no spreadsheet reads as a formula.
        json.dumps(point["tags"]) if point["tags"] else "",
        point["trace_id"],
    ]


def _number(value: float, column: Column) -> str:
    return "" if value != value or value == column.missing else f"{value:.7g}"


def _class_name(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else ""


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue().encode()
