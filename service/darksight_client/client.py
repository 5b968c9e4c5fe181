"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload
from uuid import UUID

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from numpy.typing import ArrayLike

from darksight_client import rpcs
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
from darksight_client.streams import SCORE_STREAM, StreamRequests, results, stream_part
from darksight_client.stubs.darksight.v1 import admin_pb2
from darksight_client.transport.retries import Send, Steps
from darksight_core.rows.frames import Table

__all__ = ["Client"]

T = TypeVar("T")


class Client(Transport):
    """Client of one or more DarkSight servers, for threads. Thread-safe.

    The client opens one connection to each worker of a server and sends each call to the connection with the fewest
    calls in flight. Several addresses are used in turn; a call that fails because a server is down is sent to the next.
    Without TLS options the connection is plaintext, including the token.

    Parameters
    ----------
    target
        Address such as "localhost:8081", or several addresses. A name with several IP addresses stands for all of them.
    token, token_file
        Bearer token, or a file that contains it. The file is reloaded when it changes.
    tls_ca
        File with the certificates that the server's certificate is verified with; True for those of the system.
    tls_cert, tls_key
        Files with the client's certificate and private key, for mutual TLS.
    server_name
        Name in the server's certificate, if it differs from `target`.
    timeout_seconds
        Default timeout of a call, including retries.
    gate_timeout_seconds
        Default timeout of `gate`, including retries.
    on_failure
        What `gate` does when the service is unavailable, overloaded or slower than the timeout: "raise" the error, or
        "accept" or "reject" the row. Such a decision has the reason UNSCORED and `Gated.failure`; `gate_counts` counts
        it. Errors of the request, of the token and of the model name are always raised.
    breaker_failures
        Number of failed `gate` calls in a row after which `gate` fails at once instead of calling; 0 for never.
    breaker_seconds
        Interval at which `gate` calls again then. The first response ends it.
    retries
        Maximum number of retries of a call when a server is unavailable, or is overloaded and says when to retry.
        Changes of models, policies and regions are not retried, and no other error is.
    compression
        Compression of requests: "gzip", "deflate" or None.
    max_message_bytes
        Message limit of the server. Larger batches are split.
    max_connections
        Maximum number of connections per address.

    Examples
    --------
    >>> with Client("localhost:8081") as client:  # doctest: +SKIP
    ...     scored = client.score("digits", probs)
    ...     usable = scored.accepted
    """

    _grpc: ClassVar[Any] = grpc

    @overload
    def score(
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
        batch_id: UUID | None = None,
        tags: Tags = (),
        timeout_seconds: float | None = None,
    ) -> Scored: ...

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
        batch_id: UUID | None = None,
        tags: Tags = (),
        timeout_seconds: float | None = None,
    ) -> Any:
        """Score a batch of predictions and decide which may be acted on.

        A batch that does not fit in one message is split and sent in several calls, all scored by the same version. If
        one of them fails, this call fails; the rows before it are already stored.

        Parameters
        ----------
        model
            Name of the watched classifier.
        probs
            Its probabilities, (n, K), or (K,) for one row. Or a table, such as a data frame of pandas or polars or an
            Arrow table, with a column for each class, in any order: then the result is a table of the same kind.
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
            A UUIDv7 whose last 20 bits are zero, of a batch that fits one message. A call with an id that was used
            before, also by another process, is stored once. Default: a new id, which retries of this call keep.
        tags
            Where the predictions come from, such as {"camera": "7"}: one mapping for all rows, or one for each row.
        timeout_seconds
            Timeout of the whole call. Default: that of the client.
        """
        table, limit = as_table(probs, logits=logits), self._max_message_bytes
        values = probs if table is None else table
        parts = score_parts(
            model, values, limit, version, logits, prediction_ids, event_time, partial_ok, batch_id, tags
        )
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        scored = self._run(score_steps(self._replicas, parts, seconds))
        return scored if table is None else table.like(scored.table_columns())

    def gate(
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
        """Score one prediction. An invalid row is rejected with the reason INVALID.

        If the service gives no decision in time, `on_failure` of the client decides.

        Parameters
        ----------
        model, version, logits, event_time
            As for `score`.
        tags
            Where the prediction comes from, such as {"camera": "7"}.
        row
            Probabilities, (K,).
        prediction_id
            Id of the prediction, for `report`.
        timeout_seconds
            Timeout of the call. Default: `gate_timeout_seconds` of the client.
        """
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
        return self._run(steps)[0]

    def stream(
        self,
        model: str,
        batches: Iterable[ArrayLike],
        *,
        version: str = "",
        logits: bool = False,
        partial_ok: bool = False,
        tags: Mapping[str, str] | None = None,
        max_in_flight: int = 16,
        timeout_seconds: float | None = None,
    ) -> Iterator[Scored]:
        """Score many batches on one call; results are in order. An invalid batch raises and ends the stream.

        Parameters
        ----------
        model, version, logits, partial_ok
            As for `score`.
        batches
            Probabilities, (n, K) each. Each batch must fit in one message. They are consumed in a separate thread.
        tags
            Tags of all rows.
        max_in_flight
            Maximum number of batches in flight.
        timeout_seconds
            Timeout of the whole stream. Default: none.
        """
        limit = self._max_message_bytes
        parts = (stream_part(model, batch, limit, version, logits, partial_ok, tags or ()) for batch in batches)
        requests = StreamRequests(parts, max_in_flight)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def open_call(replica: int, serialized: Iterator[bytes]) -> Any:
            return self._open_stream(replica, serialized, deadline)

        return results(requests, self._replicas, open_call, time.sleep)

    def report(
        self, model: str, prediction_ids: Sequence[str], labels: Sequence[Any], observed_at: Time | None = None
    ) -> Reported:
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
        requests = outcome_requests(model, prediction_ids, labels, observed_at)
        return joined_reports(self._call(rpcs.REPORT_OUTCOMES, request) for request in requests)

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
    ) -> Iterator[Point]:
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
        request = points_request(
            model, version, since, until, decisions, reasons, predicted, is_shadow, page_size, tags or {}
        )
        while True:
            points, request.page_token = self._call(rpcs.LIST_POINTS, request)
            yield from points
            if not request.page_token:
                return

    def health(self, model: str = "") -> bool:
        """Whether a server is serving, or serving a model; raises `UnknownModel` for an unknown model."""
        return self._call(rpcs.CHECK_HEALTH, health_pb2.HealthCheckRequest(service=model))

    def models(self) -> tuple[Model, ...]:
        """All models."""
        return self._call(rpcs.LIST_MODELS, admin_pb2.ListModelsRequest())

    def model(self, name: str) -> Model:
        """One model by name."""
        return self._call(rpcs.GET_MODEL, admin_pb2.GetModelRequest(model=name))

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
        request = admin_pb2.DeployBundleRequest(model=model, path=path, activate=activate, author=author)
        return self._call(rpcs.DEPLOY_BUNDLE, request)

    def activate(self, model: str, version: str, *, author: str = "") -> Model:
        """Activate a version."""
        request = admin_pb2.ActivateVersionRequest(model=model, version=version, author=author)
        return self._call(rpcs.ACTIVATE_VERSION, request)

    def roll_back(self, model: str, *, author: str = "") -> Model:
        """Activate the previously active version again."""
        return self._call(rpcs.ROLL_BACK, admin_pb2.RollBackRequest(model=model, author=author))

    def shadow(self, model: str, version: str, *, author: str = "") -> Model:
        """Score with a second version as well, without effect on decisions; an empty version ends that."""
        request = admin_pb2.SetShadowRequest(model=model, version=version, author=author)
        return self._call(rpcs.SET_SHADOW, request)

    def policy(self, model: str) -> PolicyState:
        """The policy of the active version, and its history."""
        return self._call(rpcs.GET_POLICY, admin_pb2.GetPolicyRequest(model=model))

    def set_policy(self, model: str, policy: Policy, *, author: str = "", comment: str = "") -> EffectivePolicy:
        """Override parts of the gate of the active version; `Policy()` restores the gate of the bundle."""
        request = admin_pb2.SetPolicyRequest(model=model, policy=policy_message(policy), author=author, comment=comment)
        return self._call(rpcs.SET_POLICY, request)

    def dry_run_policy(
        self, model: str, policy: Policy, *, since: Time | None = None, until: Time | None = None
    ) -> DryRun:
        """Evaluate a policy on stored points of the active version. Default: those of the last day."""
        request = admin_pb2.DryRunPolicyRequest(
            model=model, policy=policy_message(policy), since=as_timestamp(since), until=as_timestamp(until)
        )
        return self._call(rpcs.DRY_RUN_POLICY, request)

    def reset_evidence(self, model: str, *, author: str = "", comment: str = "") -> str:
        """Restart the drift evidence of the active version, after its cause was removed; returns the version."""
        request = admin_pb2.ResetEvidenceRequest(model=model, author=author, comment=comment)
        return self._call(rpcs.RESET_EVIDENCE, request)

    def regions(self, model: str, *, version: str = "") -> tuple[Region, ...]:
        """Regions that have not expired, of one version or of all."""
        return self._call(rpcs.LIST_REGIONS, admin_pb2.ListRegionsRequest(model=model, version=version))

    def region_history(self, model: str) -> tuple[RegionChange, ...]:
        """The last changes of a model's regions, newest first."""
        return self._call(rpcs.LIST_REGION_CHANGES, admin_pb2.ListRegionsRequest(model=model, include_history=True))

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
        request = admin_pb2.PreviewRegionRequest(
            model=model,
            version=version,
            name=name,
            polygon=as_corners(polygon),
            since=as_timestamp(since),
            until=as_timestamp(until),
            examples=examples,
        )
        return self._call(rpcs.PREVIEW_REGION, request)

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
        request = admin_pb2.SaveRegionRequest(
            model=model,
            version=version,
            name=name,
            polygon=as_corners(polygon),
            expires_at=as_timestamp(expires_at),
            author=author,
            comment=comment,
        )
        return self._call(rpcs.SAVE_REGION, request)

    def enforce_region(
        self, model: str, name: str, *, version: str = "", author: str = "", comment: str = ""
    ) -> Region:
        """Enforce a region: accepted rows inside are rejected."""
        return self._set_region_mode(model, name, admin_pb2.REGION_MODE_ENFORCE, version, author, comment)

    def shadow_region(self, model: str, name: str, *, version: str = "", author: str = "", comment: str = "") -> Region:
        """Set a region to shadow mode: it changes no decision."""
        return self._set_region_mode(model, name, admin_pb2.REGION_MODE_SHADOW, version, author, comment)

    def _set_region_mode(
        self, model: str, name: str, mode: admin_pb2.RegionMode, version: str, author: str, comment: str
    ) -> Region:
        request = admin_pb2.SetRegionModeRequest(
            model=model, version=version, name=name, mode=mode, author=author, comment=comment
        )
        return self._call(rpcs.SET_REGION_MODE, request)

    def remove_region(self, model: str, name: str, *, version: str = "", author: str = "", comment: str = "") -> Region:
        """Remove a region; returns the region before it was removed."""
        request = admin_pb2.RemoveRegionRequest(model=model, version=version, name=name, author=author, comment=comment)
        return self._call(rpcs.REMOVE_REGION, request)

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
    ) -> CarriedRegion:
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
        return self._call(rpcs.CARRY_OVER_REGION if save else rpcs.PROPOSE_REGION, request)

    def close(self) -> None:
        """Close all connections. Calls in flight raise `Cancelled`."""
        for channel in self._close_addresses():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, rpc: Rpc[T], request: Message) -> T:
        """Send a request with retries and read its response."""
        data = request.SerializeToString()
        call = self._replicas.call(rpc.path, data, self._timeout_seconds, is_idempotent=rpc.is_idempotent)
        return rpc.read(self._run(call))

    def _run(self, steps: Steps[T]) -> T:
        """Execute the steps of a call."""
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Send):
                    time.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = self._send(step)
                except DarkSightClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    def _send(self, step: Send) -> bytes:
        connections = self._connections(step.replica)
        connection, error = connections.acquire(), None
        try:
            method = connection.method(step.path)
            response, call = method.with_call(step.data, timeout=step.timeout_seconds, metadata=self._token.metadata())
            connections.learn(connection, call.trailing_metadata())
            return bytes(response)
        except grpc.RpcError as failure:
            error = error_of_rpc(failure)
            raise error from None
        finally:
            unused = connections.release(connection, has_failed=isinstance(error, Unavailable))
            if unused is not None:
                unused.close()

    @contextmanager
    def _open_stream(self, replica: int, requests: Iterator[bytes], deadline: float | None) -> Iterator[Any]:
        """A ScoreStream call; iterating over it returns serialized responses."""
        connections = self._connections(replica)
        connection, error = connections.acquire(), None
        call: Any = None
        try:
            method = connection.channel.stream_stream(SCORE_STREAM, None, None)
            rest = None if deadline is None else deadline - time.monotonic()
            call = method(requests, timeout=rest, metadata=self._token.metadata())
            connections.learn(connection, call.initial_metadata())
            yield call
        except grpc.RpcError as failure:
            error = error_of_rpc(failure)
            raise error from None
        finally:
            if call is not None:
                call.cancel()
            unused = connections.release(connection, has_failed=isinstance(error, Unavailable))
            if unused is not None:
                unused.close()
