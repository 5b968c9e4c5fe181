"""A transformer of KServe that gates what a predictor returns.

    python examples/kserve_transformer.py --model_name digits --predictor_host HOST --darksight HOST:8081

It passes requests to the predictor and adds three outputs to the response: `accepted` (BOOL), `reason` and
`prediction_id` (BYTES), one value for each row. The predictor speaks the Open Inference Protocol and has an output
`probabilities` of shape (n, K). Rows are rejected while the service is unavailable.
"""

from __future__ import annotations

import argparse
from typing import Any

import kserve
import numpy as np
from darksight_client.adapters.remote import RemoteGate
from kserve import InferOutput, InferResponse


class GatedModel(kserve.Model):
    """Passes requests to the predictor, and responses through the gate."""

    def __init__(self, name: str, gate: RemoteGate) -> None:
        super().__init__(name)
        self._gate = gate
        self.ready = True

    async def postprocess(
        self, result: Any, headers: dict[str, str] | None = None, response_headers: dict[str, str] | None = None
    ) -> InferResponse:
        """Add the decisions to a response of the predictor."""
        probs = next(output for output in result.outputs if output.name == "probabilities").as_numpy()
        decided = await self._gate(probs)
        for name, datatype in (("accepted", "BOOL"), ("reason", "BYTES"), ("prediction_id", "BYTES")):
            column = InferOutput(name, [len(decided)], datatype)
            values = np.array([each[name] for each in decided], dtype=bool if datatype == "BOOL" else object)
            column.set_data_from_numpy(values, binary_data=False)
            result.outputs.append(column)
        return result


def main() -> None:
    """Start the transformer with the options of KServe's model server and `--darksight`."""
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
    parser.add_argument("--darksight", default="localhost:8081", help="address of the service")
    arguments, _ = parser.parse_known_args()
    gate = RemoteGate(arguments.darksight, arguments.model_name, on_failure="reject", gate_timeout_seconds=2.0)
    kserve.ModelServer().start([GatedModel(arguments.model_name, gate)])


if __name__ == "__main__":
    main()
