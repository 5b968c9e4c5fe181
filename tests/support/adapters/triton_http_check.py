"""Run by test_adapters.py: tritonclient, without any code of DarkSight.

    python triton_http_check.py ADDRESS MODEL ROWS.npz

ROWS.npz holds probabilities, and by column what DarkSight's own Score said about them. Exit status 0 if all agrees.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

COLUMNS = ("points", "log_density", "log_kde", "p_value", "decision", "reason")


def main() -> None:
    """All checks."""
    address, model, rows = sys.argv[1:]
    data = np.load(rows)
    with triton.InferenceServerClient(address) as client:
        check_state(client, model, data)
        for binary in (True, False):
            check_infer(client, model, data, binary=binary)
        check_refusals(client, model, data)


def check_state(client: Any, model: str, data: Any) -> None:
    """Health, metadata, configuration, index."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    assert not client.is_model_ready("unknown")
    assert client.get_server_metadata()["name"] == "darksight"
    assert client.get_model_metadata(model)["inputs"][0]["shape"] == [-1, data["probs"].shape[1]]
    assert client.get_model_config(model)["name"] == model
    assert [each["name"] for each in client.get_model_repository_index()] == [model]


def infer(client: Any, model: str, values: Any, *, binary: bool, outputs: Any = None, name: str = "probs") -> Any:
    """A call as users of Triton make it."""
    tensor = triton.InferInput(name, values.shape, "FP32")
    tensor.set_data_from_numpy(values, binary_data=binary)
    return client.infer(model, [tensor], outputs=outputs)


def check_infer(client: Any, model: str, data: Any, *, binary: bool) -> None:
    """Bit for bit what Score says, with all outputs and with named ones."""
    named = [triton.InferRequestedOutput(name, binary_data=binary) for name in COLUMNS]
    for outputs in (None, named):
        result = infer(client, model, data["probs"], binary=binary, outputs=outputs)
        for name in COLUMNS:
            column, expected = result.as_numpy(name), data[name]
            assert column.shape == expected.shape, name
            assert column.tobytes() == expected.astype(column.dtype).tobytes(), (binary, name)


def check_refusals(client: Any, model: str, data: Any) -> None:
    """Errors have a status and a text."""
    for status, name, called in (("404", "probs", "unknown"), ("400", "images", model)):
        refused = None
        try:
            infer(client, called, data["probs"], binary=True, name=name)
        except InferenceServerException as error:
            refused = error
        assert refused is not None, (called, name)
        assert refused.status() == status, refused.status()
        assert called in refused.message() or name in refused.message(), refused.message()


if __name__ == "__main__":
    main()
