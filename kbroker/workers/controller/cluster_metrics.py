"""The metrics of the controller process: its session, its elections, and its partitions."""

from __future__ import annotations

from kbroker.controller.election.failover import FailoverCounts
from kbroker.controller.state.counts import AttentionCounts
from kbroker.metrics.catalog import (
    ACTIVE_CONTROLLER,
    CLUSTER_BROKERS,
    CONTROLLER_ELECTIONS,
    FAST_DEPOSITIONS,
    FAST_MOVED_MS,
    FAST_REMOVALS,
    FAST_VETOES,
    LEADER_ELECTIONS,
    OFFLINE_PARTITIONS,
    PREFERRED_IMBALANCE,
    UNCLEAN_ELECTIONS,
    ZOOKEEPER_DISCONNECTED,
    ZOOKEEPER_SESSIONS_EXPIRED,
)
from kbroker.metrics.slots import Counters, Totals
from kbroker.workers.controller.candidacy import Candidacy


class ClusterMetrics:
    """is_shared: whether the store is ZooKeeper."""

    def __init__(
        self, counters: Counters, candidacy: Candidacy, early: FailoverCounts, is_shared: bool
    ) -> None:
        self._candidacy = candidacy
        self._watched = AttentionCounts()
        counts = candidacy.counts
        rows = [
            (ACTIVE_CONTROLLER, lambda: int(candidacy.present is not None)),
            (CONTROLLER_ELECTIONS, lambda: counts.controller_elections),
            (CLUSTER_BROKERS, self._broker_count),
            (OFFLINE_PARTITIONS, lambda: self._watched.offline),
            (PREFERRED_IMBALANCE, lambda: self._watched.imbalance),
            (LEADER_ELECTIONS, lambda: counts.leader_elections),
            (UNCLEAN_ELECTIONS, lambda: counts.unclean_elections),
        ]
        if is_shared:
            rows += [
                (ZOOKEEPER_DISCONNECTED, lambda: int(not candidacy.is_connected)),
                (ZOOKEEPER_SESSIONS_EXPIRED, lambda: counts.sessions_expired),
                (FAST_REMOVALS, lambda: early.removals),
                (FAST_DEPOSITIONS, lambda: early.depositions),
                (FAST_VETOES, lambda: early.vetoes),
                (FAST_MOVED_MS, lambda: early.moved_ms),
            ]
        self._totals = Totals(counters, rows)

    def _broker_count(self) -> int:
        present = self._candidacy.present
        return 0 if present is None else len(present.controller.state.brokers)

    def publish(self) -> None:
        """Called once per tick."""
        present = self._candidacy.present
        self._watched.count(None if present is None else present.controller.state)
        self._totals.publish()
