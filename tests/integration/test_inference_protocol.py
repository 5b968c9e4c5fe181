"""The Open Inference Protocol, spoken by Triton's own client in a venv and a process of its own.

It pins protobuf below ours, so it cannot be imported here. The venv is made once and kept in pytest's cache.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from darksight_client import Client
from darksight_client.columns import COLUMNS
from darksight_client.stubs.inference import grpc_predict_v2_pb2
from google.protobuf import descriptor_pb2

from darksight_core.bundle import write_bundle
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.servers import Server, running_server

TRITON = "tritonclient[grpc,http]==2.73.0"
CHECKS = Path(__file__).parents[1] / "support"
CLASSES = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with one model of 10 classes."""
    folder = tmp_path_factory.mktemp("inference")
    write_bundle(folder / "digits.safetensors", make_bundle(classes=CLASSES))
    models, options = {"digits": folder / "digits.safetensors"}, ("--workers", "1", "--api-port", "0")
    with running_server(models, folder / "data", *options) as server:
        yield server


@pytest.fixture(scope="module")
def triton_python(pytestconfig: pytest.Config) -> Path:
    """Python of a venv that has tritonclient."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("triton") / TRITON.replace("[grpc,http]==", "-http-")
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        made = subprocess.run([python, "-m", "pip", "install", "--quiet", TRITON], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"{TRITON} cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
        ready.touch()
    return python


def test_tritons_client_gets_what_ours_gets(server: Server, triton_python: Path, tmp_path: Path) -> None:
    """Live, ready, metadata, config and index; ModelInfer raw and typed equals Score bit for bit; errors have their
    statuses; and all numbers in our proto are those of Triton's.
    """
    probs = make_probs(200, CLASSES, seed=5)
    arrays = {"probs": probs, "logits": np.log(probs + np.float32(1e-9))}
    with Client(server.grpc_target, timeout_seconds=30.0) as client:
        for kind in ("probs", "logits"):
            scored = client.score("digits", arrays[kind], logits=kind == "logits")
            arrays |= {f"{kind}.{name}": getattr(scored, name) for name in COLUMNS}
    np.savez(tmp_path / "rows.npz", version=np.array(scored.version), **arrays)  # type: ignore[arg-type]  # numpy's stub
    file = descriptor_pb2.FileDescriptorProto()
    grpc_predict_v2_pb2.DESCRIPTOR.CopyToProto(file)
    (tmp_path / "proto").write_bytes(file.SerializeToString())

    done = subprocess.run(
        [
            triton_python,
            CHECKS / "triton_check.py",
            server.grpc_target,
            "digits",
            tmp_path / "rows.npz",
            tmp_path / "proto",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_tritons_http_client_gets_what_ours_gets(server: Server, triton_python: Path, tmp_path: Path) -> None:
    """State and metadata; infer with binary tensors and with JSON equals Score bit for bit; errors have their texts."""
    probs = make_probs(200, CLASSES, seed=5)
    with Client(server.grpc_target, timeout_seconds=30.0) as client:
        scored = client.score("digits", probs)
    columns = {name: getattr(scored, name) for name in COLUMNS}
    np.savez(tmp_path / "rows.npz", probs=probs, **columns)

    address = server.api_url.partition("://")[2]
    check = CHECKS / "triton_http_check.py"
    done = subprocess.run(
        [triton_python, check, address, "digits", tmp_path / "rows.npz"], capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stdout + done.stderr
