"""The unary methods of the service and how their responses are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from darksight_client.errors import InvalidRequest, ServerError
from darksight_client.requests import Part
from darksight_client.results.columns import read_response
from darksight_client.results.models import (
    DryRun,
    EffectivePolicy,
    Model,
    read_counts,
    read_model,
    read_policy,
    read_policy_state,
)
from darksight_client.results.regions import (
    Region,
    read_carried_region,
    read_region,
    read_region_change,
    read_region_preview,
)
from darksight_client.results.reports import read_reported
from darksight_client.results.rows import Scored, joined, read_point, read_scored
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from darksight_client.transport.retries import Replicas, Steps

__all__ = ["Rpc", "score_steps"]

T = TypeVar("T")

_MONITOR = "/darksight.v1.MonitorService/"
_ADMIN = "/darksight.v1.AdminService/"


@dataclass(frozen=True, slots=True)
class Rpc(Generic[T]):
    """A unary method.

    Parameters
    ----------
    path
        "/package.Service/Method".
    response
        Class of its response.
    convert
        Converts a response to the result of the call.
    is_idempotent
        Whether it is retried. Changes are not: if the response is lost, the server may have made them, and a second
        roll-back would undo the first.
    """

    path: str
    response: Any
    convert: Callable[[Any], T]
    is_idempotent: bool = True

    def read(self, data: bytes) -> T:
        """The result of a call from its serialized response."""
        try:
            return self.convert(self.response.FromString(data))
        except DecodeError:
            raise ServerError(f"invalid response to {self.path}; is the server a DarkSight server?") from None


def _admin(name: str, convert: Callable[[Any], T], *, is_idempotent: bool = True) -> Rpc[T]:
    return Rpc(_ADMIN + name, getattr(admin_pb2, f"{name}Response"), convert, is_idempotent)


def _model(response: Any) -> Model:
    return read_model(response.model)


def _region(response: Any) -> Region:
    return read_region(response.region)


CHECK_HEALTH = Rpc(
    "/grpc.health.v1.Health/Check",
    health_pb2.HealthCheckResponse,
    lambda response: bool(response.status == health_pb2.HealthCheckResponse.SERVING),
)
REPORT_OUTCOMES = Rpc(_MONITOR + "ReportOutcomes", monitor_pb2.ReportOutcomesResponse, read_reported)
LIST_POINTS = Rpc(
    _MONITOR + "ListPoints",
    monitor_pb2.ListPointsResponse,
    lambda response: (tuple(map(read_point, response.points)), str(response.next_page_token)),
)
LIST_MODELS = _admin("ListModels", lambda response: tuple(map(read_model, response.models)))
GET_MODEL = _admin("GetModel", _model)
DEPLOY_BUNDLE = _admin("DeployBundle", _model, is_idempotent=False)
ACTIVATE_VERSION = _admin("ActivateVersion", _model, is_idempotent=False)
ROLL_BACK = _admin("RollBack", _model, is_idempotent=False)
SET_SHADOW = _admin("SetShadow", _model, is_idempotent=False)
GET_POLICY = _admin("GetPolicy", read_policy_state)
SET_POLICY = _admin(
    "SetPolicy",
    lambda response: EffectivePolicy(read_policy(response.effective), response.is_certified),
    is_idempotent=False,
)
DRY_RUN_POLICY = _admin(
    "DryRunPolicy", lambda response: DryRun(read_counts(response.before), read_counts(response.after))
)
RESET_EVIDENCE = _admin("ResetEvidence", lambda response: str(response.version), is_idempotent=False)
LIST_REGIONS = _admin("ListRegions", lambda response: tuple(map(read_region, response.regions)))
LIST_REGION_CHANGES = _admin("ListRegions", lambda response: tuple(map(read_region_change, response.history)))
PREVIEW_REGION = _admin("PreviewRegion", read_region_preview)
SAVE_REGION = _admin("SaveRegion", _region, is_idempotent=False)
SET_REGION_MODE = _admin("SetRegionMode", _region, is_idempotent=False)
REMOVE_REGION = _admin("RemoveRegion", _region, is_idempotent=False)
PROPOSE_REGION = _admin("CarryOverRegion", read_carried_region)
CARRY_OVER_REGION = _admin("CarryOverRegion", read_carried_region, is_idempotent=False)


def score_steps(replicas: Replicas, parts: Sequence[Part], timeout_seconds: float) -> Steps[Scored]:
    """Steps that score the parts of a batch one after the other, all with the version that scored the first.

    Parameters
    ----------
    replicas
        Where the calls go.
    parts
        At least one.
    timeout_seconds
        Time for all of them, including retries.
    """
    deadline = replicas.clock() + timeout_seconds
    scored: list[Scored] = []
    for part in parts:
        if scored:
            part.request.version = scored[0].version
        data = part.request.SerializeToString()
        try:
            response = yield from replicas.call(_MONITOR + "Score", data, deadline - replicas.clock())
            scored.append(read_scored(*read_response(response, part.rows), part.names))
        except InvalidRequest as error:
            # Rows are counted in the batch, not in the part.
            if error.row is not None:
                error.row += part.start
            raise
        except ValueError as error:
            raise ServerError(f"the server responded with {error}; is it a DarkSight server?") from None
    return joined(scored)
