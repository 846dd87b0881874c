"""The state machine of one partition of ``__consumer_offsets``: its groups and their offsets.

Composed of parts, each with its own requests and record types. A part has ``handlers`` and
``tasks`` as a Machine has them, ``replayers`` by class of key, and the methods of ``Part``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.group import Group
from kbroker.coordinator.machine import CoordinatorOperation, Handler, Host, Task
from kbroker.coordinator.records.offsets_topic import RECORDS
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.cluster.changes import ImageChanges
    from kbroker.coordinator.group.classic.classic_protocol import ClassicProtocol
    from kbroker.coordinator.group.consumer.consumer import ConsumerProtocol
    from kbroker.coordinator.offsets.offsets import Offsets

# (offset, producer id, key, value)
Replayer = Callable[[Offset, int, Any, Any], None]


class Part:
    """A share of the machine's work; see ``Machine`` for the methods."""

    handlers: Mapping[ApiKey, Handler]
    tasks: Mapping[ApiKey, Task]
    replayers: Mapping[type, Replayer]  # bytes: of ``CoordinatorOperation.append_encoded``

    def __init__(self, machine: GroupMachine) -> None:
        self.machine = machine
        self.host = machine.host
        self.handlers, self.tasks, self.replayers = {}, {}, {}

    def loaded(self, op: CoordinatorOperation) -> None:
        """All records are replayed."""

    def replay_chunk(self, data: bytes, position: int) -> tuple[int, int, int]:
        """While loading, take batches that hold nothing but records of this part."""
        return position, 0, -1

    def replay_marker(self, offset: Offset, producer_id: int, epoch: int, commit: bool) -> None:
        """A transaction has ended."""

    def on_image(self, op: CoordinatorOperation, changes: ImageChanges) -> None:
        """Topics have changed."""

    def close(self, error: Exception) -> None:
        """The shard is closed."""


class GroupMachine:
    """See ``kbroker.coordinator.machine.Machine``.

    groups: every group of this partition that has state of its own; one that only committed
    offsets has none until it is joined, its offsets are in ``offsets``. classic, consumer: the
    parts that have the groups of these kinds.
    """

    records = RECORDS
    # Set by each of these parts itself.
    classic: ClassicProtocol
    consumer: ConsumerProtocol
    offsets: Offsets

    def __init__(self, host: Host) -> None:
        self.host = host
        self.groups: dict[str, Group] = {}
        self.parts: list[Part] = []
        self.handlers: dict[ApiKey, Handler] = {}
        self.tasks: dict[ApiKey, Task] = {}
        self._replayers: dict[type, Replayer] = {}

    def add(self, part: Part) -> None:
        """Compose: called once for each part, before the load."""
        self.parts.append(part)
        self.handlers.update(part.handlers)
        self.tasks.update(part.tasks)
        self._replayers.update(part.replayers)

    def replay(self, offset: Offset, producer_id: int, key: Message, value: Message | None) -> None:
        replayer = self._replayers.get(type(key))
        if replayer is not None:
            replayer(offset, producer_id, key, value)

    def replay_chunk(self, data: bytes, position: int) -> tuple[int, int, int]:
        for part in self.parts:
            taken = part.replay_chunk(data, position)
            if taken[0] != position:
                return taken
        return position, 0, -1

    def replay_marker(self, offset: Offset, producer_id: int, epoch: int, commit: bool) -> None:
        for part in self.parts:
            part.replay_marker(offset, producer_id, epoch, commit)

    def loaded(self, op: CoordinatorOperation) -> None:
        for part in self.parts:
            part.loaded(op)

    def on_image(self, op: CoordinatorOperation, changes: ImageChanges) -> None:
        for part in self.parts:
            part.on_image(op, changes)

    def close(self, error: Exception) -> None:
        for part in self.parts:
            part.close(error)
