"""Serves requests about leaders and replicas: elections, reassignments, and what waits."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.controller.election.awaited_responses import known_in_time
from kbroker.controller.replicas.background import Background
from kbroker.controller.replicas.waiting import waiting
from kbroker.controller.state.reassignments import resized
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import (
    AlterReassignments,
    ElectLeaders,
    ListReassignments,
    Nothing,
    OngoingReassignment,
    PartitionResult,
    WaitingWork,
)
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address


class ReplicaAdmin:
    """Made by each elected controller."""

    def __init__(self, background: Background, sleep: Callable[[int], Pending[None]]) -> None:
        self._duties = background
        self._sleep = sleep

    async def elect_leaders(self, sender: Address, asked: ElectLeaders) -> list[PartitionResult]:
        """Elect, and wait until the brokers know."""
        elections = self._duties.elections
        keys = (
            None
            if asked.partitions is None
            else [(row.topic, row.partition) for row in asked.partitions]
        )
        errors = await elections.elect(keys, unclean=asked.unclean)
        if not all(errors.values()) and not await known_in_time(
            elections.told_here(), elections.told(), asked.within_ms, self._sleep
        ):
            late = WireError(ErrorCode.REQUEST_TIMED_OUT, "The brokers were not told in time.")
            errors = {key: error or late for key, error in errors.items()}
        return [result(*key, error) for key, error in errors.items()]

    async def alter_reassignments(
        self, sender: Address, asked: AlterReassignments
    ) -> list[PartitionResult]:
        """Begin reassignments, or cancel them; they are carried out later."""
        wanted = {(row.topic, row.partition): row.replicas for row in asked.partitions}
        rejected = {} if asked.may_resize else resized(self._duties.writes.state, wanted)
        accepted = {key: replicas for key, replicas in wanted.items() if key not in rejected}
        errors = await self._duties.reassigning.alter(accepted) | rejected
        return [
            result(row.topic, row.partition, errors[row.topic, row.partition])
            for row in asked.partitions
        ]

    async def list_reassignments(
        self, sender: Address, asked: ListReassignments
    ) -> list[OngoingReassignment]:
        keys = (
            None
            if asked.partitions is None
            else [(row.topic, row.partition) for row in asked.partitions]
        )
        return [
            OngoingReassignment(*key, one.replicas, list(one.adding), list(one.removing))
            for key, one in self._duties.reassigning.listed(keys)
        ]

    async def list_waiting(self, sender: Address, _: Nothing) -> list[WaitingWork]:
        """What has begun and cannot end yet."""
        return waiting(self._duties.writes.state)


def result(topic: str, partition: int, error: WireError | None) -> PartitionResult:
    if error is None:
        return PartitionResult(topic, partition, 0, None)
    return PartitionResult(topic, partition, int(error.code), error.message)
