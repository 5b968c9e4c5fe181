"""The pool of calls under a real gRPC server: which thread answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from darksight_service.grpc_api.pools import BulkPool, CallPool, Handler

from tests.support.servers import wait_until

THREADS, LIMIT = 2, 20


LARGE = bytes(1 << 14)


class Who(grpc.GenericRpcHandler):
    """Answers with the name of the thread; only b"short" is a short call. A watch is answered once and goes on."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The handler of every method."""

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if request == LARGE:
                self._gate.wait(60)
            return threading.current_thread().name.encode()

        def watch(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            yield b"watching"
            over = threading.Event()
            context.add_callback(over.set)
            over.wait(60)

        if details.method == "/who/watch":
            return grpc.unary_stream_rpc_method_handler(Handler(watch, reads_early=True))
        is_scoring = details.method != "/who/reads"
        return grpc.unary_unary_rpc_method_handler(
            Handler(answer, is_short=lambda data: data == b"short", is_scoring=is_scoring, reads_early=True)
        )


@pytest.fixture
def pool() -> CallPool:
    """Of two threads."""
    return CallPool(THREADS, LIMIT, "call", BulkPool())


@pytest.fixture
def gate() -> threading.Event:
    """For which large calls wait."""
    return threading.Event()


@pytest.fixture
def channel(pool: CallPool, gate: threading.Event) -> Iterator[grpc.Channel]:
    """A channel to a server with that pool."""
    server = grpc.server(pool, handlers=[Who(gate)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(0).wait()
    pool.shutdown()


def is_in_pool(channel: grpc.Channel, data: bytes) -> bool:
    """Whether a thread of the pool answers."""
    name: bytes = channel.unary_unary("/who/am_i")(data, timeout=30)
    return name.startswith(b"call_")


def test_a_short_call_that_comes_alone_needs_no_thread_of_the_pool(channel: grpc.Channel):
    """A long one does, and so does a short one beside others, until they have ended, however they did."""

    def nothing() -> Iterator[bytes]:
        is_over.wait(60)
        yield from ()

    is_over = threading.Event()
    assert not is_in_pool(channel, b"short")
    assert is_in_pool(channel, b"long")

    silent = [channel.stream_unary("/who/am_i").future(nothing(), timeout=60) for _ in range(4)]
    hurried = channel.stream_unary("/who/am_i").future(nothing(), timeout=0.2)
    wait_until(lambda: is_in_pool(channel, b"short"), what="other calls to be there")
    assert hurried.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for call in silent[:2]:
        call.cancel()
    is_over.set()
    assert {call.code() for call in silent[2:]} == {grpc.StatusCode.UNIMPLEMENTED}
    wait_until(lambda: not is_in_pool(channel, b"short"), what="the other calls to end")


def test_calls_without_a_message_fill_no_pool(channel: grpc.Channel, pool: CallPool):
    """Many more than may be in hand wait for their message; one more ends the oldest."""
    is_over = threading.Event()

    def nothing() -> Iterator[bytes]:
        is_over.wait(60)
        yield from ()

    silent = []
    for _ in range(128 + 5):
        silent.append(channel.stream_unary("/who/am_i").future(nothing(), timeout=60))
        assert is_in_pool(channel, b"long")
    assert not pool.is_full
    assert sum(call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for call in silent if call.done()) >= 5

    is_over.set()
    assert {call.code() for call in silent} == {
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }


def test_large_calls_hold_up_no_other(channel: grpc.Channel, pool: CallPool, gate: threading.Event):
    """However many there are: they wait for one thread of theirs, and count among the calls in hand."""
    ask = channel.unary_unary("/who/am_i")
    large = [ask.future(LARGE, timeout=60) for _ in range(LIMIT)]
    wait_until(lambda: pool.is_full, what="as many as may wait")

    assert is_in_pool(channel, b"long")
    # A large message to a method that scores nothing, and may wait for a database, stays out of their way.
    assert channel.unary_unary("/who/reads")(b"other" + LARGE, timeout=30).startswith(b"call_")
    gate.set()
    assert {call.result() for call in large} == {b"bulk"}
    wait_until(lambda: not pool.is_full, what="their end")


def test_a_watch_that_is_open_is_no_call_beside(channel: grpc.Channel):
    """A stream of answers may live for days."""
    watched = channel.unary_stream("/who/watch")(b"")
    assert next(watched) == b"watching"

    assert not is_in_pool(channel, b"short")
    watched.cancel()
