"""Connections between simulated brokers: they end with their brokers, and are refused, rightly and
wrongly.

The evidence and what is done with it are the broker's own (``peers.evidence``,
``controller.election.failover``). A broker that is killed may be back at once, within the time in
which its listener has to refuse, or after seconds. A firewall refuses what lives, one way or both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.ipc.pending import Pending
from kbroker.peers.evidence import Attempt, Hearing, PeerEvidence
from kbroker.peers.link import LinkFailed
from kbroker.peers.watch import WatchedBroker, WatchOwner

if TYPE_CHECKING:
    from support.simulation.simulated_cluster import Broker, SimulatedCluster

# How probably an attempt says nothing, and a question is lost.
UNCLEAR, LOST = 0.05, 0.05
# How long a firewall refuses, and how long a killed broker is away.
WALL_MAX_MS, AWAY_MAX_MS = 8_000, 9_000


class SimulatedWatch:
    """What a broker knows of another one. Stands for ``peers.watch.PeerWatch``."""

    def __init__(
        self, broker: Broker, number: int, watched: WatchedBroker, owner: WatchOwner
    ) -> None:
        self.watched = watched
        self.evidence = PeerEvidence()
        self.number = number
        self._broker = broker
        self._owner = owner
        self._is_ended = self._is_told = self._is_waiting = False
        self._attempt()

    def end(self) -> None:
        self._is_ended = True

    def closed(self) -> None:
        """The connection has ended, and the kernel says so."""
        cluster = self._broker.cluster
        self._broker.after(cluster.delay_ms(), self._note_closed)

    def _note_closed(self) -> None:
        if self.evidence.is_connected and not self._is_ended:
            self.evidence.closed(self._broker.now_ms())
            self._attempt()

    def _attempt(self) -> None:
        if self._is_waiting or self._is_ended or self.evidence.is_connected:
            return
        self._is_waiting = True
        cluster = self._broker.cluster
        self._broker.after(cluster.delay_ms(), self._attempted)

    def _attempted(self) -> None:
        self._is_waiting = False
        if self._is_ended:
            return
        cluster, me = self._broker.cluster, self._broker.number
        how = cluster.reach(me, self.number)
        epoch = cluster.brokers[self.number].hosting.broker_epoch
        if how is Attempt.REACHED and epoch < 0:
            how = Attempt.OTHER  # as in ``PeerWatch._greet``
        self.evidence.attempted(how, self._broker.now_ms(), epoch)
        if how is Attempt.REACHED:
            self._is_told = False
            self._owner.reached(self.number)
        elif self.evidence.is_gone and not self._is_told:
            self._is_told = True
            self._owner.gone(self.number)
        if not self.evidence.is_connected:
            self._broker.after(self.evidence.delay_ms, self._attempt)


class SimulatedPeers:
    """Of one broker, while its controller process lives."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.watches: dict[int, SimulatedWatch] = {}

    def watch(self, wanted: Mapping[int, WatchedBroker], owner: WatchOwner) -> None:
        for number, watch in list(self.watches.items()):
            if wanted.get(number) != watch.watched:
                watch.end()
                del self.watches[number]
        for number, watched in wanted.items():
            if number not in self.watches:
                self.watches[number] = SimulatedWatch(self._broker, number, watched, owner)

    def evidence(self, broker_id: int) -> PeerEvidence | None:
        watch = self.watches.get(broker_id)
        return None if watch is None else watch.evidence

    async def ask(self, broker_id: int, about_id: int, about_epoch: int) -> Hearing:
        cluster = self._broker.cluster
        evidence = self.evidence(broker_id)
        if evidence is None or not evidence.is_connected:
            raise LinkFailed("it is not connected")
        await self._broker.sleep(cluster.delay_ms())
        other = cluster.brokers[broker_id]
        is_lost = cluster.random.random() < LOST
        if is_lost or not other.is_alive or not cluster.may_pass(self._broker.number, broker_id):
            await self._broker.sleep(10_000)
            raise LinkFailed("it did not respond in time")
        said: Hearing = other.failover.hearing(about_id, about_epoch)
        await self._broker.sleep(cluster.delay_ms())
        return said


class Walls:
    """Firewalls between brokers that refuse, and brokers that are away. Part of the cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._closed: set[tuple[int, int]] = set()

    def may_pass(self, one: int, other: int) -> bool:
        return (one, other) not in self._closed

    def reach(self, one: int, other: int) -> Attempt:
        """How an attempt of one broker to reach another ends."""
        cluster = self._cluster
        if not cluster.brokers[other].is_alive or not self.may_pass(one, other):
            return Attempt.REFUSED
        return Attempt.OTHER if cluster.random.random() < UNCLEAR else Attempt.REACHED

    def ended(self, number: int) -> None:
        """All connections of a broker have ended with it."""
        for broker in self._cluster.brokers:
            self._close(broker, number)

    @staticmethod
    def _close(broker: Any, number: int) -> None:
        watch = broker.peers.watches.get(number)
        if watch is not None:
            watch.closed()

    def raise_wall(self) -> None:
        """Refuse between two brokers for a while, one way or both."""
        cluster = self._cluster
        one, other = cluster.random.sample(range(len(cluster.brokers)), 2)
        ways = [(one, other)] + [(other, one)] * (cluster.random.random() < 0.5)
        for way in ways:
            self._closed.add(way)
            self._close(cluster.brokers[way[0]], way[1])
        wait_ms = cluster.random.randint(1, WALL_MAX_MS)
        cluster.after(wait_ms, lambda: self._closed.difference_update(ways))

    def isolate(self) -> None:
        """Refuse whatever one broker wants of all others."""
        cluster = self._cluster
        one = cluster.random.randrange(len(cluster.brokers))
        ways = [(one, other) for other in range(len(cluster.brokers)) if other != one]
        for way in ways:
            self._closed.add(way)
            self._close(cluster.brokers[one], way[1])
        wait_ms = cluster.random.randint(1, WALL_MAX_MS)
        cluster.after(wait_ms, lambda: self._closed.difference_update(ways))

    def kill(self, number: int) -> None:
        """Kill a broker, which is back after a while."""
        cluster = self._cluster
        broker = cluster.brokers[number]
        if not broker.is_alive:
            return
        broker.crash()
        self.ended(number)
        cluster.without_journal.discard(number)
        away_ms = cluster.random.choice((cluster.random.randint(0, 300), AWAY_MAX_MS))

        def back() -> None:
            if cluster.brokers[number] is broker:
                cluster.brokers[number] = cluster.start(number)

        cluster.after(cluster.random.randint(0, away_ms), back)


def drop_follower(broker: Any, broker_id: int, closed_ms: int) -> Pending[int]:
    """The call to a broker's io worker; it has no effect on one that is replaced meanwhile."""
    heard: Pending[int] = Pending()
    cluster, io = broker.cluster, broker.io

    def arrive() -> None:
        found = 0
        if io.is_alive:
            found = io.in_sync.follower_gone(broker_id, closed_ms)
            io.in_sync.end_turn()
        broker.after(cluster.delay_ms(), lambda: heard.resolve(found))

    cluster.after(cluster.delay_ms(), arrive)
    return heard
