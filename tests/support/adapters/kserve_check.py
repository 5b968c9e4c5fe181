"""Run by test_adapters.py: the clients of KServe, without any code of DarkSight.

    python kserve_check.py API_URL GRPC_TARGET MODEL ROWS.npz

ROWS.npz holds probabilities, and by column what DarkSight's own Score said about them. Exit status 0 if all agrees.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

COLUMNS = ("points", "log_density", "log_kde", "p_value", "decision", "reason")


async def main() -> None:
    """All checks."""
    url, target, model, rows = sys.argv[1:]
    data = np.load(rows)
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await rest.is_server_live(url)
    assert await rest.is_server_ready(url)
    assert await rest.is_model_ready(url, model)
    for binary in (False, True):
        request = request_of(model, data["probs"], binary=binary)
        check(await rest.infer(url, request, model_name=model), data)
    refused = None
    try:
        await rest.infer(url, request_of("unknown", data["probs"], binary=True), model_name="unknown")
    except httpx.HTTPStatusError as error:
        refused = error.response.status_code
    assert refused == 404
    await rest.close()

    async with InferenceGRPCClient(target) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(model)
        check(await client.infer(request_of(model, data["probs"], binary=True)), data)


def request_of(model: str, probs: Any, *, binary: bool) -> InferRequest:
    """A request as users of KServe make it."""
    tensor = InferInput("probs", list(probs.shape), "FP32")
    tensor.set_data_from_numpy(probs, binary_data=binary)
    return InferRequest(model, [tensor])


def check(response: Any, data: Any) -> None:
    """Bit for bit what Score says."""
    found = {output.name: output.as_numpy() for output in response.outputs}
    for name in COLUMNS:
        expected = data[name]
        assert found[name].shape == expected.shape, name
        assert found[name].tobytes() == expected.astype(found[name].dtype).tobytes(), name


if __name__ == "__main__":
    asyncio.run(main())
