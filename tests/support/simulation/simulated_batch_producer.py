"""``BatchProducer`` in simulated time: while a call of its waits, the world goes on. Sockets are
pairs, whose other ends are simulated brokers.
"""

from __future__ import annotations

import socket
from typing import Any

from support.simulation.simulated_brokers import FOREVER, Broker
from support.simulation.simulated_produce_brokers import ProduceBrokers, ProduceLink
from support.simulation.simulated_surroundings import SimulatedCluster, SimulatedRetry

from kbroker._ext.client.send_loop import SendLoop
from kbroker.client.batches.driven_sender import DrivenSender, SharedMetadata
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import ConnectionLost

TURNS_AT_ONCE = 200


class PassingRetry(SimulatedRetry):
    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        cluster: Any = self._cluster
        cluster.pass_time(seconds)


class PassingCluster(SimulatedCluster):
    """Of a caller that waits: what its calls take has passed when they return."""

    brokers: ProduceBrokers

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self.links: list[ProduceLink] = []

    def pass_time(self, seconds: float) -> None:
        passed: list[bool] = []
        self.brokers.world.after(seconds, lambda: passed.append(True))
        while not passed:
            self.brokers.world.run_next()

    def retry(self, what: str, deadline: float | None = None) -> Retry:
        return PassingRetry(what, self.deadline if deadline is None else deadline, self)

    def wait_for(self, broker: Broker, deadline: float, what: str) -> None:
        self.late = 0.0
        try:
            super().wait_for(broker, deadline, what)
        finally:
            late, self.late = self.late, 0.0
            self.pass_time(late)

    def borrow(self, node: int, retry: Retry) -> Any:
        idle = self._idle.get(node, [])
        while idle:
            made: Any = idle.pop()
            if not made.closed:
                return made
        address = self.address(node)
        if address is None:
            raise ConnectionLost(f"node {node}", "nobody knows it")
        host, port = address
        broker = self.brokers.nodes[port - 9000]
        self.wait_for(broker, retry.attempt(self.connect_timeout), "connecting")
        self.links.append(ProduceLink(self.brokers, broker, lambda: None))
        version = self.brokers.world.random.choice((8, 11, 12))
        return _Borrowed(self.links[-1], host, port, version)


class _Borrowed:
    """A connection for Produce."""

    expired = failed = False
    in_flight = 0
    used_at = FOREVER

    def __init__(self, link: ProduceLink, host: str, port: int, version: int) -> None:
        self.host, self.port, self.address = host, port, f"{host}:{port}"
        self._socket, self._version = link.ours, version

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def version_of(self, api_key: int, at_most: int) -> int:
        return min(self._version, at_most)

    def take_socket(self) -> socket.socket:
        return self._socket

    def close(self) -> None:
        self._socket.close()


class PassingLoop:
    """``SendLoop``, whose waiting lets simulated time pass."""

    def __init__(self, loop: SendLoop, pool: Any, cluster: PassingCluster) -> None:
        self._loop, self._pool, self._cluster = loop, pool, cluster
        self._turns, self._turns_at = 0, 0.0
        self._note_time()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def _note_time(self) -> None:
        self._pool.simulate(int(self._cluster.brokers.world.now * 1e6))

    def run(self, seconds: float, enough_bytes: int = -1) -> list[tuple[Any, ...]]:
        world = self._cluster.brokers.world
        until = world.now + seconds
        while True:
            self._note_time()
            self._check_turns(world.now)
            moved = self._moved
            events = self._loop.run(until - world.now, enough_bytes)
            for link in self._cluster.links:
                link.drain()
            self._cluster.links = [link for link in self._cluster.links if not link.is_closed]
            if events or self._pool.used_bytes <= enough_bytes or world.now >= until:
                return events
            if self._moved == moved:
                # Until something happens in the world, or the loop would wake up by itself.
                wake_at = min(until, self._pool.sleeps_until_us / 1e6)
                waking = world.after(max(wake_at - world.now, 0.001), lambda: None)
                world.run_next()
                waking.cancel()

    @property
    def _moved(self) -> int:
        counts = self._pool.counts()
        return counts["requests"] + counts["responses"]

    def _check_turns(self, now: float) -> None:
        self._turns = self._turns + 1 if now == self._turns_at else 0
        self._turns_at = now
        assert self._turns <= TURNS_AT_ONCE, f"{self._turns} turns at one moment"


class _PassingMetadata(SharedMetadata):
    def clock(self) -> float:  # type: ignore[override]
        cluster: Any = self._cluster
        return float(cluster.brokers.world.now)


class PassingSender(DrivenSender):
    """See ``DrivenSender``."""

    def __init__(self, settings: Any, pool: Any, loop: Any, cluster: Any, failed: Any) -> None:
        passing: Any = PassingLoop(loop, pool, cluster)
        super().__init__(settings, pool, passing, cluster, failed, _PassingMetadata)

    def clock(self) -> float:  # type: ignore[override]
        cluster: Any = self._cluster
        return float(cluster.brokers.world.now)


class SimulatedBatchProducer(BatchProducer):
    """See ``BatchProducer``."""

    _sender_of = PassingSender
