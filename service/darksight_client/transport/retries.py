"""Which replica gets a call, and when a failed call is retried. No network: decisions only.

A call is a generator of steps. It yields `Send` or `Wait`; the client sends back the response or throws the error. The
loops that execute the steps, one for threads and one for asyncio, are short, and the rules are stated once:

- Replicas are tried in turn. A replica that failed is tried last for one second.
- After `Unavailable` the next replica is tried at once. When all replicas have failed, the call waits with exponential
  backoff and jitter.
- `Overloaded` is retried if the server said when. The next replica is tried at once; when all have failed, the call
  waits as long as the server said, plus jitter.
- A call is never retried after its deadline, and at most `retries` times.
- All other errors are final.

A retried Score keeps its batch id, so the server stores it once even if the first response was lost.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from darksight_client.errors import DeadlineExceeded, Overloaded, Unavailable

__all__ = ["Replicas", "Send", "Steps", "Wait"]

T = TypeVar("T")

_FIRST_BACKOFF_SECONDS = 0.05
_MAX_BACKOFF_SECONDS = 1.0
_PENALTY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a replica; the result is the response or a `DarkSightClientError`.

    Parameters
    ----------
    replica
        Index of the replica.
    path
        "/package.Service/Method".
    data
        The serialized request.
    timeout_seconds
        Time that is left for the response.
    """

    replica: int
    path: str
    data: bytes
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait before the next step."""

    seconds: float


Steps: TypeAlias = Generator[Send | Wait, bytes, T]


@dataclass(slots=True, eq=False)
class Replicas:
    """The replicas of one client. Thread-safe.

    Parameters
    ----------
    count
        Number of replicas.
    retries
        Maximum number of retries of a call.
    clock
        Monotonic seconds.
    uniform
        Random numbers between two bounds.
    """

    count: int
    retries: int
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    _turns: itertools.count[int] = field(init=False)
    _penalty_until: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._penalty_until = [0.0] * self.count
        # Clients that start together begin with different replicas.
        self._turns = itertools.count(int(self.uniform(0, self.count)))

    def call(self, path: str, data: bytes, timeout_seconds: float, *, is_idempotent: bool = True) -> Steps[bytes]:
        """Steps of one call.

        Parameters
        ----------
        path
            "/package.Service/Method".
        data
            The serialized request.
        timeout_seconds
            Time for the response, including retries.
        is_idempotent
            Whether the call may be retried.
        """
        deadline = self.clock() + timeout_seconds
        retries = self.retries if is_idempotent else 0
        for round_ in itertools.count(1):
            wait = 0.0
            for replica in self.order():
                try:
                    response = yield Send(replica, path, data, deadline - self.clock())
                except (Unavailable, Overloaded) as error:
                    delay = error.retry_after_seconds
                    if isinstance(error, Overloaded) and delay is None:
                        raise
                    self._penalize(replica, delay or _PENALTY_SECONDS)
                    if retries <= 0 or self.clock() >= deadline:
                        raise
                    retries, last = retries - 1, error
                    wait = max(wait, delay or 0.0)
                except DeadlineExceeded:
                    # The server may hang, so the next calls try the others first.
                    self._penalize(replica, _PENALTY_SECONDS)
                    raise
                else:
                    self._penalty_until[replica] = 0.0
                    return response
            pause = max(self._backoff(round_), wait * self.uniform(1.0, 1.5))
            if self.clock() + pause >= deadline:
                raise last
            yield Wait(pause)
        raise AssertionError("unreachable")

    def order(self) -> list[int]:
        """Replicas in the order to try them."""
        turn, now = next(self._turns), self.clock()
        order = [(turn + step) % self.count for step in range(self.count)]
        return sorted(order, key=lambda replica: max(self._penalty_until[replica] - now, 0.0))

    def after_stream_failure(self, replica: int, failures: int, error: Unavailable) -> float:
        """Seconds to wait before a stream is reopened; raises `error` after too many failures.

        Parameters
        ----------
        replica
            The replica that failed.
        failures
            Failures since the last response.
        error
            The last failure.
        """
        if failures > self.retries:
            raise error
        self._penalize(replica, _PENALTY_SECONDS)
        return self._backoff(failures // self.count) if failures % self.count == 0 else 0.0

    def _penalize(self, replica: int, seconds: float) -> None:
        self._penalty_until[replica] = self.clock() + seconds

    def _backoff(self, round_: int) -> float:
        seconds = min(_FIRST_BACKOFF_SECONDS * 2.0 ** (round_ - 1), _MAX_BACKOFF_SECONDS)
        return self.uniform(0.5, 1.0) * seconds
