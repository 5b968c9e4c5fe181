"""Sheets as they are stored and answered, beside the ordinary way."""

from __future__ import annotations

import numpy as np
import pytest
from darksight_client.columns import ScoreColumns
from darksight_service.errors import RecordError
from darksight_service.grpc_api.scoring import write_response
from darksight_service.ingest.records import PointBatch, encode, encode_sheet, make_batch_id, to_singles
from darksight_service.scoring.service import Scored

from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.result_block import ResultBlock
from darksight_core.runtime.scorer import Scorer
from darksight_core.scored import ScoredBatch
from darksight_core.simplex import Floats
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle

MS = 1_790_000_000_123
VERSION = "ab" * 32


@pytest.fixture(scope="module")
def policy() -> ScoringPolicy:
    """Of a small bundle."""
    return ScoringPolicy(Scorer.of(make_bundle()))


def scored(policy: ScoringPolicy, rows: int) -> tuple[Floats, ScoredBatch]:
    """Rows, every third of which is bad, and what is said about them."""
    probs = make_probs(max(rows, 1), 3, seed=3)[:rows].astype(np.float64)
    probs[2::3, 0] = np.nan
    return probs, policy.score(probs)


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_a_record_of_a_sheet_is_that_of_its_columns(policy: ScoringPolicy, rows: int, names: bool) -> None:
    """Byte for byte."""
    probs, found = scored(policy, rows)
    ids = tuple(f"row {row}" for row in range(rows)) if names else ()
    batch_id, scores = make_batch_id(MS), found
    batch = PointBatch(
        batch_id, "m", VERSION, names, MS, ids, scores.points, scores.log_density, scores.log_kde, scores.outlier_score,
        scores.p_value, found.confidence, found.top, found.decision, found.reason,
        found.predicted, probs,
    )  # type: ignore[arg-type]  # encode converts  # fmt: skip
    assert encode_sheet(batch_id, "m", VERSION, names, MS, ids, ResultBlock.of(found), to_singles(probs)) == encode(
        batch
    )


def test_a_record_that_cannot_be_stored_is_refused(policy: ScoringPolicy) -> None:
    """By the error that says so."""
    probs, found = scored(policy, 4)
    block, data, batch_id = ResultBlock.of(found), to_singles(probs), make_batch_id(MS)
    for model, event_ms, ids, given in (
        ("m\0", MS, (), data),
        ("\ud800", MS, (), data),
        ("m", 1 << 70, (), data),
        ("m", MS, ("a",), data),
        ("m", MS, (), data[:-3]),
    ):
        with pytest.raises(RecordError):
            encode_sheet(batch_id, model, VERSION, False, event_ms, ids, block, given)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 3, 16, 200])
def test_a_response_is_what_protobuf_would_write(policy: ScoringPolicy, rows: int, recorded: bool) -> None:
    """Byte for byte."""
    _, found = scored(policy, rows)
    batch_id, scores, decisions = make_batch_id(MS), found, found
    message = ScoreColumns(
        model="m", version=VERSION, batch_id=batch_id, decision=decisions.decision.tobytes(),
        reason=decisions.reason.tobytes(), p_value=scores.p_value.tobytes(), log_density=scores.log_density.tobytes(),
        log_kde=scores.log_kde.tobytes(), points=scores.points.tobytes(), recorded=recorded,
    )  # fmt: skip
    assert (
        write_response(Scored("m", VERSION, batch_id, ResultBlock.of(found), recorded)) == message.SerializeToString()
    )
