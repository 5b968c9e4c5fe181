"""The calls in the request path and about stored points: their arguments, their steps, and how answers are read.

Each is a generator of steps, see `replicas`, and stands here once: `Client.score` and `AsyncClient.score` are
`Calls.score`, run by a loop for threads and by one for asyncio. `darksight_client.admin` has the operator's calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from numpy.typing import ArrayLike

from darksight_client.columns import read_response
from darksight_client.errors import InvalidRequest, ServerError
from darksight_client.replicas import CallSteps, Replicas
from darksight_client.requests import Part, Time, as_timestamp, outcome_requests, score_parts
from darksight_client.results import Decision, Gated, Point, Reason, Scored, joined, read_point, read_scored
from darksight_client.stubs.darksight.v1 import monitor_pb2

__all__ = ["Calls", "points_request"]

_MONITOR = "/darksight.v1.MonitorService/"
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = 1


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The calls of one client.

    Parameters
    ----------
    replicas
        Where they go.
    timeout_seconds
        For a call that says nothing else.
    max_message_bytes
        Largest request and, for Score, largest answer.
    """

    replicas: Replicas
    timeout_seconds: float
    max_message_bytes: int

    def unary(self, method: str, request: Message, answer: Any, *, is_repeatable: bool = True) -> CallSteps[Any]:
        """An answer as a message."""
        data = request.SerializeToString()
        reply = yield from self.replicas.call(method, data, self.timeout_seconds, is_repeatable=is_repeatable)
        try:
            return answer.FromString(reply)
        except DecodeError:
            raise ServerError(f"the answer to {method} cannot be read; is it a DarkSight server?") from None

    def score(
        self,
        model: str,
        probs: ArrayLike,
        *,
        version: str = "",
        logits: bool = False,
        prediction_ids: Sequence[str] | None = None,
        event_time: Time | None = None,
        partial_ok: bool = False,
        timeout_seconds: float | None = None,
    ) -> CallSteps[Scored]:
        """Score a batch of predictions and say which may be acted on.

        A batch too large for one message goes in several calls, one after the other, all scored by the bundle that
        answered the first. If one of them fails, so does this call, and the rows before it are stored already.

        Parameters
        ----------
        model
            Name of the watched classifier.
        probs
            Its probabilities, (n, K), or (K,) for one row.
        version
            Bundle to score with: its sha256, or the first 12 digits or more. Default: the active one.
        logits
            Whether `probs` are logits.
        prediction_ids
            Your names of the predictions, by which `report` finds them again; default: see `Scored.prediction_ids`.
        event_time
            When the predictions were made; default: now.
        partial_ok
            Whether bad rows get the reason INVALID. By default the first one raises `InvalidRequest`.
        timeout_seconds
            For everything together; default: that of the client.
        """
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = self.replicas.clock() + seconds
        parts = score_parts(
            model,
            probs,
            max_message_bytes=self.max_message_bytes,
            version=version,
            logits=logits,
            prediction_ids=prediction_ids,
            event_time=event_time,
            partial_ok=partial_ok,
        )
        scored: list[Scored] = []
        for part in parts:
            if scored:
                part.request.version = scored[0].version
            scored.append((yield from self._score_part(part, deadline - self.replicas.clock())))
        return joined(scored)

    def _score_part(self, part: Part, seconds: float) -> CallSteps[Scored]:
        try:
            reply = yield from self.replicas.call(_MONITOR + "Score", part.request.SerializeToString(), seconds)
        except InvalidRequest as error:
            if error.row is not None:
                error.row += part.start
            raise
        try:
            return read_scored(*read_response(reply, part.rows), part.names)
        except ValueError as error:
            raise ServerError(f"the server answered with {error}; is it a DarkSight server?") from None

    def gate(
        self,
        model: str,
        row: ArrayLike,
        *,
        version: str = "",
        logits: bool = False,
        prediction_id: str | None = None,
        event_time: Time | None = None,
        timeout_seconds: float | None = None,
    ) -> CallSteps[Gated]:
        """Say of one prediction whether it may be acted on; a row of bad values may not, for the reason INVALID.

        Parameters
        ----------
        model, version, logits, event_time, timeout_seconds
            As for `score`.
        row
            Probabilities, (K,).
        prediction_id
            Your name of the prediction.
        """
        scored = yield from self.score(
            model,
            row,
            version=version,
            logits=logits,
            prediction_ids=None if prediction_id is None else [prediction_id],
            event_time=event_time,
            partial_ok=True,
            timeout_seconds=timeout_seconds,
        )
        if len(scored) != 1:
            raise InvalidRequest(f"{len(scored)} rows; gate() takes one, score() takes many.")
        return scored[0]

    def report(
        self, model: str, prediction_ids: Sequence[str], labels: Sequence[Any], observed_at: Time | None = None
    ) -> CallSteps[int]:
        """Tell which classes were right; returns how many of these outcomes are on the server's disk.

        Parameters
        ----------
        model
            Name of the watched classifier.
        prediction_ids
            Of the predictions, in any order, scored before or not yet.
        labels
            The right class of each, by number or by name.
        observed_at
            When they became known; default: now.
        """
        recorded = 0
        for request in outcome_requests(model, prediction_ids, labels, observed_at):
            answer = yield from self.unary(_MONITOR + "ReportOutcomes", request, monitor_pb2.ReportOutcomesResponse)
            recorded += answer.recorded
        return recorded

    def page(self, request: Any, token: str) -> CallSteps[tuple[list[Point], str]]:
        """A page of stored points, and the token of the next one or ""."""
        request.page_token = token
        answer = yield from self.unary(_MONITOR + "ListPoints", request, monitor_pb2.ListPointsResponse)
        return [read_point(point) for point in answer.points], answer.next_page_token

    def health(self, model: str = "") -> CallSteps[bool]:
        """Whether a server takes calls, for a model if one is named; raises `UnknownModel` if it does not know it."""
        # A text and a number, each as field 1: on the wire HealthCheckRequest and HealthCheckResponse are these
        # wrappers, and the client needs no library for two fields.
        answer = yield from self.unary(_HEALTH, StringValue(value=model), Int32Value)
        return bool(answer.value == _SERVING)


def points_request(
    model: str,
    *,
    version: str = "",
    since: Time | None = None,
    until: Time | None = None,
    decisions: Sequence[Decision] = (),
    reasons: Sequence[Reason] = (),
    predicted: Sequence[int] = (),
    is_shadow: bool = False,
    page_size: int = 500,
) -> Any:
    """The request for the first page of stored points, newest first.

    Parameters
    ----------
    model, version
        Of which classifier and, if given, bundle.
    since, until
        Received at or after, and before.
    decisions, reasons, predicted
        Only these, if any is given.
    is_shadow
        Whether to list what a shadow version said, instead of what was answered.
    page_size
        Points that are fetched at a time.
    """
    return monitor_pb2.ListPointsRequest(
        model=model,
        version=version,
        since=as_timestamp(since),
        until=as_timestamp(until),
        decisions=[monitor_pb2.Decision.Name(decision) for decision in decisions],
        reasons=[monitor_pb2.Reason.Name(reason) for reason in reasons],
        predicted=predicted,
        is_shadow=is_shadow,
        page_size=page_size,
    )
