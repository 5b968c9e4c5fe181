"""The scorer as a model of MLServer, for ./dev bench serve peers; imported by MLServer in a venv of its own.

A plain Python model as its documentation shows: decode the input, judge, encode the outputs. Nothing is checked beyond
what the scorer does itself, nothing counted beyond MLServer's own metrics, and nothing stored.
"""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri

from darksight_core.bundle import read_bundle
from darksight_core.runtime.policy import ScoringPolicy


class DarkSightModel(MLModel):
    """Judges rows."""

    async def load(self) -> bool:
        """Read the bundle."""
        self._policy = ScoringPolicy.of(read_bundle(await get_model_uri(self._settings)))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Score the rows of the first input."""
        scored = self._policy.score(NumpyCodec.decode_input(payload.inputs[0]))
        columns = {
            "points": scored.points,
            "log_density": scored.log_density,
            "log_kde": scored.log_kde,
            "p_value": scored.p_value,
            "decision": scored.decision.astype("int32"),
            "reason": scored.reason.astype("int32"),
        }
        outputs = [NumpyCodec.encode_output(name, column) for name, column in columns.items()]
        return InferenceResponse(model_name=self.name, outputs=outputs)
