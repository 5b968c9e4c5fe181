"""A gRPC whose private parts have changed, for processes that find this folder on PYTHONPATH.

A function that `darksight_service.grpc_api.pools` relies on gets another parameter. gRPC itself works as before.
"""

from typing import Any

from grpc import _server

_original = _server._receive_message


def _receive_message(state: Any, call: Any, request_deserializer: Any, added: Any = None) -> Any:
    return _original(state, call, request_deserializer)


_server._receive_message = _receive_message
