"""Threads of a worker, and which calls need none."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.errors import RequestError
from darksight_service.grpc_api.methods import EncodedRequest, _is_short
from darksight_service.grpc_api.pools import BulkPool, CallPool, supports_early_read
from darksight_service.operations.operation import Service
from darksight_service.operations.table import OPERATIONS
from grpc import _server


def test_private_parts_of_grpc_are_those_that_the_pool_knows(monkeypatch: pytest.MonkeyPatch):
    """With another signature, or another way to hand a call over, the pool does not use them."""
    assert supports_early_read()

    with monkeypatch.context() as changed:
        changed.setattr(_server, "_is_rpc_state_active", lambda: True)
        assert not supports_early_read()
    with monkeypatch.context() as changed:
        changed.setattr(_server, "_handle_unary_unary", lambda event, state, handler, pool: pool.submit(state, event))
        assert not supports_early_read()
    with monkeypatch.context() as changed:
        changed.delattr(_server, "_RECEIVE_MESSAGE_TOKEN")
        assert not supports_early_read()


def test_a_pool_is_full_when_its_queue_is_and_ends_when_it_is_empty():
    """Of two calls in hand one runs and one waits; a third is one too many. All are run, failures too."""
    pool, gate, ran = CallPool(1, 2, "call", BulkPool()), threading.Event(), []

    def call(number: int) -> None:
        gate.wait(30)
        ran.append(number)
        raise ValueError(number)

    pool.submit(call, 0)
    for number in (1, 2):
        pool.submit(call, number)
    was_full = pool.is_full
    gate.set()
    pool.shutdown()

    assert was_full
    assert not pool.is_full
    assert ran == [0, 1, 2]


def test_large_calls_may_take_a_quarter_of_the_queue():
    """Each holds megabytes, so few of them fill the pool; as many small ones do not."""
    bulk, gate = BulkPool(), threading.Event()
    pool = CallPool(2, 18, "call", bulk)
    for _ in range(2 + 4):
        pool.submit(gate.wait, 30)
    was_full_of_small = pool.is_full
    for _ in range(1 + 4):
        bulk.queue.put(lambda: gate.wait(30))
    was_full_of_large = pool.is_full
    gate.set()
    pool.shutdown()

    assert not was_full_of_small
    assert was_full_of_large


def test_a_stream_gets_its_batch_scored_although_the_calls_have_ended():
    """Small ones where they are, large ones in the one bulk thread, which never waits for itself; errors come back."""
    bulk = BulkPool()
    CallPool(1, 2, "call", bulk).shutdown()

    def name() -> str:
        return threading.current_thread().name

    def fail() -> None:
        raise ValueError("scored")

    assert bulk.run(100, name) == threading.current_thread().name
    assert bulk.run(1 << 20, name) == "bulk"
    assert bulk.run(1 << 20, lambda: bulk.run(1 << 20, name)) == "bulk"
    with pytest.raises(ValueError, match="scored"):
        bulk.run(1 << 20, fail)


def request(rows: int = 1, **fields: object) -> bytes:
    """A ScoreRequest of two classes."""
    tensor = monitor_pb2.Tensor(shape=[rows, 2], data=bytes(8 * rows))
    return monitor_pb2.ScoreRequest(model="digits", tensor=tensor, **fields).SerializeToString()


@pytest.mark.parametrize(
    ("data", "waits_for_disk", "is_short"),
    [
        pytest.param(request(), False, True, id="one row"),
        pytest.param(request(7), False, True, id="few rows"),
        pytest.param(request(8), False, False, id="a batch"),
        pytest.param(request(2**14), False, False, id="a large message"),
        pytest.param(request(version="3f79bb7b435b"), False, False, id="a version that may have to be read"),
        pytest.param(request(), True, False, id="an answer that waits for the disk"),
        pytest.param(monitor_pb2.ScoreRequest(model="digits").SerializeToString(), False, False, id="no tensor"),
        pytest.param(b"\xff\xff", False, False, id="no message"),
    ],
)
def test_only_a_call_that_waits_for_nothing_is_short(data: bytes, waits_for_disk: bool, is_short: bool):
    """Whatever else it does would hold up the thread that reads for all."""
    service = Service(None, None, None, None, None, waits_for_disk=waits_for_disk)  # type: ignore[arg-type]
    score = OPERATIONS["Score"]

    assert _is_short(partial(score.is_short, service), EncodedRequest(score.parse, data)) is is_short


def test_a_request_is_parsed_once() -> None:
    """Whoever asks for it first; bytes that are not a request are an error each time."""
    parse = OPERATIONS["Score"].parse
    call, other = EncodedRequest(parse, request()), EncodedRequest(parse, b"\xff")

    assert call.message() is call.message()
    for _ in range(2):
        with pytest.raises(RequestError):
            other.message()
