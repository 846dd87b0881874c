"""The controller's counters and gauges, for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbroker.controller.state.state import ClusterState, PartitionState


class Counts:
    """Totals of one process, over all its terms as controller.

    leader_elections: partitions that were given another leader, or none; unclean_elections: of
    these, those whose new leader was not in sync. elected: called once for all the partitions that
    an event gives other leaders, with the nanoseconds that it took.
    """

    __slots__ = (
        "controller_elections",
        "elected",
        "leader_elections",
        "now_ns",
        "registrations",
        "unclean_elections",
    )

    def __init__(self) -> None:
        self.registrations = 0
        self.controller_elections = 0
        self.leader_elections = 0
        self.unclean_elections = 0
        self.elected: Callable[[int], object] = lambda _: None
        self.now_ns: Callable[[], int] = time.monotonic_ns

    def note(self, old: PartitionState | None, new: PartitionState) -> None:
        """Count a change of leader; the first leader of a partition is none."""
        if old is None or not old.is_stored or old.leader == new.leader:
            return
        self.leader_elections += 1
        if new.leader >= 0 and new.leader not in old.isr:
            self.unclean_elections += 1

    @property
    def sessions_expired(self) -> int:
        """Sessions that ended while this process was running."""
        return max(0, self.registrations - 1)


class AttentionCounts:
    """Gauges of partitions that need attention. Counted again only after the state has changed."""

    def __init__(self) -> None:
        self._counted: tuple[int, int] | None = None
        self.offline = 0
        self.imbalance = 0

    def count(self, state: ClusterState | None) -> None:
        """state: of this broker as the controller; None while another one is."""
        now = None if state is None else (state.controller_epoch, state.version)
        if now == self._counted:
            return
        self._counted = now
        self.offline = self.imbalance = 0
        if state is None:
            return
        for topic in state.topics():
            if topic.deleting:
                continue
            for partition in topic.partitions:
                self.offline += partition.leader not in state.brokers
                self.imbalance += partition.leader != partition.replicas[0]
