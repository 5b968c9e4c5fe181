"""Operations of the service that pages call: with a session in place of a token, and on a store in place of a spool."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.responses import Response

from darksight_service.control.accuracy_file import AccuracyFile
from darksight_service.control.tokens import TokenFile
from darksight_service.http.app import Answer
from darksight_service.http.explorer.endpoint import Sources
from darksight_service.http.messages import MessageAnswer
from darksight_service.http.operations import BoundOperation
from darksight_service.http.requests import HttpCall, Request
from darksight_service.ingest.records import decode
from darksight_service.operations.callers import Callers
from darksight_service.operations.operation import Operation, Service
from darksight_service.operations.table import OPERATIONS
from darksight_service.scoring.service import ScoringService
from darksight_service.store.points import OutcomeBatch

__all__ = ["PAGE_OPERATIONS", "operation_routes"]

PAGE_OPERATIONS: tuple[Operation, ...] = tuple(
    OPERATIONS[name]
    for name in (
        "ReportOutcomes",
        "ListRegions",
        "SaveRegion",
        "PreviewRegion",
        "CarryOverRegion",
        "SetRegionMode",
        "RemoveRegion",
    )
)
"""What the review page and the map call."""


class _StoreRecorder:
    """Writes outcomes to the store at once, so that the next request counts them.

    While the database is unavailable a label is refused, and the page retries. A label that is sent twice is stored
    once.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def append(self, payload: bytes) -> bool:
        """Store a record; raises if that fails."""
        batch = decode(payload)
        assert isinstance(batch, OutcomeBatch)
        self._sources.store().insert([batch])
        return True


def operation_routes(sources: Sources, tokens: TokenFile | None) -> Iterator[tuple[str, Answer, str]]:
    """Routes of the operations, what answers them, and the scope that they need."""
    service = Service(
        ScoringService(sources.registry, _StoreRecorder(sources), sources.registry.clock),
        sources.control,
        sources.store,
        AccuracyFile(sources.settings.data_dir / "accuracy.json"),
        sources.counts,
    )
    callers = Callers(tokens, counts=sources.counts)
    for operation in PAGE_OPERATIONS:
        run = BoundOperation(operation, service, callers)
        for route in operation.routes:
            yield route, _refreshed(MessageAnswer(route, run), sources), operation.scope


def _refreshed(answer: Answer, sources: Sources) -> Answer:
    def refresh_and_answer(request: Request, call: HttpCall) -> Response:
        sources.registry.refresh()
        return answer(request, call)

    return refresh_and_answer
