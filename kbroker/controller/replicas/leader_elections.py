"""ElectLeaders: preferred leader election, or unclean election if there is no leader."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.election.events import EventQueue
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state import elections
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending


class LeaderElections:
    """Serves ElectLeaders."""

    def __init__(self, writes: PartitionWrites, events: EventQueue) -> None:
        self._writes = writes
        self._events = events
        self._state = writes.state

    def elect(
        self, keys: Iterable[PartitionKey] | None, *, unclean: bool
    ) -> Pending[dict[PartitionKey, WireError | None]]:
        """The error of each partition that has one. keys: None for all partitions, of which those
        that need no election are not in the result.
        """
        why = f"a client asked for {'an unclean' if unclean else 'a preferred'} leader election"
        return self._events.put(lambda: self.run(keys, why, unclean=unclean))

    def told(self) -> Pending[None]:
        """Resolves when brokers have responded to all requests so far."""
        return self._writes.told()

    def told_here(self) -> Pending[None]:
        """As ``told``, of this broker alone."""
        return self._writes.told_here()

    async def run(
        self, keys: Iterable[PartitionKey] | None, why: str, *, unclean: bool
    ) -> dict[PartitionKey, WireError | None]:
        """As ``elect``, in an event that is running. why: the cause, for the log."""
        asked = list(self._state.keys() if keys is None else dict.fromkeys(keys))
        results: dict[PartitionKey, WireError | None] = {
            key: self._reason_against(key, unclean) for key in asked
        }
        wanted = [key for key, error in results.items() if error is None]

        def decide(key: PartitionKey, old: PartitionState) -> PartitionState | None:
            if unclean:
                return elections.settle(self._state, key, old, may_be_unclean=True)
            return elections.prefer(self._state, key, old)

        batch = self._writes.batch()
        try:
            written = await self._writes.change(wanted, decide, batch, why)
        finally:
            self._writes.send(batch)
        for key in wanted:
            led = written.get(key)
            if led is None or led.leader < 0:
                results[key] = not_available(key, unclean)
        if keys is None:
            return {k: e for k, e in results.items() if not is_needless(e)}
        return results

    def _reason_against(self, key: PartitionKey, unclean: bool) -> WireError | None:
        partition, topic = self._state.partition(key), self._state.topic(key[0])
        if partition is None or topic is None:
            text = f"There is no partition {key[0]}-{key[1]}."
            return WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        if topic.deleting:
            text = f"Topic '{key[0]}' is being deleted."
            return WireError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        has_leader = self._state.is_live(partition.leader, key)
        if has_leader and (unclean or partition.leader == partition.replicas[0]):
            text = f"{key[0]}-{key[1]} already has that leader."
            return WireError(ErrorCode.ELECTION_NOT_NEEDED, text)
        return None


def is_needless(error: WireError | None) -> bool:
    """Whether the partition needs no election of this type."""
    return error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED


def not_available(key: PartitionKey, unclean: bool) -> WireError:
    """The error if no eligible replica is live."""
    name = f"{key[0]}-{key[1]}"
    if unclean:
        return WireError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name} is available."
        )
    return WireError(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"The preferred leader of {name} is not available, or not in sync.",
    )
