"""Endpoints of the points page: a table with filters, one point by its name, and a CSV file of what is shown."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from darksight_core.scored import Decision, Reason
from darksight_service.errors import RequestError
from darksight_service.explorer.endpoint import Answer, Call, Download, Endpoint, Sources
from darksight_service.explorer.spans import DAY_MS, plain, read_span

if TYPE_CHECKING:
    from darksight_service.store import PointFilter, StoredPoint

__all__ = ["CSV_ROWS", "endpoints"]

CSV_ROWS = 100_000
"""Most rows of a CSV file."""

_PAGE = 2_000
_NUMBERS = ("x", "y", "log_density", "log_kde", "outlier_score", "p_value", "confidence", "top")


def endpoints(sources: Sources) -> list[Endpoint]:
    """`/api/points`, `/api/points/find` and `/api/points.csv`."""

    def page(call: Call) -> Answer:
        wanted = _filter(sources, call)
        size = call.integer("page_size", 50, low=1, high=500)
        found = sources.store().list_points(wanted, page_size=size, page_token=call.text("page_token", ""))
        names = _class_names(sources, wanted.model)
        return {
            "class_names": names,
            "points": [_row(each) for each in found.points],
            "next_token": found.next_token,
            "since_ms": wanted.since_ms,
            "until_ms": wanted.until_ms,
        }

    def find(call: Call) -> Answer:
        model = call.text("model")
        found = sources.store().find_points(model, call.text("name").strip())
        return {"class_names": _class_names(sources, model), "points": [_row(each, whole=True) for each in found]}

    def export(call: Call) -> Answer:
        wanted = _filter(sources, call)
        names = _class_names(sources, wanted.model)
        limit = call.integer("limit", CSV_ROWS, low=1, high=CSV_ROWS)
        # Asked for before the first byte leaves, so that an error is still an answer.
        first = sources.store().list_points(wanted, page_size=min(_PAGE, limit))

        def parts() -> Iterator[bytes]:
            yield _csv([_HEADER])
            found, left = first, limit
            while True:
                yield _csv([_cells(each, names) for each in found.points])
                left -= len(found.points)
                if not found.next_token or left <= 0:
                    return
                found = sources.store().list_points(wanted, page_size=min(_PAGE, left), page_token=found.next_token)

        return Download(f"{wanted.model}-points.csv", "text/csv; charset=utf-8", parts())

    return [
        Endpoint("GET", "/api/points", "read", page),
        Endpoint("GET", "/api/points/find", "read", find),
        Endpoint("GET", "/api/points.csv", "read", export),
    ]


def _filter(sources: Sources, call: Call) -> PointFilter:
    from darksight_service.store import PointFilter

    since, until = read_span(call, default_ms=7 * DAY_MS)
    model = call.text("model")
    version = call.text("version", "")
    return PointFilter(
        model,
        sources.registry.get(model, version).version if version else None,
        since_ms=since,
        until_ms=until,
        decisions=_members(call, "decisions", Decision),
        reasons=_members(call, "reasons", Reason),
        predicted=call.integers("classes"),
        is_shadow=bool(call.integer("shadow", 0, high=1)),
    )


def _members(call: Call, name: str, kind: type[Decision] | type[Reason]) -> tuple[int, ...]:
    """Numbers of the members that a parameter names, with commas between."""
    names = [each for each in call.text(name, "").upper().split(",") if each]
    unknown = [each for each in names if each not in kind.__members__]
    if unknown:
        known = ", ".join(each.lower() for each in kind.__members__)
        raise RequestError(f"{name}: {unknown[0][:40].lower()!r} is none of {known}", field=name)
    return tuple(int(kind[each]) for each in names)


def _class_names(sources: Sources, model: str) -> list[str]:
    return list(sources.registry.get(model).bundle.class_names)


def _row(point: StoredPoint, *, whole: bool = False) -> dict[str, Any]:
    row = {
        "id": point.id,
        "prediction_id": point.prediction_id,
        "version": point.version,
        "is_shadow": point.is_shadow,
        "received_ms": point.received_ms,
        "decision": Decision(point.decision).name,
        "reason": Reason(point.reason).name,
        "predicted": point.predicted,
        "label": point.label,
        **{name: getattr(point, name) for name in _NUMBERS},
    }
    return plain({**row, "probs": point.probs} if whole else row)  # type: ignore[no-any-return]  # JSON values


_HEADER = (
    "prediction_id", "received_at", "version", "decision", "reason", "predicted", "label", *_NUMBERS, "point_id",
)  # fmt: skip


def _cells(point: StoredPoint, names: Sequence[str]) -> list[Any]:
    received = datetime.datetime.fromtimestamp(point.received_ms / 1000, datetime.UTC)
    numbers = [getattr(point, name) for name in _NUMBERS]
    return [
        _tame(point.prediction_id),
        received.isoformat(timespec="milliseconds"),
        point.version,
        Decision(point.decision).name,
        Reason(point.reason).name,
        _tame(_class_name(point.predicted, names)),
        _tame(_class_name(point.label, names)),
        *("" if number != number else f"{number:.7g}" for number in numbers),
        point.id,
    ]


def _class_name(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else ""


def _tame(text: str) -> str:
    """Text of others that a spreadsheet would take for a formula, as text."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue().encode()
