"""A gRPC server of the same kind as a worker of ours that does nothing: what ./dev bench serve compares with.

    python -m tests.bench.echo PORT NUMBER

Threaded, on one core, sharing the port, with gRPC's own pool of threads, as anybody would start one. The method says
how many bytes the answer has: /echo/150 answers any request with 150 bytes, so that both servers send as much as they
get. It ends when its stdin does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

__all__ = ["METHOD", "running_echo"]

METHOD = "/echo/{}"

# Those of darksight_service.grpc_api.server and darksight_service.processes.worker.
_THREADS = 4
_SWITCH_SECONDS = 0.0005


class _Echo(grpc.GenericRpcHandler):
    """Answers every method with as many bytes as its name says."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method."""
        handler = self._handlers.get(details.method)
        if handler is None:
            answer = bytes(int(details.method.rpartition("/")[2]))
            handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
            self._handlers[details.method] = handler
        return handler


def serve(port: int, number: int) -> None:
    """Answer calls until stdin ends."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    sys.setswitchinterval(_SWITCH_SECONDS)
    options = [("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", 16 << 20)]
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS), handlers=[_Echo()], options=options)
    print(server.add_insecure_port(f"127.0.0.1:{port}"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(0)


@contextmanager
def running_echo(processes: int) -> Iterator[tuple[str, list[int]]]:
    """Echo processes for the time of a block: their address and process ids."""
    started: list[subprocess.Popen[str]] = []
    try:
        port = 0
        for number in range(processes):
            command = [sys.executable, "-m", "tests.bench.echo", str(port), str(number)]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            said = started[-1].stdout
            assert said is not None
            port = int(said.readline())
        yield f"127.0.0.1:{port}", [process.pid for process in started]
    finally:
        for process in started:
            process.communicate(timeout=20)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
