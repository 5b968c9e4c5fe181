"""What `gate` does when it gets no decision: the circuit breaker, the fallback decision and their counters.

A failure is an error that says that the service has no decision at the moment: `Unavailable`, `DeadlineExceeded`,
`Overloaded` or `ServerError`. An error of the request, the token or the model name is not: it is raised, because it
does not go away by itself.

The circuit breaker opens after a number of failures in a row. While it is open, calls fail at once with `Unavailable`,
except one call per interval that is sent as a probe. The first response closes it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from darksight_client.errors import (
    DarkSightClientError,
    DeadlineExceeded,
    Overloaded,
    ServerError,
    Unavailable,
)
from darksight_client.results.rows import Decision, Gated, Reason, Scored
from darksight_client.transport.retries import Steps

__all__ = ["FAILURES", "Breaker", "Fallback", "GateCounts", "OnFailure"]

OnFailure: TypeAlias = Literal["raise", "accept", "reject"]

FAILURES = (Unavailable, DeadlineExceeded, Overloaded, ServerError)


@dataclass(frozen=True, slots=True)
class GateCounts:
    """Counters of `gate`, since the client was created.

    Parameters
    ----------
    rows
        Rows given to `gate`.
    failures
        Rows without a decision of the service, by code of the error.
    not_sent
        Rows among them that were not sent because the circuit breaker was open.
    accepted, rejected
        Rows among them that `on_failure` accepted or rejected.
    is_open
        Whether the circuit breaker is open.
    """

    rows: int
    failures: dict[str, int]
    not_sent: int
    accepted: int
    rejected: int
    is_open: bool


@dataclass(slots=True, eq=False)
class Breaker:
    """A circuit breaker. Thread-safe.

    Parameters
    ----------
    limit
        Failures in a row that open it; 0 for never.
    seconds
        Interval of the probes while it is open.
    clock
        Monotonic seconds.
    """

    limit: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    _failures: int = 0
    _next_probe: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        return 0 < self.limit <= self._failures

    def allows_call(self) -> bool:
        """Whether the next call is sent; an open breaker allows one per interval."""
        with self._lock:
            now = self.clock()
            if self.is_open and now < self._next_probe:
                return False
            self._next_probe = now + self.seconds
            return True

    def record(self, *, has_failed: bool) -> None:
        """Record the end of a call that was sent."""
        with self._lock:
            self._failures = self._failures + 1 if has_failed else 0


class Fallback:
    """Decisions of a client with and without the service. Thread-safe.

    Parameters
    ----------
    on_failure
        Whether a failure is raised, or the row accepted or rejected.
    breaker
        Decides which calls are sent.
    """

    def __init__(self, on_failure: OnFailure, breaker: Breaker) -> None:
        if on_failure not in get_args(OnFailure):
            raise DarkSightClientError(f"unknown on_failure {on_failure!r}; give 'raise', 'accept' or 'reject'.")
        self._on_failure = on_failure
        self._breaker = breaker
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def steps(self, steps: Steps[Scored], rows: int, prediction_ids: Sequence[str] | None) -> Steps[list[Gated]]:
        """Steps of a gate call.

        Parameters
        ----------
        steps
            Steps that score the rows.
        rows
            Number of rows.
        prediction_ids
            Ids given by the caller.
        """
        self._count(rows=rows)
        try:
            if not self._breaker.allows_call():
                self._count(not_sent=rows)
                raise Unavailable("the circuit breaker is open: the last calls failed. Calls resume with the service.")
            scored = yield from self._recorded(steps)
            return list(scored)
        except FAILURES as error:
            with self._lock:
                self._failures[error.code] += rows
            if self._on_failure == "raise":
                raise
            self._count(**{f"{self._on_failure}ed": rows})
            return [_fallback(self._on_failure, name, error) for name in prediction_ids or [""] * rows]

    def _recorded(self, steps: Steps[Scored]) -> Steps[Scored]:
        """The same steps; the breaker learns how they end."""
        try:
            scored = yield from steps
        except DarkSightClientError as error:
            self._breaker.record(has_failed=isinstance(error, FAILURES))
            raise
        self._breaker.record(has_failed=False)
        return scored

    def counts(self) -> GateCounts:
        """The counters."""
        with self._lock:
            names = ("not_sent", "accepted", "rejected")
            counts = {name: self._counts[name] for name in names}
            return GateCounts(self._counts["rows"], dict(self._failures), **counts, is_open=self._breaker.is_open)

    def _count(self, **rows: int) -> None:
        with self._lock:
            self._counts.update(rows)


def _fallback(on_failure: OnFailure, prediction_id: str, error: DarkSightClientError) -> Gated:
    """The decision for a row that the service did not score."""
    nan = float("nan")
    is_accepted = on_failure == "accept"
    return Gated(
        accepted=is_accepted,
        decision=Decision.ACCEPT if is_accepted else Decision.REJECT,
        reason=Reason.UNSCORED,
        p_value=nan,
        log_density=nan,
        log_kde=nan,
        point=(nan, nan),
        prediction_id=prediction_id,
        version="",
        recorded=False,
        failure=error.code,
    )
