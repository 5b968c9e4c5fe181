from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from darksight_client.errors import DarkSightClientError, DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from darksight_client.transport.retries import Replicas, Send, Steps, Wait

Server = Callable[[Send], bytes]


@dataclass(slots=True)
class World:
    """Time and servers of a test: what a client would wait for and send, without either."""

    servers: list[Server]
    now: float = 100.0
    sent: list[Send] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def replicas(self, retries: int = 8) -> Replicas:
        """Replicas that begin with the first server and take the longest pauses."""
        replicas = Replicas(len(self.servers), retries, clock=lambda: self.now, uniform=lambda low, high: low)
        replicas.uniform = lambda low, high: high
        return replicas

    def run(self, steps: Steps[bytes]) -> bytes:
        """Do what the steps say."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Wait):
                    self.pauses.append(step.seconds)
                    self.now += step.seconds
                    step = steps.send(b"")
                else:
                    self.sent.append(step)
                    try:
                        answer = self.servers[step.replica](step)
                    except DarkSightClientError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(answer)
        except StopIteration as end:
            result: bytes = end.value
            return result


def works(step: Send) -> bytes:
    """A server that answers."""
    return b"answer of %d" % step.replica


def dead(step: Send) -> bytes:
    """A server that is not there."""
    raise Unavailable("down")


def test_replicas_take_turns() -> None:
    """Four calls on three servers."""
    world = World([works, works, works])
    replicas = world.replicas()

    for _ in range(4):
        world.run(replicas.call("/m", b"", 5.0))

    assert [step.replica for step in world.sent] == [0, 1, 2, 0]


def test_a_dead_replica_is_left_for_the_next_at_once() -> None:
    """No pause as long as there is another to ask."""
    world = World([dead, works])

    answer = world.run(world.replicas().call("/m", b"data", 5.0))

    assert answer == b"answer of 1"
    assert [(step.replica, step.data) for step in world.sent] == [(0, b"data"), (1, b"data")]
    assert world.pauses == []


def test_a_dead_replica_rests() -> None:
    """The calls after go to those that work, until a second has passed."""
    world = World([dead, works])
    replicas = world.replicas()

    for _ in range(4):
        world.run(replicas.call("/m", b"", 5.0))
    assert [step.replica for step in world.sent] == [0, 1, 1, 1, 1]

    world.now += 1.1
    world.servers[0] = works
    for _ in range(2):
        world.run(replicas.call("/m", b"", 5.0))
    assert sorted(step.replica for step in world.sent[-2:]) == [0, 1]


def test_pauses_double_up_to_a_second() -> None:
    """All servers down: one round each, then a longer pause."""
    world = World([dead])

    with pytest.raises(Unavailable):
        world.run(world.replicas(retries=8).call("/m", b"", 100.0))

    assert world.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert len(world.sent) == 9


def test_no_retry_begins_past_the_deadline() -> None:
    """The error that is known comes at once instead of after a useless wait."""
    world = World([dead])

    with pytest.raises(Unavailable):
        world.run(world.replicas(retries=1000).call("/m", b"", 1.0))

    assert world.now < 101.0
    assert all(step.timeout_seconds > 0.0 for step in world.sent)


def test_attempts_share_one_deadline() -> None:
    """What a slow failure took is gone."""

    def slow(step: Send) -> bytes:
        world.now += 3.0
        raise Unavailable("down")

    world = World([slow, works])

    world.run(world.replicas().call("/m", b"", 5.0))

    assert [step.timeout_seconds for step in world.sent] == pytest.approx([5.0, 2.0])


def busy(step: Send) -> bytes:
    """A server that rejects a call and says when to retry."""
    raise Overloaded("full", retry_after_seconds=0.3)


def test_an_overloaded_replica_is_left_for_the_next_at_once() -> None:
    """And gets no calls until the time that it named."""
    world = World([busy, works])
    replicas = world.replicas()

    for _ in range(3):
        world.run(replicas.call("/m", b"", 5.0))
    assert [step.replica for step in world.sent] == [0, 1, 1, 1]
    assert world.pauses == []

    world.now += 0.31
    world.servers[0] = works
    for _ in range(2):
        world.run(replicas.call("/m", b"", 5.0))
    assert sorted(step.replica for step in world.sent[-2:]) == [0, 1]


def test_overloaded_replicas_are_asked_again_when_they_say() -> None:
    """After the delay that they named, up to half of it later."""
    world = World([busy])

    with pytest.raises(Overloaded):
        world.run(world.replicas(retries=2).call("/m", b"", 5.0))

    assert world.pauses == pytest.approx([0.45, 0.45])


@pytest.mark.parametrize("error", [Overloaded("full"), InvalidRequest("bad"), DeadlineExceeded("late")])
def test_other_errors_are_final(error: DarkSightClientError) -> None:
    """Unavailable is retried, and Overloaded if the server said when."""

    def refuses(step: Send) -> bytes:
        raise error

    world = World([refuses, works])

    with pytest.raises(type(error)):
        world.run(world.replicas().call("/m", b"", 5.0))

    assert len(world.sent) == 1


def test_a_replica_that_hangs_rests_too() -> None:
    """After a deadline the next calls begin with another."""

    def hangs(step: Send) -> bytes:
        world.now += step.timeout_seconds
        raise DeadlineExceeded("late")

    world = World([hangs, works])
    replicas = world.replicas()
    with pytest.raises(DeadlineExceeded):
        world.run(replicas.call("/m", b"", 0.5))

    for _ in range(2):
        world.run(replicas.call("/m", b"", 0.5))

    assert [step.replica for step in world.sent] == [0, 1, 1]


def test_what_may_not_happen_twice_is_sent_once() -> None:
    """A change whose answer got lost may have been made."""
    world = World([dead, works])

    with pytest.raises(Unavailable):
        world.run(world.replicas().call("/m", b"", 5.0, is_idempotent=False))

    assert len(world.sent) == 1


def test_no_retries() -> None:
    """The first failure is raised if the caller wants it so."""
    world = World([dead, works])

    with pytest.raises(Unavailable):
        world.run(world.replicas(retries=0).call("/m", b"", 5.0))
