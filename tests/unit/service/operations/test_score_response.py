"""The ScoreResponse that is cut out of a result block."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_client.results.columns import COLUMNS, ScoreColumns, read_response
from darksight_client.results.rows import read_scored
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.operations.scoring import write_response
from darksight_service.scoring.service import ScoreReply
from darksight_service.store.ids import make_batch_id

from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle

VERSION = "ab" * 32


@pytest.fixture(scope="module")
def policy() -> ScoringPolicy:
    """Of a small bundle."""
    return ScoringPolicy(Scorer.of(make_bundle()))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 3, 16, 200])
def test_a_response_is_what_protobuf_would_write(policy: ScoringPolicy, rows: int, recorded: bool) -> None:
    """Byte for byte, with rows that are not valid."""
    probs = make_probs(max(rows, 1), 3, seed=3)[:rows].astype(np.float64)
    probs[2::3, 0] = np.nan
    scored, batch_id = policy.score(probs), make_batch_id(1_790_000_000_123)
    columns = {name: getattr(scored, name).tobytes() for name in COLUMNS}

    found = write_response(ScoreReply("m", VERSION, batch_id, ResultBlock.of(scored), recorded))

    message = ScoreColumns(model="m", version=VERSION, batch_id=batch_id, **columns, recorded=recorded)
    assert found == message.SerializeToString()


def test_prediction_sets_are_what_protobuf_would_write(policy: ScoringPolicy) -> None:
    """Sizes of all rows and the classes of the sets, also above 127."""
    scored, batch_id = policy.score(make_probs(3, 3, seed=3)), make_batch_id(1_790_000_000_123)
    scored.set_size[:] = [300, 0, 2]
    classes = np.array([*range(300), 7, 500], dtype=np.int32)

    found = write_response(ScoreReply("m", VERSION, batch_id, ResultBlock.of(scored), True, classes))

    message = monitor_pb2.ScoreResponse.FromString(found)
    assert list(message.set_size) == [300, 0, 2]
    assert list(message.set_classes) == classes.tolist()
    assert message.SerializeToString() == found
    read = read_scored(*read_response(found, 3), ())
    assert [len(each) for each in read.prediction_sets] == [300, 0, 2]
    assert [row.prediction_set for row in read][1:] == [(), (7, 500)]
    message.set_classes.pop()
    with pytest.raises(ValueError, match="301 classes"):
        read_scored(*read_response(message.SerializeToString(), 3), ())
