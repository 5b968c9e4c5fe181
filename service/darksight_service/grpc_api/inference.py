"""The Open Inference Protocol on the wire, so that clients of Triton and KServe need no change.

    input     "probs" or "logits", FP32 or FP64, [n, K] or [K]; raw or typed contents
    outputs   points [n, 2], log_density, log_kde, p_value [n] FP64; decision, reason [n] INT32, numbered as in
              darksight/v1/monitor.proto

What a Score answers beside columns travels as parameters of the response: `batch_id` (row r of it is the prediction
"<batch_id>-<r>") and `recorded`. The parameter `partial_ok` of a request says that a bad row may be answered as such.
Answers are raw where requests were.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np
from darksight_client.stubs.inference import grpc_predict_v2_pb2 as pb2
from numpy.typing import NDArray

from darksight_core import __version__
from darksight_core.gate.gate import LOGIT_SCORES
from darksight_service.control.registry import ActiveModel
from darksight_service.control.tokens import OPEN
from darksight_service.errors import NotFoundError, RequestError
from darksight_service.grpc_api.pools import BulkPool
from darksight_service.grpc_api.scoring import parse
from darksight_service.ingest.records import MAX_ROWS
from darksight_service.scoring.service import Scored, ScoringService, Tensor

__all__ = ["InferenceServicer"]

Handler = Callable[[bytes, grpc.ServicerContext], bytes]

_PLATFORM = "darksight"


class _Output(NamedTuple):
    """A tensor of the answer: its type here and on the wire, and the size of a row."""

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
    "points": _DOUBLE._replace(row_shape=(2,)),
    "log_density": _DOUBLE,
    "log_kde": _DOUBLE,
    "p_value": _DOUBLE,
    "decision": _NUMBER,
    "reason": _NUMBER,
}


class InferenceServicer:
    """Handlers of GRPCInferenceService.

    Parameters
    ----------
    monitor
        Which answers.
    bulk
        Where large batches are judged.
    """

    def __init__(self, monitor: ScoringService, bulk: BulkPool) -> None:
        self._monitor = monitor
        self._bulk = bulk

    def methods(self) -> Mapping[str, tuple[str, Handler]]:
        """Scope and handler of each method."""
        return {
            "ServerLive": (OPEN, self.server_live),
            "ServerReady": (OPEN, self.server_ready),
            "ModelReady": (OPEN, self.model_ready),
            "ServerMetadata": ("score", self.server_metadata),
            "ModelMetadata": ("score", self.model_metadata),
            "ModelConfig": ("score", self.model_config),
            "ModelInfer": ("score", self.model_infer),
            "RepositoryIndex": ("read", self.repository_index),
        }

    def server_live(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ServerLive."""
        return pb2.ServerLiveResponse(live=True).SerializeToString()

    def server_ready(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ServerReady: if there is a model to ask."""
        return pb2.ServerReadyResponse(ready=bool(self._monitor.models())).SerializeToString()

    def model_ready(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ModelReady."""
        request = parse(pb2.ModelReadyRequest, data)
        try:
            self._monitor.model(request.name, request.version)
        except (NotFoundError, RequestError):
            return pb2.ModelReadyResponse(ready=False).SerializeToString()
        return pb2.ModelReadyResponse(ready=True).SerializeToString()

    def server_metadata(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ServerMetadata."""
        response = pb2.ServerMetadataResponse(name=_PLATFORM, version=__version__, extensions=["model_configuration"])
        return response.SerializeToString()

    def model_metadata(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ModelMetadata: the one input that is needed, and all outputs."""
        request = parse(pb2.ModelMetadataRequest, data)
        serving = self._monitor.model(request.name, request.version)
        tensor = pb2.ModelMetadataResponse.TensorMetadata
        name, classes = _needed(serving)
        response = pb2.ModelMetadataResponse(
            name=serving.model,
            versions=[serving.version],
            platform=_PLATFORM,
            inputs=[tensor(name=name, datatype="FP32", shape=[-1, classes])],
            outputs=[
                tensor(name=name, datatype=output.datatype, shape=(-1, *output.row_shape))
                for name, output in _OUTPUTS.items()
            ],
        )
        return response.SerializeToString()

    def model_config(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ModelConfig: the same as Triton puts it, without the batch in shapes."""
        request = parse(pb2.ModelConfigRequest, data)
        serving = self._monitor.model(request.name, request.version)
        name, classes = _needed(serving)
        config = pb2.ModelConfig(
            name=serving.model,
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
        return pb2.ModelConfigResponse(config=config).SerializeToString()

    def repository_index(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """RepositoryIndex: the active version of each model."""
        parse(pb2.RepositoryIndexRequest, data)
        index = pb2.RepositoryIndexResponse.ModelIndex
        models = [
            index(name=name, version=serving.version, state="READY") for name, serving in self._monitor.models().items()
        ]
        return pb2.RepositoryIndexResponse(models=models).SerializeToString()

    def model_infer(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ModelInfer: Score."""
        request = parse(pb2.ModelInferRequest, data)
        names = _wanted(request)
        kind, values = _read_input(request)

        def answer() -> Scored:
            return self._monitor.score(
                request.model_name,
                request.model_version,
                values,
                logits=kind == "logits",
                partial_ok=request.parameters["partial_ok"].bool_param if "partial_ok" in request.parameters else False,
                is_wanted=context.is_active,
            )

        scored = self._bulk.run(4 * values.shape[0] * values.shape[1], answer)
        return _response(request, scored, names).SerializeToString()


def _needed(serving: ActiveModel) -> tuple[str, int]:
    """Name of the input that a model needs, and K."""
    name = "logits" if serving.gate.reject_score in LOGIT_SCORES else "probs"
    return name, serving.bundle.scorer.n_inputs


def _wanted(request: pb2.ModelInferRequest) -> Sequence[str]:
    """Outputs that are asked for; all if none is."""
    for output in request.outputs:
        if output.name not in _OUTPUTS:
            raise RequestError(
                f"outputs: there is no {output.name[:100]!r}; there are {', '.join(_OUTPUTS)}", field="outputs"
            )
        for name in output.parameters:
            if name in ("classification", "shared_memory_region"):
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
    shape = tuple(tensor.shape)
    # Beyond that numpy refuses even an array without a row.
    if len(shape) not in (1, 2) or min(shape) < 0 or max(shape) > 1 << 31:
        raise RequestError(f"inputs: {tensor.name} must be [n, K] or [K], not {list(shape)[:8]}", field="inputs")
    if request.raw_input_contents:
        found = sum(map(len, request.raw_input_contents)) / dtype.itemsize
    else:
        found = len(getattr(tensor.contents, field))
    if found != math.prod(shape) or len(request.raw_input_contents) > 1:
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


def _response(request: pb2.ModelInferRequest, scored: Scored, names: Sequence[str]) -> pb2.ModelInferResponse:
    """Columns as tensors."""
    response = pb2.ModelInferResponse(model_name=scored.model, model_version=scored.version, id=request.id)
    response.parameters["batch_id"].string_param = str(uuid.UUID(bytes=scored.batch_id))
    response.parameters["recorded"].bool_param = scored.recorded
    for name in names:
        output = _OUTPUTS[name]
        column = scored.block.column(name).astype(output.dtype, copy=False)
        tensor = response.outputs.add(name=name, datatype=output.datatype, shape=column.shape)
        if request.raw_input_contents:
            response.raw_output_contents.append(column.tobytes())
        else:
            getattr(tensor.contents, output.contents).extend(column.ravel().tolist())
    return response
