from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from darksight_client.errors import (
    DarkSightClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    ServerError,
    Unauthenticated,
    Unavailable,
    UnknownModel,
)
from darksight_client.results.rows import Decision, Gated, Reason
from darksight_client.transport.fallback import Breaker, Fallback, OnFailure
from darksight_client.transport.retries import Send


class Service:
    """A service of a test, with its clock: counts the calls and fails as the test wants."""

    def __init__(self, on_failure: OnFailure = "raise", limit: int = 3) -> None:
        self.now = 100.0
        self.calls = 0
        self.error: DarkSightClientError | None = None
        self.fallback = Fallback(on_failure, Breaker(limit, 1.0, clock=lambda: self.now))

    def _score(self) -> Generator[Send, bytes, Any]:
        self.calls += 1
        yield Send(0, "/m", b"", 1.0)
        if self.error is not None:
            raise self.error
        return ["scored"]

    def gate(self, prediction_id: str | None = None) -> Any:
        """The result of one gate call."""
        names = None if prediction_id is None else [prediction_id]
        steps = self.fallback.steps(self._score(), 1, names)
        try:
            next(steps)
            steps.send(b"")
        except StopIteration as end:
            return end.value[0]
        raise AssertionError("the call did not end")

    def fail(self, times: int) -> None:
        """Fail some calls."""
        for _ in range(times):
            with pytest.raises(DarkSightClientError):
                self.gate()


FAILURES = [Unavailable("down"), DeadlineExceeded("late"), Overloaded("full"), ServerError("broken")]
ERRORS = [InvalidRequest("bad"), Unauthenticated("who"), PermissionDenied("no"), UnknownModel("what")]


@pytest.mark.parametrize(("on_failure", "decision"), [("accept", Decision.ACCEPT), ("reject", Decision.REJECT)])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.code)
def test_a_row_without_a_decision_gets_that_of_the_caller(
    on_failure: OnFailure, decision: Decision, error: DarkSightClientError
) -> None:
    """It can be told apart from a decision of the service."""
    service = Service(on_failure)
    service.error = error

    gated: Gated = service.gate("id-1")

    assert (gated.accepted, gated.decision) == (on_failure == "accept", decision)
    assert (gated.reason, gated.failure, gated.prediction_id) == (Reason.UNSCORED, error.code, "id-1")
    assert (gated.recorded, gated.version) == (False, "")
    counts = service.fallback.counts()
    assert (counts.rows, counts.failures) == (1, {error.code: 1})
    assert (counts.accepted, counts.rejected) == ((1, 0) if gated.accepted else (0, 1))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_errors_of_the_caller_are_raised(error: DarkSightClientError) -> None:
    """They do not go away by themselves, so no fallback hides them, and they do not open the breaker."""
    service = Service("accept", limit=1)
    service.error = error

    with pytest.raises(type(error)):
        service.gate()

    assert service.fallback.counts().failures == {}
    assert not service.fallback.counts().is_open


def test_an_open_breaker_sends_no_call_but_one_per_interval() -> None:
    """It opens after failures in a row, and the first response closes it."""
    service = Service()
    service.error = Unavailable("down")
    service.fail(2)
    service.error = None
    assert service.gate() == "scored"

    service.error = DeadlineExceeded("late")
    service.fail(3)
    assert service.fallback.counts().is_open
    service.fail(5)
    assert (service.calls, service.fallback.counts().not_sent) == (6, 5)

    service.now += 1.0
    service.fail(2)
    assert service.calls == 7

    service.now += 1.0
    service.error = None
    assert [service.gate() for _ in range(3)] == ["scored"] * 3
    counts = service.fallback.counts()
    assert (counts.is_open, counts.rows, counts.not_sent) == (False, 16, 6)
    assert counts.failures == {"unavailable": 8, "deadline_exceeded": 4}


def test_a_breaker_can_be_disabled() -> None:
    """Then every call is sent."""
    service = Service(limit=0)
    service.error = Unavailable("down")

    service.fail(20)

    assert service.calls == 20


def test_an_unknown_fallback_is_refused() -> None:
    """By name."""
    with pytest.raises(DarkSightClientError, match="'ignore'"):
        Fallback("ignore", Breaker(5, 1.0))  # type: ignore[arg-type]  # what a caller without types may give
