"""The paths of the HTTP API, and the gRPC method that answers each.

Scope, limits, checks, errors and counters of a path are those of its method.
"""

from __future__ import annotations

from dataclasses import dataclass

from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from google.protobuf.descriptor import MethodDescriptor

__all__ = ["EVENT_PATHS", "INFERENCE_PATHS", "MESSAGE_PATHS", "Path"]

_MONITOR = monitor_pb2.DESCRIPTOR.services_by_name["MonitorService"]
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
_INFERENCE = "inference.GRPCInferenceService"
_MODEL = "/v1/models/{model}"
_V2_MODEL = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")


@dataclass(frozen=True, slots=True)
class Path:
    """A path.

    Parameters
    ----------
    verb, path
        HTTP method, and path with parameters in braces.
    method
        Full name of the gRPC method.
    summary
        One line for the documentation.
    """

    verb: str
    path: str
    method: str
    summary: str

    @property
    def name(self) -> str:
        """Name of the gRPC method."""
        return self.method.rpartition("/")[2]

    @property
    def descriptor(self) -> MethodDescriptor:
        """Description of a `darksight.v1` method."""
        service = _MONITOR if self.name in _MONITOR.methods_by_name else _ADMIN
        return service.methods_by_name[self.name]


def _message(verb: str, path: str, name: str, summary: str) -> Path:
    service = _MONITOR if name in _MONITOR.methods_by_name else _ADMIN
    return Path(verb, path, f"/{service.full_name}/{name}", summary)


def _inference(verb: str, path: str, name: str, summary: str) -> Path:
    return Path(verb, path, f"/{_INFERENCE}/{name}", summary)


INFERENCE_PATHS = (
    *(_inference("POST", f"{path}/infer", "ModelInfer", "Score predictions") for path in _V2_MODEL),
    *(_inference("GET", f"{path}/ready", "ModelReady", "Whether a model is loaded") for path in _V2_MODEL),
    *(_inference("GET", path, "ModelMetadata", "Inputs and outputs of a model") for path in _V2_MODEL),
    *(_inference("GET", f"{path}/config", "ModelConfig", "Configuration as Triton puts it") for path in _V2_MODEL),
    _inference("GET", "/v2", "ServerMetadata", "Name, version and extensions of the server"),
    _inference("GET", "/v2/health/live", "ServerLive", "Whether the server runs"),
    _inference("GET", "/v2/health/ready", "ServerReady", "Whether the server takes calls"),
    _inference("POST", "/v2/repository/index", "RepositoryIndex", "The active version of each model"),
)
"""The Open Inference Protocol."""

MESSAGE_PATHS = (
    _message("POST", f"{_MODEL}/score", "Score", "Score a batch of predictions"),
    _message("POST", f"{_MODEL}/outcomes", "ReportOutcomes", "Record the true classes of predictions"),
    _message("GET", f"{_MODEL}/points", "ListPoints", "List stored points, newest first"),
    _message("GET", "/v1/models", "ListModels", "List all models"),
    _message("GET", _MODEL, "GetModel", "Show one model"),
    _message("POST", f"{_MODEL}/versions", "DeployBundle", "Deploy a bundle of the bundle directory as a version"),
    _message("POST", f"{_MODEL}/activate", "ActivateVersion", "Make a version active"),
    _message("POST", f"{_MODEL}/rollback", "RollBack", "Make the previously active version active again"),
    _message("POST", f"{_MODEL}/shadow", "SetShadow", "Score all traffic with a second version as well"),
    _message("GET", f"{_MODEL}/policy", "GetPolicy", "Show the policy of the active version"),
    _message("PUT", f"{_MODEL}/policy", "SetPolicy", "Override parts of the gate of the active version"),
    _message("POST", f"{_MODEL}/policy/dry-run", "DryRunPolicy", "Evaluate a policy on stored points"),
    _message("POST", f"{_MODEL}/evidence/reset", "ResetEvidence", "Restart the drift evidence of the active version"),
    _message("GET", f"{_MODEL}/regions", "ListRegions", "List regions"),
    _message("POST", f"{_MODEL}/regions", "SaveRegion", "Add a region, in shadow mode"),
    _message("POST", f"{_MODEL}/regions/preview", "PreviewRegion", "Count the points that a region would reject"),
    _message("POST", f"{_MODEL}/regions/carry-over", "CarryOverRegion", "Propose a region for another version"),
    _message("PUT", f"{_MODEL}/regions/{{name}}/mode", "SetRegionMode", "Enforce a region, or not"),
    _message("DELETE", f"{_MODEL}/regions/{{name}}", "RemoveRegion", "Remove a region"),
)
"""`darksight.v1` as JSON."""

EVENT_PATHS = (
    _message("POST", "/v1/events", "Score", "Record the predictions of an inference logger; the event names the model"),
    _message("POST", f"{_MODEL}/events", "Score", "Record the predictions of an inference logger"),
)
"""CloudEvents of inference loggers."""
