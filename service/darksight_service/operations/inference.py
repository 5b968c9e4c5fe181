"""The Open Inference Protocol, so that clients of Triton and KServe work unchanged.

    input     "probs" or "logits", FP32 or FP64, [n, K] or [K]; raw or typed contents
    outputs   points [n, 2], log_density, log_kde, p_value [n] FP64; decision, reason [n] INT32, numbered as in
              darksight/v1/monitor.proto

The response has the parameters `batch_id` (row r has the prediction id "<batch_id>-<r>") and `recorded`. With the
parameter `partial_ok` of a request, a row that is not valid does not fail the call. With `idempotency_key`, a text
of up to 64 characters, a request that is repeated is stored once; with `probe` it is neither stored nor counted.
Parameters `tag_<key>` of a request are tags of all rows. Responses are raw if requests are.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from darksight_client.stubs.inference import grpc_predict_v2_pb2 as pb2
from numpy.typing import NDArray

from darksight_core import __version__
from darksight_core.rows.schema import SCHEMA
from darksight_core.rows.tags import COLUMN_PREFIX
from darksight_service.control.registry import ActiveModel
from darksight_service.control.tokens import OPEN
from darksight_service.errors import NotFoundError, NotLoadedError, RequestError
from darksight_service.operations.operation import Call, Service, operation
from darksight_service.scoring.service import ScoreReply, Tensor
from darksight_service.store.ids import MAX_ROWS

__all__ = [
    "INFERENCE",
    "model_config",
    "model_infer",
    "model_metadata",
    "model_ready",
    "repository_index",
    "server_live",
    "server_metadata",
    "server_ready",
]

INFERENCE = pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]

_MODEL = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
_PLATFORM = "darksight"
_KEY = "idempotency_key"
# A client names each output once.
_MAX_OUTPUTS = 64
_MAX_PARAMETERS = 1_000


class _Output(NamedTuple):
    """A tensor of the response: its types in numpy and in the protocol, and the shape of a row."""

    dtype: np.dtype[Any]
    datatype: str
    contents: str
    row_shape: tuple[int, ...] = ()


_DOUBLE = _Output(np.dtype("<f8"), "FP64", "fp64_contents")
_NUMBER = _Output(np.dtype("<i4"), "INT32", "int_contents")

_INPUTS: Mapping[str, tuple[np.dtype[Any], str]] = {
    "FP32": (np.dtype("<f4"), "fp32_contents"),
    "FP64": (np.dtype("<f8"), "fp64_contents"),
}
_OUTPUTS = {
    column.name: (_DOUBLE if column.dtype == "<f8" else _NUMBER)._replace(
        row_shape=(column.width,) if column.width > 1 else ()
    )
    for column in SCHEMA
    if column.response
}


@operation(INFERENCE, "score", "call", *(f"POST {path}/infer" for path in _MODEL), is_scoring=True, span="infer")
def model_infer(service: Service, request: pb2.ModelInferRequest, call: Call) -> pb2.ModelInferResponse:
    """Score predictions."""
    names = _wanted(request)
    kind, values = _read_input(request)
    reply = service.scoring.score(
        request.model_name,
        request.model_version,
        values,
        logits=kind == "logits",
        partial_ok=_is_set(request, "partial_ok"),
        is_probe=_is_set(request, "probe"),
        idempotency_key=request.parameters[_KEY].string_param if _KEY in request.parameters else "",
        tags=_tags(request),
        trace=call.trace,
        is_wanted=call.is_active,
    )
    return _response(request, reply, names)


@operation(INFERENCE, "score", "call", *(f"GET {path}/ready" for path in _MODEL))
def model_ready(service: Service, request: pb2.ModelReadyRequest, call: Call) -> pb2.ModelReadyResponse:
    """Whether a model is loaded."""
    try:
        service.scoring.model(request.name, request.version)
    except (NotFoundError, NotLoadedError, RequestError):
        return pb2.ModelReadyResponse(ready=False)
    return pb2.ModelReadyResponse(ready=True)


@operation(INFERENCE, "score", "call", *(f"GET {path}" for path in _MODEL))
def model_metadata(service: Service, request: pb2.ModelMetadataRequest, call: Call) -> pb2.ModelMetadataResponse:
    """Inputs and outputs of a model."""
    active = service.scoring.model(request.name, request.version)
    tensor = pb2.ModelMetadataResponse.TensorMetadata
    name, classes = _needed(active)
    return pb2.ModelMetadataResponse(
        name=active.model,
        versions=[active.version],
        platform=_PLATFORM,
        inputs=[tensor(name=name, datatype="FP32", shape=[-1, classes])],
        outputs=[
            tensor(name=name, datatype=output.datatype, shape=(-1, *output.row_shape))
            for name, output in _OUTPUTS.items()
        ],
    )


@operation(INFERENCE, "score", "call", *(f"GET {path}/config" for path in _MODEL))
def model_config(service: Service, request: pb2.ModelConfigRequest, call: Call) -> pb2.ModelConfigResponse:
    """Configuration as Triton puts it, without the batch in shapes."""
    active = service.scoring.model(request.name, request.version)
    name, classes = _needed(active)
    config = pb2.ModelConfig(
        name=active.model,
        platform=_PLATFORM,
        backend=_PLATFORM,
        max_batch_size=MAX_ROWS,
        input=[pb2.ModelInput(name=name, data_type=pb2.TYPE_FP32, dims=[classes])],
        output=[
            # Triton has no tensors without dimensions: one number per row is [1].
            pb2.ModelOutput(name=name, data_type=f"TYPE_{output.datatype}", dims=output.row_shape or (1,))
            for name, output in _OUTPUTS.items()
        ],
    )
    return pb2.ModelConfigResponse(config=config)


@operation(INFERENCE, "score", "call", "GET /v2", lists_models=True)
def server_metadata(service: Service, request: pb2.ServerMetadataRequest, call: Call) -> pb2.ServerMetadataResponse:
    """Name, version and extensions of the server."""
    return pb2.ServerMetadataResponse(name=_PLATFORM, version=__version__, extensions=["model_configuration"])


@operation(INFERENCE, OPEN, "open", "GET /v2/health/live", lists_models=True)
def server_live(service: Service, request: pb2.ServerLiveRequest, call: Call) -> pb2.ServerLiveResponse:
    """Whether the server runs."""
    return pb2.ServerLiveResponse(live=True)


@operation(INFERENCE, OPEN, "open", "GET /v2/health/ready", lists_models=True)
def server_ready(service: Service, request: pb2.ServerReadyRequest, call: Call) -> pb2.ServerReadyResponse:
    """Whether a model is loaded, and every model that was served before."""
    return pb2.ServerReadyResponse(ready=bool(service.scoring.models()) and service.scoring.registry.is_ready)


@operation(INFERENCE, "read", "call", "POST /v2/repository/index", lists_models=True)
def repository_index(service: Service, request: pb2.RepositoryIndexRequest, call: Call) -> pb2.RepositoryIndexResponse:
    """The active version of each model."""
    caller, index = call.caller, pb2.RepositoryIndexResponse.ModelIndex
    models = service.scoring.models().items()
    return pb2.RepositoryIndexResponse(
        models=[index(name=name, version=each.version, state="READY") for name, each in models if caller.may_use(name)]
    )


def _needed(active: ActiveModel) -> tuple[str, int]:
    """Name of the input that a model needs, and K."""
    name = "logits" if active.gate.needs_logits else "probs"
    return name, active.bundle.scorer.n_inputs


def _is_set(request: pb2.ModelInferRequest, name: str) -> bool:
    return name in request.parameters and request.parameters[name].bool_param


def _tags(request: pb2.ModelInferRequest) -> dict[str, str]:
    """Tags of all rows: the parameters whose names start with `tag_`."""
    if len(request.parameters) > _MAX_PARAMETERS:
        raise RequestError(
            f"parameters: there are {len(request.parameters):,}; the limit is {_MAX_PARAMETERS}", field="parameters"
        )
    return {
        name.removeprefix(COLUMN_PREFIX): value.string_param
        for name, value in request.parameters.items()
        if name.startswith(COLUMN_PREFIX)
    }


def _wanted(request: pb2.ModelInferRequest) -> Sequence[str]:
    """The requested outputs; all if none is named."""
    if len(request.outputs) > _MAX_OUTPUTS:
        raise RequestError(f"outputs: there are {len(request.outputs):,}; the limit is {_MAX_OUTPUTS}", field="outputs")
    for output in request.outputs:
        if output.name not in _OUTPUTS:
            raise RequestError(
                f"outputs: there is no {output.name[:100]!r}; there are {', '.join(_OUTPUTS)}", field="outputs"
            )
        for name in ("classification", "shared_memory_region"):
            if name in output.parameters:
                raise RequestError(f"outputs: {name} is not supported", field="outputs")
    return list(dict.fromkeys(output.name for output in request.outputs)) or list(_OUTPUTS)


def _read_input(request: pb2.ModelInferRequest) -> tuple[str, NDArray[Any] | Tensor]:
    """Name of the input tensor and its rows, (n, K)."""
    if len(request.inputs) != 1 or request.inputs[0].name not in ("probs", "logits"):
        names = ", ".join(repr(tensor.name[:100]) for tensor in request.inputs[:5]) or "none"
        raise RequestError(f"inputs: must be one tensor, 'probs' or 'logits', not {names}", field="inputs")
    tensor = request.inputs[0]
    if tensor.datatype not in _INPUTS:
        raise RequestError(f"inputs: {tensor.name} must be FP32 or FP64, not {tensor.datatype[:20]!r}", field="inputs")
    dtype, field = _INPUTS[tensor.datatype]
    shape = tuple(tensor.shape[:3])
    # numpy has no larger arrays, not even without rows.
    if len(shape) not in (1, 2) or min(shape) < 0 or max(shape) > 1 << 31:
        raise RequestError(f"inputs: {tensor.name} must be [n, K] or [K], not {tensor.shape[:8]}", field="inputs")
    if len(request.raw_input_contents) > 1:
        raise RequestError(f"inputs: {len(request.raw_input_contents):,} raw contents for one tensor", field="inputs")
    if request.raw_input_contents:
        found = len(request.raw_input_contents[0]) / dtype.itemsize
    else:
        found = len(getattr(tensor.contents, field))
    if found != math.prod(shape):
        unit = "raw values" if request.raw_input_contents else f"values of {field}"
        raise RequestError(
            f"inputs: {tensor.name} has {found:g} {unit}, but its shape {list(shape)} needs {math.prod(shape)}",
            field="inputs",
        )
    rows, classes = shape if len(shape) == 2 else (1, *shape)
    if not request.raw_input_contents:
        return tensor.name, np.array(getattr(tensor.contents, field), dtype).reshape(rows, classes)
    data = request.raw_input_contents[0]
    if rows and dtype.itemsize == 4:
        return tensor.name, Tensor(data, (rows, classes))
    return tensor.name, np.frombuffer(data, dtype).reshape(rows, classes)


def _response(request: pb2.ModelInferRequest, reply: ScoreReply, names: Sequence[str]) -> pb2.ModelInferResponse:
    """Columns as tensors."""
    response = pb2.ModelInferResponse(model_name=reply.model, model_version=reply.version, id=request.id)
    response.parameters["batch_id"].string_param = str(uuid.UUID(bytes=reply.batch_id))
    response.parameters["recorded"].bool_param = reply.recorded
    for name in names:
        output = _OUTPUTS[name]
        column = reply.block.column(name).astype(output.dtype, copy=False)
        tensor = response.outputs.add(name=name, datatype=output.datatype, shape=column.shape)
        if request.raw_input_contents:
            response.raw_output_contents.append(column.tobytes())
        else:
            getattr(tensor.contents, output.contents).extend(column.ravel().tolist())
    return response
