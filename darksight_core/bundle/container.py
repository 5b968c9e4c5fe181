"""Tensors and a manifest in one safetensors file, such that no altered file is ever taken for the one that was written.

    8 bytes   length N of the header, little endian
    N bytes   JSON, padded with spaces: {"__metadata__": {...}, name: {"dtype", "shape", "data_offsets"}, ...}
    the rest  the tensors, without gaps

Two entries of the metadata make it ours: `darksight`, the manifest as canonical JSON, and `darksight_sha256`, the hash
of that text. The manifest in turn has `tensors`, dtype and shape of each, and `content_sha256`, a hash over them all.
The header has no other content, and it must be spelled exactly as compact JSON spells it. So every byte of the file is
covered: the length by the header, the header by its spelling and the manifest, the tensors by the hash. Every later
schema keeps these two entries; this is how a file that is too new is told from one that is damaged.

Files are read once, into memory, and checked there; nothing in them is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from darksight_core.bundle.defects import defect

__all__ = [
    "MAX_FILE",
    "MAX_HEADER",
    "SCHEMA_VERSION",
    "Container",
    "Tensors",
    "canonical_json",
    "decode",
    "encode",
    "read_bytes",
    "version_of",
    "write_bytes",
]

Tensors: TypeAlias = Mapping[str, NDArray[Any]]

SCHEMA_VERSION = 3
"""Schema that this version writes, and the newest that it reads."""

MAX_HEADER = 16 * 2**20
"""Largest header in bytes."""

MAX_FILE = 256 * 2**20
"""Largest file in bytes."""

_DTYPES = {
    "F64": "float64",
    "F16": "float16",
    "F32": "float32",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "U64": "uint64",
    "U8": "uint8",
}
_MANIFEST, _MANIFEST_HASH = "darksight", "darksight_sha256"
_AGAIN = "Copy or fit the bundle again."


@dataclass(frozen=True, slots=True)
class Container:
    """What a file holds: its tensors by name, its manifest, and its version, the SHA-256 of its bytes."""

    tensors: dict[str, NDArray[Any]]
    manifest: dict[str, Any]
    version: str


def version_of(data: bytes) -> str:
    """Version of a bundle: the SHA-256 of its bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: object) -> str:
    """The one spelling of a JSON value: compact, keys sorted, no NaN.

    >>> canonical_json({"b": 1.0, "a": [None, "é"]})
    '{"a":[null,"é"],"b":1.0}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def encode(tensors: Tensors, manifest: Mapping[str, Any], source: str = "bundle") -> bytes:
    """Bytes of a file; equal content gives equal bytes.

    Parameters
    ----------
    tensors
        Arrays by name, finite.
    manifest
        JSON values; `schema_version`, `tensors` and `content_sha256` are added here.
    source
        Name for messages.
    """
    # The library reads memory as it lies and would write a transposed array wrongly.
    arrays = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES.values():
            raise defect(
                "bundle_tensor_spec", source, f"tensor {name} has dtype {array.dtype}, which a bundle cannot hold"
            )
    _check_finite(arrays, source)
    full = {
        **manifest,
        "schema_version": SCHEMA_VERSION,
        "tensors": {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()},
        "content_sha256": _content_hash(arrays),
    }
    try:
        text = canonical_json(full)
        digest = hashlib.sha256(text.encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise defect("bundle_manifest", source, f"the manifest cannot be written as JSON ({error})") from error
    plain = safetensors.numpy.save(arrays)
    end = 8 + int.from_bytes(plain[:8], "little")
    # The library writes metadata in an order that changes from call to call, so it is put in here.
    metadata = _compact({"__metadata__": {_MANIFEST: text, _MANIFEST_HASH: digest}})
    entries = plain[8:end].rstrip(b" ")[1:]
    header = metadata[:-1] + (b"," if arrays else b"") + entries
    header += b" " * (-len(header) % 8)
    data = len(header).to_bytes(8, "little") + header + plain[end:]
    if len(header) > MAX_HEADER or len(data) > MAX_FILE:
        raise defect(
            "bundle_size", source, f"{len(data)} bytes with {len(header)} in the header are more than may be read"
        )
    return data


def decode(data: bytes, source: str = "bundle") -> Container:
    """Inverse of `encode`; a BundleError unless these are exactly the bytes that were written.

    Parameters
    ----------
    data
        A whole file.
    source
        Name for messages.
    """
    header, end = _parse_header(data, source)
    metadata = header.pop("__metadata__", None)
    text = _manifest_text(metadata, source)
    manifest = _parse_manifest(text, source)
    specs = _check_specs(header, manifest, source)
    _check_offsets(header, specs, len(data) - end, source)
    try:
        tensors = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise defect("bundle_format", source, f"{error}. {_AGAIN}") from error
    if _content_hash(tensors) != manifest["content_sha256"]:
        raise defect("bundle_hash", source, f"the tensors were altered after they were written. {_AGAIN}")
    _check_finite(tensors, source)
    for tensor in tensors.values():
        tensor.flags.writeable = False
    return Container(tensors=tensors, manifest=manifest, version=version_of(data))


def read_bytes(path: Path, source: str) -> bytes:
    """The whole file, if it is a regular file of a size that a bundle may have; `source` is its name in messages."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise defect("bundle_not_a_file", source, "this is not a file. Name a bundle file.")
        with path.open("rb") as file:
            # One byte more than there is shows a file that grows meanwhile.
            data = file.read(found.st_size + 1) if found.st_size <= MAX_FILE else b""
    except FileNotFoundError:
        raise defect("bundle_missing", source, "there is no such file. Check the path.") from None
    except (OSError, ValueError) as error:
        # A path with a NUL byte is a ValueError.
        reason = getattr(error, "strerror", None) or error
        raise defect("bundle_unreadable", source, f"cannot be read ({reason}).") from error
    if found.st_size > MAX_FILE:
        raise defect(
            "bundle_size",
            source,
            f"{found.st_size} bytes are more than the {MAX_FILE} that a bundle may have. Name a bundle file.",
        )
    return data


def write_bytes(path: Path, data: bytes, overwrite: bool = False) -> None:
    """Write a whole file or nothing, and make it last.

    Parameters
    ----------
    path
        Where to; its directory must exist.
    data
        All bytes of the file.
    overwrite
        Whether a file that is there already may be replaced.
    """
    source = str(path)
    # Short, so that a name that the file system takes for the bundle is taken here too.
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if path.exists() and not overwrite:
            raise defect(
                "bundle_exists", source, "there is a file already. Choose another path, or allow to overwrite it."
            )
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise defect("bundle_write", source, f"cannot be written ({reason}).") from error


def _sync_directory(folder: Path) -> None:
    """Make a new name in a folder last; not every file system has a way to."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _parse_json(text: str) -> Any:
    """A JSON value; ValueError for what is no JSON, for NaN and for a key that occurs twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_header(data: bytes, source: str) -> tuple[dict[str, Any], int]:
    """The header as a dictionary, and where it ends."""
    if len(data) < 10:
        raise defect("bundle_truncated", source, f"{len(data)} bytes are too few for a bundle. {_AGAIN}")
    length = int.from_bytes(data[:8], "little")
    end = 8 + length
    if data[8:9] != b"{" or length > MAX_HEADER:
        raise defect(
            "bundle_format", source, f"this is not a safetensors file, or its first bytes were altered. {_AGAIN}"
        )
    if end > len(data):
        raise defect(
            "bundle_truncated", source, f"the header should end at byte {end}, the file does at {len(data)}. {_AGAIN}"
        )
    raw = data[8:end]
    try:
        header = _parse_json(raw.decode())
        spelled = _compact(header)
    except (ValueError, RecursionError) as error:
        raise defect("bundle_format", source, f"the header is not JSON ({error}). {_AGAIN}") from error
    if not isinstance(header, dict) or raw != spelled + b" " * (-len(spelled) % 8):
        raise defect("bundle_format", source, f"the header was altered. {_AGAIN}")
    return header, end


def _manifest_text(metadata: object, source: str) -> str:
    """The text of the manifest, if it is the one that was written."""
    text = metadata.get(_MANIFEST) if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(text, str):
        raise defect(
            "bundle_manifest_missing",
            source,
            "this safetensors file is not a DarkSight bundle. Name a file that darksight fit has written.",
        )
    if metadata != {_MANIFEST: text, _MANIFEST_HASH: hashlib.sha256(text.encode()).hexdigest()}:
        raise defect("bundle_manifest_hash", source, f"the manifest was altered after it was written. {_AGAIN}")
    return text


def _parse_manifest(text: str, source: str) -> dict[str, Any]:
    try:
        manifest = _parse_json(text)
        is_canonical = canonical_json(manifest) == text
    except (ValueError, RecursionError) as error:
        raise defect("bundle_manifest", source, f"the manifest is not JSON ({error}). {_AGAIN}") from error
    if not is_canonical:
        raise defect(
            "bundle_manifest", source, f"the manifest is not canonical JSON; it may have been edited. {_AGAIN}"
        )
    schema = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if type(schema) is not int or schema < 1:
        raise defect("bundle_manifest", source, f"the manifest has no schema version. {_AGAIN}")
    if schema < SCHEMA_VERSION:
        raise defect(
            "bundle_schema",
            source,
            f"the bundle has schema {schema}, which no release has written; this version reads schema "
            f"{SCHEMA_VERSION}. Fit the bundle again.",
            schema=schema,
        )
    if schema > SCHEMA_VERSION:
        writer = manifest.get("created_by")
        raise defect(
            "bundle_schema",
            source,
            f"the bundle has schema {schema}; this version reads up to {SCHEMA_VERSION}. "
            f"It was written by {writer}: use that version or a later one.",
            schema=schema,
        )
    if not isinstance(manifest.get("tensors"), dict) or not isinstance(manifest.get("content_sha256"), str):
        raise defect("bundle_manifest", source, f"the manifest does not list its tensors. {_AGAIN}")
    return dict(manifest)


def _check_specs(header: dict[str, Any], manifest: dict[str, Any], source: str) -> dict[str, int]:
    """Bytes of each tensor, if header and manifest agree on all of them."""
    promised = manifest["tensors"]
    for name in sorted(promised.keys() - header.keys()):
        raise defect("bundle_tensor_missing", source, f"tensor {name} is missing. {_AGAIN}", tensor=name)
    for name in sorted(header.keys() - promised.keys()):
        raise defect("bundle_tensor_extra", source, f"tensor {name} is not in the manifest. {_AGAIN}", tensor=name)
    sizes = {}
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise defect("bundle_format", source, f"the entry of tensor {name} was altered. {_AGAIN}")
        kind, shape = entry["dtype"], entry["shape"]
        dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
        if (
            dtype is None
            or not isinstance(shape, list)
            or len(shape) > 4
            or not all(type(length) is int and 0 <= length <= MAX_FILE for length in shape)
            or canonical_json(promised[name]) != canonical_json([dtype, shape])
        ):
            raise defect(
                "bundle_tensor_spec",
                source,
                f"tensor {name} is {kind} {shape}, but the manifest says {promised[name]}. {_AGAIN}",
                tensor=name,
            )
        sizes[name] = math.prod(shape) * np.dtype(dtype).itemsize
    return sizes


def _check_offsets(header: dict[str, Any], sizes: dict[str, int], available: int, source: str) -> None:
    """Tensors must follow each other without gap, in the order of the header, up to the end of the file."""
    place = 0
    for name, size in sizes.items():
        # As text, because 8.0 and true equal integers.
        if canonical_json(header[name]["data_offsets"]) != f"[{place},{place + size}]":
            raise defect(
                "bundle_format", source, f"tensor {name} is not where it should be in the file. {_AGAIN}", tensor=name
            )
        place += size
    if place != available:
        raise defect(
            "bundle_truncated", source, f"there are {available} bytes of tensors where {place} should be. {_AGAIN}"
        )


def _check_finite(tensors: Tensors, source: str) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise defect(
                "bundle_not_finite",
                source,
                f"tensor {name} has a NaN or infinite value. Fit the bundle again.",
                tensor=name,
            )


def _content_hash(tensors: Tensors) -> str:
    """SHA-256 over name, dtype, shape and bytes of each tensor, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {tensor.dtype.name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.astype(tensor.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
