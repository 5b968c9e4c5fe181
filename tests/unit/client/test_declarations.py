from __future__ import annotations

import inspect
from typing import Any

import pytest
from darksight_client import AsyncClient, Client, Model
from darksight_client.declarations import Declared, unary
from darksight_client.operations import Operations
from darksight_client.stubs.darksight.v1 import admin_pb2
from darksight_client.transport.retries import Send

ADMIN: Any = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]


def test_a_unary_operation_sends_its_arguments_and_reads_the_field_of_the_response() -> None:
    """Its parameters are the fields of the request, defaults included."""
    declared: Any = vars(Operations)["preview_region"]
    client = Client("localhost:1")

    steps = declared.function(client, "digits", name="left", polygon=((0.0, 0.0), (1.0, 0.0)), since=1.0)
    send = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(admin_pb2.PreviewRegionResponse(examined=3).SerializeToString())
    client.close()

    assert isinstance(send, Send)
    assert send.path == "/darksight.v1.AdminService/PreviewRegion"
    request = admin_pb2.PreviewRegionRequest.FromString(send.data)
    assert (request.model, request.name, request.examples, request.since.seconds) == ("digits", "left", 10, 1)
    assert [(corner.x, corner.y) for corner in request.polygon] == [(0.0, 0.0), (1.0, 0.0)]
    assert not request.HasField("until")
    assert (end.value.value.examined, end.value.value.since) == (3, None)


def test_a_parameter_that_the_request_does_not_have_is_an_error_of_the_declaration() -> None:
    """It is raised when the module is imported, not when the method is called."""
    with pytest.raises(TypeError, match="versoin"):

        @unary(ADMIN, "ActivateVersion", "model")
        def activate(self: Any, model: str, versoin: str) -> Model:
            raise NotImplementedError


def test_every_operation_is_a_method_of_both_clients() -> None:
    """With the docstring of its declaration; those of AsyncClient are coroutines or asynchronous iterators."""
    names = [name for name, each in vars(Operations).items() if isinstance(each, Declared)]

    assert len(names) > 20
    for name in names:
        blocking, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
        assert blocking.__doc__ == asynchronous.__doc__ == vars(Operations)[name].function.__doc__
        assert blocking.__qualname__ == f"Client.{name}"
        is_iterator = str(inspect.signature(asynchronous).return_annotation).startswith("AsyncIterator")
        assert inspect.iscoroutinefunction(asynchronous) or is_iterator
