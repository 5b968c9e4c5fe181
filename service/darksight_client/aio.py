"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload
from uuid import UUID

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from numpy.typing import ArrayLike

from darksight_client import rpcs
from darksight_client.aio_streams import AsyncStreamRequests, async_results
from darksight_client.errors import DarkSightClientError, Unavailable, error_of_rpc
from darksight_client.operations import Transport
from darksight_client.requests import (
    Tags,
    Time,
    as_one_row,
    as_table,
    as_timestamp,
    outcome_requests,
    points_request,
    score_parts,
)
from darksight_client.results.models import DryRun, EffectivePolicy, Model, Policy, PolicyState, policy_message
from darksight_client.results.regions import CarriedRegion, Region, RegionChange, RegionPreview, as_corners
from darksight_client.results.reports import Reported, joined_reports
from darksight_client.results.rows import Decision, Gated, Point, Reason, Scored
from darksight_client.rpcs import Rpc, score_steps
from darksight_client.streams import SCORE_STREAM, stream_part
from darksight_client.stubs.darksight.v1 import admin_pb2
from darksight_client.transport.retries import Send, Steps
from darksight_core.rows.frames import Table

__all__ = ["AsyncClient"]

T = TypeVar("T")


class AsyncClient(Transport):
    """`Client` for asyncio, with the same parameters. It belongs to the event loop that it is first used in.

    Examples
    --------
    >>> async def usable(probs):  # doctest: +SKIP
    ...     async with AsyncClient("localhost:8081") as client:
    ...         return (await client.score("digits", probs)).accepted
    """

    _grpc: ClassVar[Any] = grpc.aio

    @overload
    async def score(
        self,
        model: str,
        probs: Table,
        *,
        version: str = "",
        logits: bool = False,
        prediction_ids: Sequence[str] | None = None,
        event_time: Time | None = None,
        partial_ok: bool = False,
        batch_id: UUID | None = None,
        tags: Tags = (),
        timeout_seconds: float | None = None,
    ) -> Table: ...

    @overload
    async def score(
        self,
        model: str,
        probs: ArrayLike,
        *,
        version: str = "",
        logits: bool = False,
        prediction_ids: Sequence[str] | None = None,
        event_time: Time | None = None,
        partial_ok: bool = False,
        batch_id: UUID | None = None,
        tags: Tags = (),
        timeout_seconds: float | None = None,
    ) -> Scored: ...

    async def score(
        self,
        model: str,
        probs: Any,
        *,
        version: str = "",
        logits: bool = False,
        prediction_ids: Sequence[str] | None = None,
        event_time: Time | None = None,
        partial_ok: bool = False,
        batch_id: UUID | None = None,
        tags: Tags = (),
        timeout_seconds: float | None = None,
    ) -> Any:
        """See `Client.score`."""
        table, limit = as_table(probs, logits=logits), self._max_message_bytes
        values = probs if table is None else table
        parts = score_parts(
            model, values, limit, version, logits, prediction_ids, event_time, partial_ok, batch_id, tags
        )
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        scored = await self._run(score_steps(self._replicas, parts, seconds))
        return scored if table is None else table.like(scored.table_columns())

    async def gate(
        self,
        model: str,
        row: ArrayLike,
        *,
        version: str = "",
        logits: bool = False,
        prediction_id: str | None = None,
        event_time: Time | None = None,
        tags: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Gated:
        """See `Client.gate`."""
        steps = self._gate_steps(
            model,
            as_one_row(row),
            version=version,
            logits=logits,
            prediction_ids=None if prediction_id is None else [prediction_id],
            event_time=event_time,
            tags=tags or (),
            timeout_seconds=timeout_seconds,
        )
        return (await self._run(steps))[0]

    async def stream(
        self,
        model: str,
        batches: Iterable[ArrayLike] | AsyncIterable[ArrayLike],
        *,
        version: str = "",
        logits: bool = False,
        partial_ok: bool = False,
        tags: Mapping[str, str] | None = None,
        max_in_flight: int = 16,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Scored]:
        """See `Client.stream`; batches may also come from an asynchronous iterable."""
        limit = self._max_message_bytes
        requests = AsyncStreamRequests(
            lambda batch: stream_part(model, batch, limit, version, logits, partial_ok, tags or ()), max_in_flight
        )
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def open_call(replica: int, serialized: AsyncIterator[bytes]) -> Any:
            return self._open_stream(replica, serialized, deadline)

        filler = asyncio.create_task(requests.fill(batches))
        try:
            async for scored in async_results(requests, self._replicas, open_call):
                yield scored
        finally:
            filler.cancel()

    async def report(
        self, model: str, prediction_ids: Sequence[str], labels: Sequence[Any], observed_at: Time | None = None
    ) -> Reported:
        """See `Client.report`."""
        requests = outcome_requests(model, prediction_ids, labels, observed_at)
        return joined_reports([await self._call(rpcs.REPORT_OUTCOMES, request) for request in requests])

    async def points(
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
    ) -> AsyncIterator[Point]:
        """See `Client.points`."""
        request = points_request(
            model, version, since, until, decisions, reasons, predicted, is_shadow, page_size, tags or {}
        )
        while True:
            points, request.page_token = await self._call(rpcs.LIST_POINTS, request)
            for point in points:
                yield point
            if not request.page_token:
                return

    async def health(self, model: str = "") -> bool:
        """See `Client.health`."""
        return await self._call(rpcs.CHECK_HEALTH, health_pb2.HealthCheckRequest(service=model))

    async def models(self) -> tuple[Model, ...]:
        """See `Client.models`."""
        return await self._call(rpcs.LIST_MODELS, admin_pb2.ListModelsRequest())

    async def model(self, name: str) -> Model:
        """See `Client.model`."""
        return await self._call(rpcs.GET_MODEL, admin_pb2.GetModelRequest(model=name))

    async def deploy(self, model: str, path: str, *, activate: bool = False, author: str = "") -> Model:
        """See `Client.deploy`."""
        request = admin_pb2.DeployBundleRequest(model=model, path=path, activate=activate, author=author)
        return await self._call(rpcs.DEPLOY_BUNDLE, request)

    async def activate(self, model: str, version: str, *, author: str = "") -> Model:
        """See `Client.activate`."""
        request = admin_pb2.ActivateVersionRequest(model=model, version=version, author=author)
        return await self._call(rpcs.ACTIVATE_VERSION, request)

    async def roll_back(self, model: str, *, author: str = "") -> Model:
        """See `Client.roll_back`."""
        return await self._call(rpcs.ROLL_BACK, admin_pb2.RollBackRequest(model=model, author=author))

    async def shadow(self, model: str, version: str, *, author: str = "") -> Model:
        """See `Client.shadow`."""
        request = admin_pb2.SetShadowRequest(model=model, version=version, author=author)
        return await self._call(rpcs.SET_SHADOW, request)

    async def policy(self, model: str) -> PolicyState:
        """See `Client.policy`."""
        return await self._call(rpcs.GET_POLICY, admin_pb2.GetPolicyRequest(model=model))

    async def set_policy(self, model: str, policy: Policy, *, author: str = "", comment: str = "") -> EffectivePolicy:
        """See `Client.set_policy`."""
        request = admin_pb2.SetPolicyRequest(model=model, policy=policy_message(policy), author=author, comment=comment)
        return await self._call(rpcs.SET_POLICY, request)

    async def dry_run_policy(
        self, model: str, policy: Policy, *, since: Time | None = None, until: Time | None = None
    ) -> DryRun:
        """See `Client.dry_run_policy`."""
        request = admin_pb2.DryRunPolicyRequest(
            model=model, policy=policy_message(policy), since=as_timestamp(since), until=as_timestamp(until)
        )
        return await self._call(rpcs.DRY_RUN_POLICY, request)

    async def reset_evidence(self, model: str, *, author: str = "", comment: str = "") -> str:
        """See `Client.reset_evidence`."""
        request = admin_pb2.ResetEvidenceRequest(model=model, author=author, comment=comment)
        return await self._call(rpcs.RESET_EVIDENCE, request)

    async def regions(self, model: str, *, version: str = "") -> tuple[Region, ...]:
        """See `Client.regions`."""
        return await self._call(rpcs.LIST_REGIONS, admin_pb2.ListRegionsRequest(model=model, version=version))

    async def region_history(self, model: str) -> tuple[RegionChange, ...]:
        """See `Client.region_history`."""
        return await self._call(
            rpcs.LIST_REGION_CHANGES, admin_pb2.ListRegionsRequest(model=model, include_history=True)
        )

    async def preview_region(
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
        """See `Client.preview_region`."""
        request = admin_pb2.PreviewRegionRequest(
            model=model,
            version=version,
            name=name,
            polygon=as_corners(polygon),
            since=as_timestamp(since),
            until=as_timestamp(until),
            examples=examples,
        )
        return await self._call(rpcs.PREVIEW_REGION, request)

    async def save_region(
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
        """See `Client.save_region`."""
        request = admin_pb2.SaveRegionRequest(
            model=model,
            version=version,
            name=name,
            polygon=as_corners(polygon),
            expires_at=as_timestamp(expires_at),
            author=author,
            comment=comment,
        )
        return await self._call(rpcs.SAVE_REGION, request)

    async def enforce_region(
        self, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
    ) -> Region:
        """See `Client.enforce_region`."""
        return await self._set_region_mode(model, name, admin_pb2.REGION_MODE_ENFORCE, version, author, comment)

    async def shadow_region(
        self, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
    ) -> Region:
        """See `Client.shadow_region`."""
        return await self._set_region_mode(model, name, admin_pb2.REGION_MODE_SHADOW, version, author, comment)

    async def _set_region_mode(
        self, model: str, name: str, mode: admin_pb2.RegionMode, version: str, author: str, comment: str
    ) -> Region:
        request = admin_pb2.SetRegionModeRequest(
            model=model, version=version, name=name, mode=mode, author=author, comment=comment
        )
        return await self._call(rpcs.SET_REGION_MODE, request)

    async def remove_region(
        self, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
    ) -> Region:
        """See `Client.remove_region`."""
        request = admin_pb2.RemoveRegionRequest(model=model, version=version, name=name, author=author, comment=comment)
        return await self._call(rpcs.REMOVE_REGION, request)

    async def carry_over_region(
        self,
        model: str,
        name: str,
        version: str,
        *,
        to_version: str = "",
        save: bool = False,
        author: str = "",
        comment: str = "",
    ) -> CarriedRegion:
        """See `Client.carry_over_region`."""
        request = admin_pb2.CarryOverRegionRequest(
            model=model, name=name, version=version, to_version=to_version, save=save, author=author, comment=comment
        )
        return await self._call(rpcs.CARRY_OVER_REGION if save else rpcs.PROPOSE_REGION, request)

    async def close(self) -> None:
        """Close all connections. Calls in flight raise `Cancelled`."""
        for channel in self._close_addresses():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, rpc: Rpc[T], request: Message) -> T:
        """Send a request with retries and read its response."""
        data = request.SerializeToString()
        call = self._replicas.call(rpc.path, data, self._timeout_seconds, is_idempotent=rpc.is_idempotent)
        return rpc.read(await self._run(call))

    async def _run(self, steps: Steps[T]) -> T:
        """Execute the steps of a call."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Send):
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = await self._send(step)
                except DarkSightClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send(self, step: Send) -> bytes:
        connections = self._connections(step.replica)
        connection, error = connections.acquire(), None
        try:
            method = connection.method(step.path)
            call = method(step.data, timeout=step.timeout_seconds, metadata=self._token.metadata())
            response = await call
            connections.learn(connection, await call.trailing_metadata())
            return bytes(response)
        except grpc.RpcError as failure:
            error = error_of_rpc(failure)
            raise error from None
        finally:
            unused = connections.release(connection, has_failed=isinstance(error, Unavailable))
            if unused is not None:
                await unused.close()

    @asynccontextmanager
    async def _open_stream(
        self, replica: int, requests: AsyncIterator[bytes], deadline: float | None
    ) -> AsyncIterator[Any]:
        """A ScoreStream call; iterating over it returns serialized responses."""
        connections = self._connections(replica)
        connection, error = connections.acquire(), None
        call: Any = None
        try:
            method = connection.channel.stream_stream(SCORE_STREAM, None, None)
            rest = None if deadline is None else deadline - time.monotonic()
            call = method(requests, timeout=rest, metadata=self._token.metadata())
            connections.learn(connection, await call.initial_metadata())
            yield call
        except grpc.RpcError as failure:
            error = error_of_rpc(failure)
            raise error from None
        finally:
            if call is not None:
                call.cancel()
            unused = connections.release(connection, has_failed=isinstance(error, Unavailable))
            if unused is not None:
                await unused.close()
