"""The operations of the clients: for each its signature, its documentation, its calls and how their responses are read.

A call is added here, with one method. Those with the decorator `unary` are signatures: their arguments are the fields
of the request, and the result is read from the response by its type.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from grpc_health.v1 import health_pb2
from numpy.typing import ArrayLike, NDArray

from darksight_client.declarations import Pages, Rpc, listing, operation, scoring, streaming, unary
from darksight_client.errors import InvalidRequest, ServerError
from darksight_client.requests import (
    Part,
    Tags,
    Time,
    as_one_row,
    as_table,
    as_timestamp,
    outcome_requests,
    score_parts,
)
from darksight_client.results.columns import read_response
from darksight_client.results.messages import read
from darksight_client.results.models import DryRun, EffectivePolicy, Model, Policy, PolicyState
from darksight_client.results.regions import CarriedRegion, Region, RegionChange, RegionPreview
from darksight_client.results.reports import Reported, joined_reports
from darksight_client.results.rows import Decision, Gated, Point, Reason, Scored, joined, read_scored
from darksight_client.streams import Stream, stream_part
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from darksight_client.transport.retries import Steps
from darksight_client.transport.transport import Transport
from darksight_core.rows.partial import TopRows

__all__ = ["Operations"]

_ADMIN: Any = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
_MONITOR: Any = monitor_pb2.DESCRIPTOR.services_by_name["MonitorService"]
_HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
_SCORE = "/darksight.v1.MonitorService/Score"


_CHECK_HEALTH: Rpc[bool] = Rpc(
    _HEALTH, "Check", lambda response: bool(response.status == health_pb2.HealthCheckResponse.SERVING)
)
_REPORT_OUTCOMES: Rpc[Reported] = Rpc(_MONITOR, "ReportOutcomes", lambda response: read(Reported, response))
_LIST_POINTS: Rpc[tuple[tuple[Point, ...], str]] = Rpc(
    _MONITOR, "ListPoints", lambda response: (read(tuple[Point, ...], response.points), response.next_page_token)
)
_GET_MODEL: Rpc[Model] = Rpc(_ADMIN, "GetModel", lambda response: read(Model, response.model))


class Operations(Transport):
    """What `Client` and `AsyncClient` can do."""

    @scoring
    def score(
        self,
        model: str,
        probs: Any,
        *,
        version: str = "",
        logits: bool = False,
        prediction_ids: Sequence[str] | None = None,
        event_time: Time | None = None,
        partial_ok: bool = False,
        batch_id: UUID | str | None = None,
        tags: Tags = (),
        probe: bool = False,
        timeout_seconds: float | None = None,
    ) -> Steps[Any]:
        """Score a batch of predictions and decide which may be acted on.

        A batch that does not fit in one message is split and sent in several calls, all scored by the same version. If
        one of them fails, this call fails; the rows before it are already stored.

        Parameters
        ----------
        model
            Name of the watched classifier.
        probs
            Its probabilities, (n, K), or (K,) for one row. Or a table, such as a data frame of pandas or polars or an
            Arrow table, with a column for each class, in any order: then the result is a table of the same kind. Or
            `TopRows`, of which only the most probable classes are known, such as `adapters.logprobs` makes them.
        version
            sha256 of the bundle, or at least its first 12 digits. Default: the active version.
        logits
            Whether `probs` are logits.
        prediction_ids
            Unique ids of the predictions, for `report`. Default: see `Scored.prediction_ids`.
        event_time
            When the predictions were made. Default: now.
        partial_ok
            Whether invalid rows get the reason INVALID. By default the first one raises `InvalidRequest`.
        batch_id
            Any UUID, or a text of 1 to 64 characters, of a batch that fits one message. A call for the same model with
            an id that was used before, also by another process, is stored once. The time of a UUIDv7, or else
            `event_time`, sorts the points. Default: a new id, which retries of this call keep.
        tags
            Where the predictions come from, such as {"camera": "7"}: one mapping for all rows, or one for each row.
        probe
            Score the rows, and neither store nor count them: for health checks and trials.
        timeout_seconds
            Timeout of the whole call. Default: that of the client.
        """
        table = None if isinstance(probs, TopRows) else as_table(probs, logits=logits)
        limit, values = self._max_message_bytes, probs if table is None else table
        parts = score_parts(
            model, values, limit, version, logits, prediction_ids, event_time, partial_ok, batch_id, tags, probe
        )
        scored = yield from self._score(parts, self._timeout_seconds if timeout_seconds is None else timeout_seconds)
        return scored if table is None else table.like(scored.table_columns())

    @operation
    def gate(
        self,
        model: str,
        row: ArrayLike | TopRows,
        *,
        version: str = "",
        logits: bool = False,
        prediction_id: str | None = None,
        event_time: Time | None = None,
        tags: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Steps[Gated]:
        """Score one prediction. An invalid row is rejected with the reason INVALID.

        If the service gives no decision in time, `on_failure` of the client decides.

        Parameters
        ----------
        model, version, logits, event_time
            As for `score`.
        tags
            Where the prediction comes from, such as {"camera": "7"}.
        row
            Probabilities, (K,), or `TopRows` of one row.
        prediction_id
            Id of the prediction, for `report`.
        timeout_seconds
            Timeout of the call. Default: `gate_timeout_seconds` of the client.
        """
        rows = row if isinstance(row, TopRows) else as_one_row(row)
        if len(rows) != 1:
            raise InvalidRequest(f"{len(rows)} rows given; give one row.")
        gated = yield from self._gate(
            model,
            rows,
            version=version,
            logits=logits,
            prediction_ids=None if prediction_id is None else [prediction_id],
            event_time=event_time,
            tags=tags or (),
            timeout_seconds=timeout_seconds,
        )
        return gated[0]

    @streaming
    def stream(
        self,
        model: str,
        batches: Iterable[ArrayLike | TopRows] | AsyncIterable[ArrayLike | TopRows],
        *,
        version: str = "",
        logits: bool = False,
        partial_ok: bool = False,
        tags: Mapping[str, str] | None = None,
        max_in_flight: int = 16,
        timeout_seconds: float | None = None,
    ) -> Stream:
        """Score many batches on one call; results are in order. An invalid batch raises and ends the stream.

        Parameters
        ----------
        model, version, logits, partial_ok
            As for `score`.
        batches
            Probabilities, (n, K) each, or `TopRows`. Each batch must fit in one message. They are consumed in a
            separate thread. `AsyncClient` also takes an asynchronous iterable, and consumes it in a task.
        tags
            Tags of all rows.
        max_in_flight
            Maximum number of batches in flight.
        timeout_seconds
            Timeout of the whole stream. Default: none.
        """
        limit = self._max_message_bytes
        return Stream(
            batches,
            lambda batch: stream_part(model, batch, limit, version, logits, partial_ok, tags or ()),
            max_in_flight,
            None if timeout_seconds is None else time.monotonic() + timeout_seconds,
        )

    @operation
    def report(
        self, model: str, prediction_ids: Sequence[str], labels: Sequence[Any], observed_at: Time | None = None
    ) -> Steps[Reported]:
        """Report true classes; returns how many are on the server's disk, and the accuracy of the active version.

        Parameters
        ----------
        model
            Name of the watched classifier.
        prediction_ids
            Ids of the predictions, which may be scored before or after this call.
        labels
            The true class of each prediction, by number or by name.
        observed_at
            When the true classes became known. Default: now.
        """
        reported = []
        for request in outcome_requests(model, prediction_ids, labels, observed_at):
            reported.append((yield from _REPORT_OUTCOMES.steps(self, request)))
        return joined_reports(reported)

    @listing
    def points(
        self,
        model: str,
        *,
        version: str = "",
        since: Time | None = None,
        until: Time | None = None,
        decisions: Sequence[Decision] = (),
        reasons: Sequence[Reason] = (),
        predicted: Sequence[int] = (),
        is_shadow: bool = False,
        tags: Mapping[str, str] | None = None,
        page_size: int = 500,
    ) -> Pages[Point]:
        """Stored points, newest first.

        Parameters
        ----------
        model, version
            Name of the watched classifier, and its version. Default: all versions.
        since, until
            Only points received at or after `since` and before `until`.
        decisions, reasons, predicted
            Only points with one of these values. Default: all.
        is_shadow
            Whether to list points scored by shadow versions instead of those returned to callers.
        tags
            Only points with all of these tags. Default: all.
        page_size
            Number of points fetched at a time.
        """
        request = monitor_pb2.ListPointsRequest(
            model=model,
            version=version,
            since=as_timestamp(since),
            until=as_timestamp(until),
            decisions=[monitor_pb2.Decision.Name(decision) for decision in decisions],
            reasons=[monitor_pb2.Reason.Name(reason) for reason in reasons],
            predicted=predicted,
            is_shadow=is_shadow,
            page_size=page_size,
            tags=tags or {},
        )

        def page() -> Steps[tuple[Point, ...]]:
            points, request.page_token = yield from _LIST_POINTS.steps(self, request)
            return points

        yield page()
        while request.page_token:
            yield page()

    @operation
    def health(self, model: str = "") -> Steps[bool]:
        """Whether a server is serving, or serving a model; raises `UnknownModel` for an unknown model."""
        return _CHECK_HEALTH.steps(self, health_pb2.HealthCheckRequest(service=model))

    @unary(_ADMIN, "ListModels", "models")
    def models(self) -> tuple[Model, ...]:
        """All models."""

    @operation
    def model(self, name: str) -> Steps[Model]:
        """One model by name."""
        return _GET_MODEL.steps(self, admin_pb2.GetModelRequest(model=name))

    @unary(_ADMIN, "DeployBundle", "model", is_idempotent=False)
    def deploy(self, model: str, path: str, *, activate: bool = False, author: str = "") -> Model:
        """Add a bundle as a version of a model. The first version of a model is activated at once.

        Parameters
        ----------
        model
            Name of the model; a new name creates a model.
        path
            Path of the bundle, relative to the server's bundle directory.
        activate
            Whether to activate the version.
        author
            Author, for the audit trail.
        """

    @unary(_ADMIN, "ActivateVersion", "model", is_idempotent=False)
    def activate(self, model: str, version: str, *, author: str = "") -> Model:
        """Activate a version."""

    @unary(_ADMIN, "RollBack", "model", is_idempotent=False)
    def roll_back(self, model: str, *, author: str = "") -> Model:
        """Activate the previously active version again."""

    @unary(_ADMIN, "SetShadow", "model", is_idempotent=False)
    def shadow(self, model: str, version: str, *, author: str = "") -> Model:
        """Score with a second version as well, without effect on decisions; an empty version ends that."""

    @unary(_ADMIN, "GetPolicy")
    def policy(self, model: str) -> PolicyState:
        """The policy of the active version, and its history."""

    @unary(_ADMIN, "SetPolicy", is_idempotent=False)
    def set_policy(self, model: str, policy: Policy, *, author: str = "", comment: str = "") -> EffectivePolicy:
        """Override parts of the gate of the active version; `Policy()` restores the gate of the bundle."""

    @unary(_ADMIN, "DryRunPolicy")
    def dry_run_policy(
        self, model: str, policy: Policy, *, since: Time | None = None, until: Time | None = None
    ) -> DryRun:
        """Evaluate a policy on stored points of the active version. Default: those of the last day."""

    @unary(_ADMIN, "ResetEvidence", "version", is_idempotent=False)
    def reset_evidence(self, model: str, *, author: str = "", comment: str = "") -> str:
        """Restart the drift evidence of the active version, after its cause was removed; returns the version."""

    @unary(_ADMIN, "ListRegions", "regions")
    def regions(self, model: str, *, version: str = "") -> tuple[Region, ...]:
        """Regions that have not expired, of one version or of all."""

    @unary(_ADMIN, "ListRegions", "history", include_history=True)
    def region_history(self, model: str) -> tuple[RegionChange, ...]:
        """The last changes of a model's regions, newest first."""

    @unary(_ADMIN, "PreviewRegion")
    def preview_region(
        self,
        model: str,
        *,
        version: str = "",
        name: str = "",
        polygon: Sequence[Sequence[float]] = (),
        since: Time | None = None,
        until: Time | None = None,
        examples: int = 10,
    ) -> RegionPreview:
        """Count the points that a saved region or a polygon would reject.

        Parameters
        ----------
        model, version
            Name of the watched classifier, and its version. Default: the active version.
        name, polygon
            Name of a saved region, or corners (x, y).
        since, until
            Examine points received at or after `since` and before `until`. Default: no limit.
        examples
            Number of examples to return, at most 100.
        """

    @unary(_ADMIN, "SaveRegion", "region", is_idempotent=False)
    def save_region(
        self,
        model: str,
        name: str,
        polygon: Sequence[Sequence[float]],
        *,
        version: str = "",
        expires_at: Time | None = None,
        author: str = "",
        comment: str = "",
    ) -> Region:
        """Add a region to the map of a version, in shadow mode.

        Parameters
        ----------
        model, version
            Name of the watched classifier, and its version. Default: the active version.
        name
            Name of the region, unique within the version.
        polygon
            Corners (x, y).
        expires_at
            When the region expires. Default: never.
        author, comment
            For the audit trail.
        """

    @unary(_ADMIN, "SetRegionMode", "region", is_idempotent=False, mode=admin_pb2.REGION_MODE_ENFORCE)
    def enforce_region(
        self, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
    ) -> Region:
        """Enforce a region: accepted rows inside are rejected."""

    @unary(_ADMIN, "SetRegionMode", "region", is_idempotent=False, mode=admin_pb2.REGION_MODE_SHADOW)
    def shadow_region(self, model: str, name: str, *, version: str = "", author: str = "", comment: str = "") -> Region:
        """Set a region to shadow mode: it changes no decision."""

    @unary(_ADMIN, "RemoveRegion", "region", is_idempotent=False)
    def remove_region(self, model: str, name: str, *, version: str = "", author: str = "", comment: str = "") -> Region:
        """Remove a region; returns the region before it was removed."""

    @operation
    def carry_over_region(
        self,
        model: str,
        name: str,
        version: str,
        *,
        to_version: str = "",
        save: bool = False,
        author: str = "",
        comment: str = "",
    ) -> Steps[CarriedRegion]:
        """Propose a region on the map of another version, from the rows inside an existing region.

        Parameters
        ----------
        model, name, version
            The existing region.
        to_version
            The other version. Default: the active version.
        save
            Whether to save the proposed region, in shadow mode.
        author, comment
            For the audit trail.
        """
        request = admin_pb2.CarryOverRegionRequest(
            model=model, name=name, version=version, to_version=to_version, save=save, author=author, comment=comment
        )
        read_region = functools.partial(read, CarriedRegion)
        return Rpc(_ADMIN, "CarryOverRegion", read_region, is_idempotent=not save).steps(self, request)

    def _score(self, parts: Sequence[Part], timeout_seconds: float) -> Steps[Scored]:
        """Score the parts of a batch one after the other, all with the version that scored the first.

        Parameters
        ----------
        parts
            At least one.
        timeout_seconds
            Time for all of them, including retries.
        """
        clock = self._replicas.clock
        deadline = clock() + timeout_seconds
        scored: list[Scored] = []
        for part in parts:
            if scored:
                part.request.version = scored[0].version
            data = part.request.SerializeToString()
            try:
                response = yield from self._replicas.call(_SCORE, data, deadline - clock())
                scored.append(read_scored(*read_response(response, part.rows), part.names))
            except InvalidRequest as error:
                # Rows are counted in the batch, not in the part.
                if error.row is not None:
                    error.row += part.start
                raise
            except ValueError as error:
                raise ServerError(f"the server responded with {error}; is it a DarkSight server?") from None
        return joined(scored)

    def _gate(
        self,
        model: str,
        rows: NDArray[np.float32] | TopRows,
        *,
        version: str = "",
        logits: bool = False,
        prediction_ids: Sequence[str] | None = None,
        event_time: Time | None = None,
        tags: Tags = (),
        timeout_seconds: float | None = None,
    ) -> Steps[list[Gated]]:
        """Decide rows, by the service or by `on_failure`."""
        limit = self._max_message_bytes
        parts = score_parts(model, rows, limit, version, logits, prediction_ids, event_time, partial_ok=True, tags=tags)
        seconds = self._gate_timeout_seconds if timeout_seconds is None else timeout_seconds
        return self._fallback.steps(self._score(parts, seconds), len(rows), prediction_ids)
