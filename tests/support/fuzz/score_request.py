"""Fuzz target: a ScoreRequest from any bytes, through the decoder and the checks of the monitor.

    python tests/support/fuzz/score_request.py -atheris_runs=200000

Needs atheris, in a venv of its own: ./dev bench serve fuzz makes one and runs this. Nothing but the errors that become
a status of the caller's fault may come out, and no NaN in a row that was not called invalid.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["darksight_service", "darksight_client"]):
    from darksight_client.results.columns import ScoreColumns
    from darksight_client.stubs.darksight.v1 import monitor_pb2
    from darksight_service.control.changes import deploy_at_start
    from darksight_service.control.registry import Registry
    from darksight_service.control.state_file import StateFile
    from darksight_service.errors import NotFoundError, RequestError
    from darksight_service.grpc_api import scoring
    from darksight_service.grpc_api.timestamps import milliseconds
    from darksight_service.ingest.records import decode
    from darksight_service.metrics.counts import Counts
    from darksight_service.scoring.service import ScoringService

import numpy as np

from darksight_core.bundle import write_bundle
from darksight_core.runtime.scorer import ShapeError
from tests.support.bundles import make_bundle

_REFUSALS = (RequestError, NotFoundError, ShapeError)
_INVALID = 5


class _Memory:
    """A recorder that reads back what it is given."""

    def append(self, payload: bytes) -> bool:
        """Whatever is written must be readable."""
        decode(payload)
        return True


def make_monitor(folder: Path) -> ScoringService:
    """A monitor that serves one small model, "m"."""
    path, bundles = folder / "bundle.safetensors", folder / "bundles"
    write_bundle(path, make_bundle())
    state_file, counts = StateFile(folder / "registry.json"), Counts(folder / "counts", 0)
    deploy_at_start(state_file, None, bundles, [("m", path)])
    registry = Registry(state_file, bundles, counts)
    registry.refresh()
    return ScoringService(registry, _Memory())


def seeds() -> list[bytes]:
    """Good requests of every form, to begin with."""
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=np.float32)
    tensor = monitor_pb2.Tensor(shape=probs.shape, data=probs.tobytes())
    rows = monitor_pb2.Rows(rows=[monitor_pb2.Row(values=row) for row in probs.tolist()])
    found = [
        monitor_pb2.ScoreRequest(model="m", tensor=tensor),
        monitor_pb2.ScoreRequest(model="m", rows=rows, partial_ok=True),
        monitor_pb2.ScoreRequest(model="m", tensor=tensor, is_logits=True, prediction_ids=["a", "b"]),
        monitor_pb2.ScoreRequest(model="m", tensor=tensor, partial_ok=True, event_time={"seconds": 1_790_000_000}),
    ]
    return [message.SerializeToString() for message in found]


def make_target(monitor: ScoringService) -> Any:
    """What atheris calls with bytes of its making."""

    def target(data: bytes) -> None:
        try:
            request = scoring.parse(monitor_pb2.ScoreRequest, data)
            values = scoring.read_values(request)
            event_ms = milliseconds(request.event_time, "event_time") if request.HasField("event_time") else 0
            scored = monitor.score(
                # Else nearly all that is found out is that a model of another name is not there.
                request.model if len(data) % 8 == 0 else "m",
                request.version,
                values,
                logits=request.is_logits,
                prediction_ids=tuple(request.prediction_ids),
                event_ms=event_ms,
                partial_ok=request.partial_ok,
                batch_id=request.batch_id,
            )
        except _REFUSALS:
            return
        answer = ScoreColumns.FromString(scoring.write_response(scored))
        reason = np.frombuffer(answer.reason, np.int8)
        valid = reason != _INVALID
        for name in ("p_value", "log_density", "log_kde"):
            if np.isnan(np.frombuffer(getattr(answer, name), "<f8")[valid]).any():
                raise AssertionError(f"NaN in {name}")

    return target


def main() -> None:
    """Run atheris with the arguments of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, data in enumerate(seeds()):
            (corpus / str(number)).write_bytes(data)
        # atheris ends the process, so the folder is its own to clean up.
        atheris.Setup([*sys.argv, str(corpus)], make_target(make_monitor(Path(folder))))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
