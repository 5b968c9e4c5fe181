from __future__ import annotations

import copy
from typing import Any

import darksight_client
import grpc
import pytest
from darksight_client import errors
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2


class Failure:
    """What grpc raises, as far as the mapping looks at it."""

    def __init__(self, code: grpc.StatusCode, text: str = "text", *details: Any, raw: bytes | None = None) -> None:
        self._code, self._text = code, text
        status = status_pb2.Status(code=code.value[0], message=text)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        self._trailers = (
            ("other", "x"),
            ("grpc-status-details-bin", status.SerializeToString() if raw is None else raw),
        )

    def code(self) -> grpc.StatusCode:
        """Status."""
        return self._code

    def details(self) -> str:
        """Text."""
        return self._text

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        """What came after the answer."""
        return self._trailers


def subclasses(kind: type) -> set[type]:
    """All below a class."""
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_has_a_type(code: grpc.StatusCode) -> None:
    """And keeps its name and its text."""
    error = errors.error_of_rpc(Failure(code, "what happened"))

    assert type(error) is not errors.DarkSightClientError
    assert error.status == code.name
    assert error.message.startswith("what happened")
    assert str(error) == error.message


def test_codes_are_unique_and_all_types_are_public() -> None:
    """Programs may rely on both."""
    tree = subclasses(errors.DarkSightClientError)

    assert len({kind.code for kind in tree}) == len(tree)  # type: ignore[attr-defined]  # of the tree
    assert {kind.__name__ for kind in tree} <= set(darksight_client.__all__)


def test_row_and_field_come_from_the_details() -> None:
    """The first violation counts."""
    bad = error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(field="rows[3].values[2]", description="negative"),
            error_details_pb2.BadRequest.FieldViolation(field="rows[5]"),
        ]
    )

    error = errors.error_of_rpc(Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", bad))

    assert isinstance(error, errors.InvalidRequest)
    assert (error.row, error.field) == (3, "rows[3].values[2]")


def test_delay_comes_from_the_details() -> None:
    """When to try again."""
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))

    error = errors.error_of_rpc(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", delay))

    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_seconds == 1.5


def test_request_id_comes_from_the_details() -> None:
    """What to look for in the log of the server."""
    info = error_details_pb2.RequestInfo(request_id="r-1")

    error = errors.error_of_rpc(Failure(grpc.StatusCode.INTERNAL, "failed", info))

    assert isinstance(error, errors.ServerError)
    assert error.request_id == "r-1"


def test_a_message_too_large_is_no_overload() -> None:
    """Trying again would not help."""
    text = "SERVER: Received message larger than max (5 vs. 4)"

    error = errors.error_of_rpc(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, text))

    assert type(error) is errors.MessageTooLarge


@pytest.mark.parametrize(
    ("code", "text"),
    [(grpc.StatusCode.CANCELLED, "CANCELLED"), (grpc.StatusCode.INTERNAL, "Internal error from Core")],
)
def test_what_grpc_says_when_a_server_stops_is_unavailable(code: grpc.StatusCode, text: str) -> None:
    """To calls that arrive at the last moment, and to streams that were just sending; they can go elsewhere."""
    assert type(errors.error_of_rpc(Failure(code, text))) is errors.Unavailable


def test_broken_details_do_not_hide_the_error() -> None:
    """They are an extra."""
    error = errors.error_of_rpc(Failure(grpc.StatusCode.NOT_FOUND, "no model", raw=b"\xff\xff"))

    assert type(error) is errors.UnknownModel


def test_errors_can_be_copied() -> None:
    """With all they know; what can be copied so can be sent to other processes, too."""
    error = errors.Overloaded("full", status="RESOURCE_EXHAUSTED", retry_after_seconds=0.5)

    other = copy.copy(error)

    assert type(other) is errors.Overloaded
    assert vars(other) == vars(error)
    assert str(other) == "full"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidRequest, ValueError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.Unavailable, ConnectionError),
        (errors.UnknownModel, LookupError),
    ],
)
def test_errors_are_those_of_python_too(kind: type, builtin: type) -> None:
    """So that general code handles them."""
    assert issubclass(kind, builtin)
