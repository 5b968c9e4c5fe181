"""Which server gets a call, and what is tried when it is not there: all decisions, no network.

A call is a generator of steps. It yields `Send` (send these bytes to that replica) or `Wait` and is given the answer,
or thrown the error. So the clients for threads and for asyncio are two short loops around the same decisions.

    replicas take turns; one that failed rests for a while and is then only used if all others fail too
    Unavailable: the next replica at once; when all have failed a pause, doubled each time, with jitter
    never past the deadline, and at most `retries` times
    any other error is final. An overloaded server in particular is not asked again: its `Overloaded` says when to

A retried Score keeps its batch id, so that the server stores it once, whether or not the first answer got lost.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from darksight_client.errors import DeadlineExceeded, Unavailable

__all__ = ["CallSteps", "Replicas", "Send", "Wait"]

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_REST = 1.0


@dataclass(frozen=True, slots=True)
class Send:
    """A request to a replica, to be answered by bytes or a `DarkSightClientError`.

    Parameters
    ----------
    replica
        Number of the replica.
    method
        "/package.Service/Method".
    data
        The serialised request.
    timeout_seconds
        How long the answer may take.
    """

    replica: int
    method: str
    data: bytes
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause."""

    seconds: float


CallSteps: TypeAlias = Generator[Send | Wait, bytes, T]


@dataclass(slots=True, eq=False)
class Replicas:
    """The servers of one client; safe for use by many threads.

    Parameters
    ----------
    count
        How many there are.
    retries
        How often a call is repeated at most, on any of them.
    clock
        Monotonic seconds.
    uniform
        Random numbers between two bounds.
    """

    count: int
    retries: int
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    _turns: itertools.count[int] = field(init=False, default_factory=itertools.count)
    _rest_until: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._rest_until = [0.0] * self.count
        # Many clients that start together do not all begin with the first.
        self._turns = itertools.count(int(self.uniform(0, self.count)))

    def order(self) -> list[int]:
        """Replicas as they are to be tried now: in turns, those that failed a moment ago last."""
        turn, now = next(self._turns), self.clock()
        order = [(turn + step) % self.count for step in range(self.count)]
        return sorted(order, key=lambda replica: max(self._rest_until[replica] - now, 0.0))

    def failed(self, replica: int) -> None:
        """Lets a replica rest."""
        self._rest_until[replica] = self.clock() + _REST

    def worked(self, replica: int) -> None:
        """Lets it take turns again."""
        self._rest_until[replica] = 0.0

    def pause(self, round_: int) -> float:
        """Seconds before all replicas are tried again, for the given number of rounds that failed."""
        return self.uniform(0.5, 1.0) * min(_FIRST_PAUSE * 2.0 ** (round_ - 1), _LONGEST_PAUSE)

    def pause_after(self, failures: int) -> float:
        """Seconds before the next replica of `order` is tried, for a stream that failed so often without an answer."""
        return self.pause(failures // self.count) if failures % self.count == 0 else 0.0

    def call(self, method: str, data: bytes, timeout_seconds: float, *, is_repeatable: bool = True) -> CallSteps[bytes]:
        """CallSteps of one call.

        Parameters
        ----------
        method
            "/package.Service/Method".
        data
            The serialised request.
        timeout_seconds
            For the answer, retries included.
        is_repeatable
            Whether it does no harm to do it twice.
        """
        deadline = self.clock() + timeout_seconds
        retries = self.retries if is_repeatable else 0
        for round_ in itertools.count(1):
            for replica in self.order():
                try:
                    answer = yield Send(replica, method, data, deadline - self.clock())
                except Unavailable as error:
                    self.failed(replica)
                    if retries <= 0 or self.clock() >= deadline:
                        raise
                    retries, last = retries - 1, error
                except DeadlineExceeded:
                    # Perhaps the server hangs: the next calls go to the others first.
                    self.failed(replica)
                    raise
                else:
                    self.worked(replica)
                    return answer
            pause = self.pause(round_)
            if self.clock() + pause >= deadline:
                raise last
            yield Wait(pause)
        raise AssertionError("rounds do not end")
