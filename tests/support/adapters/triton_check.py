"""Run by test_adapters.py: tritonclient, without any code of DarkSight.

    python triton_check.py TARGET MODEL ROWS.npz PROTO

ROWS.npz holds probabilities and logits, and as `probs.<column>` and `logits.<column>` what DarkSight's own Score said
about them; PROTO is our description of the protocol, serialised. Exit status 0 if all agrees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

TYPES = dict.fromkeys(("points", "log_density", "log_kde", "p_value"), "FP64") | dict.fromkeys(
    ("decision", "reason"), "INT32"
)
SHAPES = [([2, 10], 19), ([-1, 10], 10), ([1, 1, 10], 10), ([], 0), ([1 << 62, 0], 0), ([1 << 40, 10], 10)]
"""With a number of values that does not belong to them."""


def main() -> None:
    """All checks."""
    target, model, rows, proto = sys.argv[1:]
    data = np.load(rows)
    check_proto(Path(proto).read_bytes())
    with triton.InferenceServerClient(target) as client:
        check_state(client, model, data)
        check_infer(client, model, data)
        check_refusals(client, model, data)
    check_typed(target, model, data)


def check_proto(serialised: bytes) -> None:
    """Every message, field and enum of ours is one of theirs, with the same number and type."""
    ours = descriptor_pb2.FileDescriptorProto.FromString(serialised)
    theirs: dict[str, Any] = {}
    enums: dict[str, Any] = {}
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        theirs |= {message.name: message for message in file.message_type}
        enums |= {enum.name: enum for enum in file.enum_type}
    for message in ours.message_type:
        check_message(message, theirs[message.name])
    for enum in ours.enum_type:
        assert numbers(enum.value) == numbers(enums[enum.name].value), enum.name
    methods = {method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    assert ours.package == "inference"
    assert {method.name for method in ours.service[0].method} <= methods


def check_message(ours: Any, theirs: Any) -> None:
    """The same with what is nested."""
    fields = {field.name: field for field in theirs.field}
    for field in ours.field:
        other = fields[field.name]
        assert (field.number, field.type, field.label, field.type_name) == (
            other.number,
            other.type,
            other.label,
            other.type_name,
        ), f"{ours.name}.{field.name}"
    nested = {message.name: message for message in theirs.nested_type}
    for message in ours.nested_type:
        check_message(message, nested[message.name])


def numbers(values: Any) -> dict[str, int]:
    """Of an enum."""
    return {value.name: value.number for value in values}


def check_state(client: Any, model: str, data: Any) -> None:
    """Health, metadata, configuration, index."""
    classes, version = data["probs"].shape[1], str(data["version"])
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    assert client.is_model_ready(model, version)
    assert not client.is_model_ready("unknown")
    assert not client.is_model_ready(model, "0" * 64)
    assert client.get_server_metadata().name == "darksight"

    metadata = client.get_model_metadata(model)
    assert (metadata.name, list(metadata.versions)) == (model, [version])
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
        ("probs", "FP32", [-1, classes])
    ]
    assert {each.name: each.datatype for each in metadata.outputs} == TYPES

    config = client.get_model_config(model).config
    assert config.name == model
    assert config.max_batch_size > 1
    assert [(each.name, list(each.dims)) for each in config.input] == [("probs", [classes])]
    assert {each.name for each in config.output} == set(TYPES)

    index = client.get_model_repository_index()
    assert [(each.name, each.state) for each in index.models] == [(model, "READY")]


def infer(client: Any, model: str, name: str, values: Any, outputs: Any = None, **options: Any) -> Any:
    """A call as users of Triton make it."""
    tensor = triton.InferInput(name, values.shape, "FP32" if values.dtype == np.float32 else "FP64")
    tensor.set_data_from_numpy(values)
    return client.infer(model, [tensor], outputs=outputs, **options)


def check_infer(client: Any, model: str, data: Any) -> None:
    """Raw tensors: bit for bit what Score says."""
    for kind in ("probs", "logits"):
        result = infer(client, model, kind, data[kind], request_id="mine")
        for name in TYPES:
            column, expected = result.as_numpy(name), data[f"{kind}.{name}"]
            assert column.shape == expected.shape, name
            assert column.tobytes() == expected.astype(column.dtype).tobytes(), (kind, name)
        response = result.get_response()
        assert (response.model_name, response.model_version, response.id) == (model, str(data["version"]), "mine")
        assert response.parameters["recorded"].bool_param
        assert len(response.parameters["batch_id"].string_param) == 36

    row = infer(client, model, "probs", data["probs"][0])
    assert row.as_numpy("p_value").tobytes() == data["probs.p_value"][:1].tobytes()

    wide = infer(client, model, "probs", data["probs"].astype(np.float64))
    assert wide.as_numpy("points").tobytes() == data["probs.points"].tobytes()

    wanted = [triton.InferRequestedOutput(name) for name in ("reason", "p_value")]
    some = infer(client, model, "probs", data["probs"], wanted)
    assert [each.name for each in some.get_response().outputs] == ["reason", "p_value"]
    assert some.as_numpy("reason").tolist() == data["probs.reason"].tolist()
    assert some.as_numpy("p_value").tobytes() == data["probs.p_value"].tobytes()

    empty = infer(client, model, "probs", data["probs"][:0])
    assert empty.as_numpy("points").shape == (0, 2)

    bad = data["probs"].copy()
    bad[1, 0] = np.nan
    partial = infer(client, model, "probs", bad, parameters={"partial_ok": True})
    assert partial.as_numpy("reason")[1] == 5
    keep = np.arange(len(bad)) != 1
    assert partial.as_numpy("p_value")[keep].tobytes() == data["probs.p_value"][keep].tobytes()


def check_refusals(client: Any, model: str, data: Any) -> None:
    """Errors have the statuses that Triton's users know."""
    probs = data["probs"]
    bad = probs.copy()
    bad[1, 0] = np.nan
    outputs = [triton.InferRequestedOutput("embedding"), triton.InferRequestedOutput("p_value", class_count=2)]
    refused("NOT_FOUND", lambda: infer(client, "unknown", "probs", probs))
    refused("NOT_FOUND", lambda: client.get_model_metadata("unknown"))
    refused("NOT_FOUND", lambda: client.get_model_config("unknown"))
    refused("INVALID_ARGUMENT", lambda: infer(client, model, "images", probs))
    refused("INVALID_ARGUMENT", lambda: infer(client, model, "probs", probs[:, :-1].copy()))
    refused("INVALID_ARGUMENT", lambda: infer(client, model, "probs", bad))
    for output in outputs:
        refused("INVALID_ARGUMENT", lambda output=output: infer(client, model, "probs", probs, [output]))


def refused(status: str, call: Callable[[], Any]) -> None:
    """A call must fail with a status."""
    found = "OK"
    try:
        call()
    except InferenceServerException as error:
        found = str(error.status())
    except grpc.RpcError as error:
        found = str(error.code())
    assert found == f"StatusCode.{status}", (status, found)


def check_typed(target: str, model: str, data: Any) -> None:
    """Typed contents, which tritonclient does not offer, through its stub."""
    with grpc.insecure_channel(target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for datatype, field in (("FP32", "fp32_contents"), ("FP64", "fp64_contents")):
            request = service_pb2.ModelInferRequest(model_name=model)
            tensor = request.inputs.add(name="probs", datatype=datatype, shape=data["probs"].shape)
            getattr(tensor.contents, field).extend(data["probs"].ravel().tolist())
            response = stub.ModelInfer(request)
            assert not response.raw_output_contents
            for output in response.outputs:
                values = output.contents.fp64_contents if output.datatype == "FP64" else output.contents.int_contents
                expected = data[f"probs.{output.name}"]
                assert tuple(output.shape) == expected.shape
                assert list(values) == expected.ravel().tolist(), output.name

        for shape, count in SHAPES:
            request = service_pb2.ModelInferRequest(model_name=model)
            tensor = request.inputs.add(name="probs", datatype="FP32", shape=shape)
            tensor.contents.fp32_contents.extend([0.1] * count)
            refused("INVALID_ARGUMENT", lambda request=request: stub.ModelInfer(request))


if __name__ == "__main__":
    main()
