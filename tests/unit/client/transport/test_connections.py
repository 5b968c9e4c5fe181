from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from darksight_client.transport.connections import Connection, Connections, worker_header


@dataclass(eq=False)
class Channel:
    """A channel that leads to one worker of each server."""

    workers: dict[str, int]


@dataclass
class World:
    """Servers by number of workers, and a clock; the kernel assigns channels as in `assigned`, then at random."""

    servers: dict[str, int]
    assigned: list[int] = field(default_factory=list)
    max_connections: int = 64
    now: float = 0.0
    opened: list[Channel] = field(default_factory=list)
    closed: list[Channel] = field(default_factory=list)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.connections = Connections(self.open, self.max_connections, clock=lambda: self.now)

    def open(self) -> Channel:
        """A new channel."""
        self.opened.append(Channel({server: self.assign(workers) for server, workers in self.servers.items()}))
        return self.opened[-1]

    def assign(self, workers: int) -> int:
        """Number of a worker."""
        return self.assigned.pop(0) if self.assigned else self.random.randrange(workers)

    def begin(self) -> Connection:
        """Begin a call."""
        return self.connections.acquire()

    def end(self, connection: Connection, *, has_failed: bool = False) -> None:
        """End a call with a response of one of the servers."""
        server = self.random.choice(sorted(self.servers))
        worker = connection.channel.workers[server]
        if not has_failed:
            self.calls[server, worker] += 1
            self.connections.learn(connection, [worker_header(server, worker, self.servers[server])])
        unused = self.connections.release(connection, has_failed=has_failed)
        if unused is not None:
            self.closed.append(unused)

    def call(self, times: int = 1) -> None:
        """Calls one after the other."""
        for _ in range(times):
            self.end(self.begin())

    def open_now(self) -> list[Channel]:
        """Channels that are not closed."""
        return [channel for channel in self.opened if channel not in self.closed]


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 32])
def test_each_worker_gets_one_connection_and_an_equal_number_of_calls(workers: int) -> None:
    """After a while, whatever the kernel assigns."""
    world = World({"a": workers})
    world.call(20 * workers)
    world.calls.clear()

    world.call(10 * workers)

    assert world.calls == {("a", number): 10 for number in range(workers)}
    assert sorted(channel.workers["a"] for channel in world.open_now()) == list(range(workers))


def test_a_server_that_names_no_worker_gets_one_connection() -> None:
    """Such as a proxy, or another implementation."""
    world = World({"a": 4})

    for _ in range(20):
        connection = world.begin()
        world.connections.learn(connection, [("other", "metadata")])
        world.connections.learn(connection, None)
        world.connections.release(connection)

    assert len(world.opened) == 1


def test_a_call_uses_the_connection_with_the_fewest_calls_in_flight() -> None:
    """A slow worker gets fewer calls."""
    world = World({"a": 2})
    world.call(40)
    slow = [world.begin() for _ in range(2)]
    world.end(slow[0])

    taken = [world.begin() for _ in range(3)]

    assert Counter(connection.channel.workers["a"] for connection in taken)[slow[0].channel.workers["a"]] == 2


def test_a_redundant_connection_is_closed_when_its_last_call_has_ended() -> None:
    """It gets no new calls, and those in flight finish."""
    world = World({"a": 2}, assigned=[0, 0])
    world.call()
    calls = [world.begin() for _ in range(4)]
    first, last = (call for call in calls if call.channel is world.opened[1])

    world.end(first)
    assert world.closed == []
    assert all(world.begin() is not last for _ in range(5))

    world.end(last)
    assert world.closed == [last.channel]


def test_a_worker_that_is_down_is_tried_at_increasing_intervals() -> None:
    """And gets calls again when it is back."""
    world = World({"a": 2}, assigned=[0, 1, *[0] * 200])
    world.call(2)
    calls = world.begin(), world.begin()
    world.end(calls[1], has_failed=True)
    world.opened[1].workers["a"] = 0

    world.call(500)
    attempts = len(world.opened)
    for _ in range(100):
        world.now += 1.0
        world.call(5)
    assert attempts < 25
    assert 3 < len(world.opened) - attempts < 20

    world.assigned.clear()
    for _ in range(100):
        world.now += 1.0
        world.call(5)
    assert {channel.workers["a"] for channel in world.open_now()} == {0, 1}


def test_a_connection_that_moved_is_noticed_within_a_minute() -> None:
    """A server closes old connections, and the kernel assigns the new one to any worker."""
    world = World({"a": 4})
    world.call(200)
    for channel in world.open_now():
        channel.workers["a"] = 0

    world.now += 61.0
    world.call(200)

    assert sorted(channel.workers["a"] for channel in world.open_now()) == [0, 1, 2, 3]


def test_a_proxy_that_hides_the_workers_causes_few_connections() -> None:
    """Every call on one connection may end at another worker."""
    world = World({"a": 4})

    for _ in range(600):
        world.now += 0.1
        for _ in range(10):
            for channel in world.opened:
                channel.workers["a"] = world.random.randrange(4)
            world.call()

    assert len(world.opened) < 60


def test_a_name_of_several_servers_reaches_all_workers() -> None:
    """Each channel leads to every server, to one worker of each."""
    world = World({"a": 2, "b": 4, "c": 1})

    world.call(500)

    reached = {each for channel in world.open_now() for each in channel.workers.items()}
    assert reached == {(server, number) for server, workers in world.servers.items() for number in range(workers)}
    assert len(world.open_now()) <= 6


def test_the_number_of_connections_is_limited() -> None:
    """The caller may forbid more than one."""
    world = World({"a": 8}, max_connections=3)

    world.call(200)

    assert len(world.open_now()) == 3
    assert len(world.connections.close()) == 3
