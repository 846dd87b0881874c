"""Writes down the committed offsets of the groups of an io worker, for the exporter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.coordinator.shard import ACTIVE
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address

if TYPE_CHECKING:
    import mmap

    from kbroker.ipc.rpc import Rpc
    from kbroker.workers.io.coordinators import Coordinators


class GroupFigures:
    """Yields to the rest of the process after each shard."""

    def __init__(self, rpc: Rpc, coordinators: Coordinators, region: mmap.mmap) -> None:
        self._rpc = rpc
        self._coordinators = coordinators
        self._region = region
        self._runs = 0
        rpc.serve(calls.WRITE_OFFSETS, self.serve)

    async def serve(self, sender: Address, _: calls.Nothing) -> calls.AllOffsets:
        """Write all offsets. An earlier call that is not done fails: it would overwrite them."""
        self._runs += 1
        run = self._runs
        written: list[calls.WrittenOffsets] = []
        at = left_out = 0
        for shard in self._coordinators.shards():
            if shard.topic != OFFSETS_TOPIC or shard.state != ACTIVE:
                continue
            machine: Any = shard.machine
            store = machine.offsets.store
            count = store.write_down(self._region, at)
            left_out += len(store) - count
            groups, topics = store.names()
            states = list(group_states(machine.groups.values(), groups))
            written.append(calls.WrittenOffsets(at, count, groups, topics, states))
            at += count
            await self._rpc.sleep(0)
            if self._runs != run:
                raise WireError(ErrorCode.OPERATION_NOT_ATTEMPTED, "another call has been made")
        return calls.AllOffsets(written, left_out)


def group_states(groups: Iterable[Any], committed: Iterable[str]) -> Iterable[calls.GroupSummary]:
    """All groups: with state of their own, or with nothing but offsets."""
    known = set()
    for group in groups:
        known.add(group.group_id)
        yield calls.GroupSummary(group.group_id, group.kind, group.state, len(group.members))
    for group_id in committed:
        if group_id and group_id not in known:
            yield calls.GroupSummary(group_id, "classic", "Empty", 0)
