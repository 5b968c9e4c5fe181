from __future__ import annotations

import grpc
import pytest
from darksight_service.errors import OverloadedError, RequestError, statuses_of
from darksight_service.grpc_api.status import abort_code, status_of
from google.rpc import error_details_pb2

import darksight_core.bundle  # noqa: F401  # for its errors
from darksight_core.errors import DarkSightError


def every_error(kind: type[DarkSightError] = DarkSightError) -> list[type[DarkSightError]]:
    """All classes of errors that were imported."""
    return [kind, *(each for child in kind.__subclasses__() for each in every_error(child))]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status(kind: type[DarkSightError]):
    """A new error without a line of its own takes that of the class above, never UNKNOWN."""
    error = kind.__new__(kind)
    DarkSightError.__init__(error, "it went wrong", field="model")

    code, status = status_of(error)

    assert code is grpc.StatusCode[statuses_of(error)[0]]
    assert status.code == abort_code(error)


def test_only_our_own_mistakes_are_internal():
    """An error that a caller can provoke has a code that says whose fault it is."""
    internal = {kind.__name__ for kind in every_error() if abort_code(kind("x")) == grpc.StatusCode.INTERNAL.value[0]}

    assert internal == {
        "DarkSightError", "FitError", "RecordError", "SettingsError", "SpoolError", "StoreError",
        "BulkError", "ClassifierError", "MetricFileError", "RemoteError", "ProcessGroupError",
    } & {kind.__name__ for kind in every_error()}  # fmt: skip


def test_an_unknown_exception_tells_nothing_but_a_number(caplog: pytest.LogCaptureFixture):
    """No stack, SQL or path leaves the process; the log has them under the same number."""
    code, status = status_of(RuntimeError("select * from /etc/passwd"))

    info = error_details_pb2.RequestInfo()
    assert status.details[0].Unpack(info)
    assert code is grpc.StatusCode.INTERNAL
    assert "passwd" not in status.message
    assert info.request_id in status.message
    assert "passwd" in caplog.text


def test_a_bad_request_names_field_and_row():
    """Programs read the details, people the message."""
    _, status = status_of(RequestError("predictions: row 3 has nan", field="predictions", row=3))

    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        "REQUEST", "darksight", {"field": "predictions", "row": "3"},
    )  # fmt: skip
    assert bad.field_violations[0].field == "predictions[3]"


def test_an_overloaded_server_says_when_to_try_again():
    """As google.rpc.RetryInfo."""
    _, status = status_of(OverloadedError("full", retry_seconds=0.25))

    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250
