"""Counts groups of the consumer protocol by state, for the metrics.

A group's state follows from its records and is stored nowhere, so it is remembered here in which
gauge a group is counted. The gauges add up over the partitions of ``__consumer_offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.coordinator.group.consumer.consumer_group import (
    ASSIGNING,
    EMPTY,
    RECONCILING,
    STABLE,
    ConsumerGroup,
)
from kbroker.coordinator.group.group import Group
from kbroker.coordinator.machine import Host
from kbroker.metrics.catalog import (
    CONSUMER_GROUPS_ASSIGNING,
    CONSUMER_GROUPS_EMPTY,
    CONSUMER_GROUPS_RECONCILING,
    CONSUMER_GROUPS_STABLE,
)

GROUPS_IN_STATE = {
    EMPTY: CONSUMER_GROUPS_EMPTY,
    ASSIGNING: CONSUMER_GROUPS_ASSIGNING,
    RECONCILING: CONSUMER_GROUPS_RECONCILING,
    STABLE: CONSUMER_GROUPS_STABLE,
}


class ConsumerGauges:
    """The gauges for the groups of one partition."""

    def __init__(self, host: Host, groups: Mapping[str, Group]) -> None:
        self._host = host
        self._groups = groups
        self._counted: dict[str, str] = {}  # group -> the state in which a gauge counts it

    def count(self, group_id: str) -> None:
        """Update the gauges to the group's present state, if it has one."""
        group = self._groups.get(group_id)
        state = group.state if isinstance(group, ConsumerGroup) else None
        before = self._counted.get(group_id)
        if state == before:
            return
        if before is not None:
            del self._counted[group_id]
            self._host.count(GROUPS_IN_STATE[before], -1)
        if state is not None:
            self._counted[group_id] = state
            self._host.count(GROUPS_IN_STATE[state])

    def close(self) -> None:
        """Take all groups out of the gauges."""
        for state in self._counted.values():
            self._host.count(GROUPS_IN_STATE[state], -1)
        self._counted.clear()
