"""The pool of calls under a real gRPC server: which thread answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from darksight_service.rpc.pools import CallPool

from tests.integration.servers import wait_until


class Who(grpc.GenericRpcHandler):
    """Answers with the name of the thread; only b"short" is a short call."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The handler of every method."""

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            return threading.current_thread().name.encode()

        answer.is_short = lambda data: data == b"short"
        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    """A channel to a server with two threads."""
    pool = CallPool(2, 64, "call")
    server = grpc.server(pool, handlers=[Who()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(0).wait()
    pool.shutdown()


def test_a_short_call_that_comes_alone_needs_no_thread_of_the_pool(channel: grpc.Channel):
    """A long one does, and so does a short one beside others, until they have ended, however they did."""

    def is_in_pool(data: bytes) -> bool:
        name: bytes = channel.unary_unary("/who/am_i")(data, timeout=30)
        return name.startswith(b"call_")

    def nothing() -> Iterator[bytes]:
        is_over.wait(60)
        yield from ()

    is_over = threading.Event()
    assert not is_in_pool(b"short")
    assert is_in_pool(b"long")

    silent = [channel.stream_unary("/who/am_i").future(nothing(), timeout=60) for _ in range(4)]
    hurried = channel.stream_unary("/who/am_i").future(nothing(), timeout=0.2)
    wait_until(lambda: is_in_pool(b"short"), what="other calls to be there")
    assert hurried.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for call in silent[:2]:
        call.cancel()
    is_over.set()
    assert {call.code() for call in silent[2:]} == {grpc.StatusCode.UNIMPLEMENTED}
    wait_until(lambda: not is_in_pool(b"short"), what="the other calls to end")
