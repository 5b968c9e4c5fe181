"""The page about the messages, from the comments in protos/."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from docs.generate.markdown import join, table

__all__ = ["page"]

_PROTOS = Path(__file__).parents[2] / "protos"
_FILES = ("darksight/v1/monitor.proto", "darksight/v1/admin.proto")
# Numbers of fields in descriptor.proto, of which the paths of comments consist.
_MESSAGE, _ENUM, _SERVICE, _FIELD, _METHOD, _VALUE, _PACKAGE = 4, 5, 6, 2, 2, 2, 2


def page() -> str:
    """Services, messages and enums with their comments."""
    parts = [
        "# gRPC messages",
        "The files are in `protos/`; `darksight_client` has them as Python modules. Beside these services the server "
        "has `inference.GRPCInferenceService`, which is the Open Inference Protocol v2 as KServe and Triton define it, "
        "and `grpc.health.v1.Health`.",
    ]
    for file in _descriptors():
        parts += _describe(file)
    return join(parts)


def _descriptors() -> Iterator[FileDescriptorProto]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "descriptors")
        options = (f"-I{_PROTOS}", "--include_source_info", f"--descriptor_set_out={out}")
        subprocess.run([Path(sys.executable).with_name("protoc"), *options, *_FILES], check=True)
        yield from FileDescriptorSet.FromString(out.read_bytes()).file


def _describe(file: FileDescriptorProto) -> Iterator[str]:
    comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}

    def comment(*path: int) -> str:
        return " ".join(comments.get(path, "").split())

    yield f"## {file.name}"
    yield comment(_PACKAGE)
    for i, service in enumerate(file.service):
        yield f"### {service.name}"
        yield comment(_SERVICE, i)
        rows = [
            (
                f"`{method.name}`",
                f"{'stream of ' if method.client_streaming else ''}`{_short(method.input_type)}`",
                f"{'stream of ' if method.server_streaming else ''}`{_short(method.output_type)}`",
                comment(_SERVICE, i, _METHOD, j),
            )
            for j, method in enumerate(service.method)
        ]
        yield table(("method", "request", "response", "what it does"), rows)
    for i, message in enumerate(file.message_type):
        yield f"### {message.name}"
        yield comment(_MESSAGE, i)
        rows = [
            (f"`{field.name}`", field.number, _type(field, message), comment(_MESSAGE, i, _FIELD, j))
            for j, field in enumerate(message.field)
        ]
        if rows:
            yield table(("field", "number", "type", "meaning"), rows)
    for i, enum in enumerate(file.enum_type):
        yield f"### {enum.name}"
        yield comment(_ENUM, i)
        rows = [(f"`{value.name}`", value.number, comment(_ENUM, i, _VALUE, j)) for j, value in enumerate(enum.value)]
        yield table(("value", "number", "meaning"), rows)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    name = _short(field.type_name) or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    for nested in message.nested_type:
        if nested.options.map_entry and nested.name == name:
            key, value = nested.field
            return f"map of {_type(key, nested)} to {_type(value, nested)}"
    return f"repeated `{name}`" if field.label == FieldDescriptorProto.LABEL_REPEATED else f"`{name}`"
