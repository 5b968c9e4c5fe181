"""Run by test_adapters.py: a predictor of KServe behind examples/kserve_transformer.py, both as real servers.

    python kserve_transformer_check.py EXAMPLE TARGET ROWS.npz

ROWS.npz holds probabilities and what DarkSight's own Score said about them. Exit status 0 if the transformer says the
same. With `predictor PORT` alone it is the predictor.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import kserve
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferOutput, InferRequest, InferResponse
from kserve.inference_client import RESTConfig


class Predictor(kserve.Model):
    """A classifier whose inputs are its outputs."""

    def __init__(self) -> None:
        super().__init__("digits")
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """The input as the output."""
        rows = payload.inputs[0].as_numpy()
        output = InferOutput("probabilities", list(rows.shape), "FP32")
        output.set_data_from_numpy(rows.astype(np.float32), binary_data=False)
        return InferResponse(payload.id, "digits", [output])


def main() -> None:
    """Start both, and call the transformer."""
    if sys.argv[1] == "predictor":
        kserve.ModelServer(http_port=int(sys.argv[2]), enable_grpc=False).start([Predictor()])
        return
    example, target, rows = sys.argv[1:]
    ports = free_port(), free_port()
    options = ("--model_name", "digits", "--predictor_protocol", "v2", "--enable_grpc", "false", "--darksight", target)
    commands = [
        [sys.executable, __file__, "predictor", str(ports[0])],
        [sys.executable, example, *options, "--http_port", str(ports[1]), "--predictor_host", f"127.0.0.1:{ports[0]}"],
    ]
    processes = [subprocess.Popen(command, stdout=sys.stderr) for command in commands]
    try:
        for port in ports:
            wait(f"http://127.0.0.1:{port}/v2/health/ready", processes)
        asyncio.run(check(f"http://127.0.0.1:{ports[1]}", np.load(rows)))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


async def check(url: str, data: Any) -> None:
    """The decisions of the transformer are those of Score."""
    tensor = InferInput("features", [8, data["probs"].shape[1]], "FP32")
    tensor.set_data_from_numpy(data["probs"][:8], binary_data=False)
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    response = await client.infer(url, InferRequest("digits", [tensor]), model_name="digits")
    await client.close()
    found = {output.name: output.as_numpy() for output in response.outputs}
    assert found["accepted"].tolist() == (data["decision"][:8] == 1).tolist()
    np.testing.assert_array_equal(found["probabilities"].astype(np.float32), data["probs"][:8])
    assert len(set(found["prediction_id"].tolist())) == 8


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def wait(url: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Until a server is ready."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        try:
            if httpx.get(url, timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} is not ready")


if __name__ == "__main__":
    main()
