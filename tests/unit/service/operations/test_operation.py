"""Declarations of operations."""

from __future__ import annotations

import inspect

import pytest
from darksight_service.control.tokens import Caller
from darksight_service.errors import ForbiddenError, RequestError
from darksight_service.operations.operation import Operation
from darksight_service.operations.table import OPERATIONS

SOME_MODELS = Caller("some", frozenset({"digits"}))


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_a_handler_takes_the_request_of_the_proto_file(operation: Operation) -> None:
    """Its annotation names the class that the RPC has; the summary is a line without a period."""
    annotation = inspect.get_annotations(operation.handle)["request"]

    assert annotation.rpartition(".")[2] == operation.request.DESCRIPTOR.name
    assert operation.summary
    assert not operation.summary.endswith(".")


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_a_caller_of_some_models_calls_no_operation_without_a_model(operation: Operation) -> None:
    """Unless it lists the models of the caller alone."""
    if operation.lists_models:
        operation.check_model(SOME_MODELS, operation.request())
    else:
        with pytest.raises(ForbiddenError):
            operation.check_model(SOME_MODELS, operation.request())


def test_bytes_that_are_not_a_request_are_refused_by_the_name_of_the_message() -> None:
    """Also texts that a database cannot hold."""
    get_model = OPERATIONS["GetModel"]

    with pytest.raises(RequestError, match=r"darksight\.v1\.GetModelRequest"):
        get_model.parse(b"\xff")
    with pytest.raises(RequestError, match="model"):
        get_model.parse(get_model.request(model="a\0b").SerializeToString())
