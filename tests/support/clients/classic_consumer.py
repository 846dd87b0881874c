"""A consumer of the classic protocol, wherever its group may move."""

from __future__ import annotations

from typing import Any

from support.clients.group_clients import Client, OffsetsStandIn, code_of
from support.clients.group_clients import subscription as encoded_subscription
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group import assignors, subscription
from kbroker.coordinator.group.assignors import MemberSpec
from kbroker.coordinator.group.classic.classic_protocol import ClassicProtocol
from kbroker.coordinator.group.consumer.consumer import ConsumerProtocol
from kbroker.coordinator.group.machine import GroupMachine
from kbroker.errors import ErrorCode
from kbroker.ipc.rpc import Pending

REJOIN = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
# The last one: a static member that returned during a rebalance that a crash undid. Its process
# exits, and is restarted.
FORGOTTEN = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_INSTANCE_ID,
)


def both_host(**settings: str) -> CoordinatorHost:
    """A shard with both protocols."""

    def make(host: Any) -> GroupMachine:
        machine: Any = GroupMachine(host)
        machine.offsets = OffsetsStandIn()
        machine.add(ClassicProtocol(machine))
        machine.add(ConsumerProtocol(machine))
        return machine  # type: ignore[no-any-return]

    return CoordinatorHost(make, **settings)


class ClassicConsumer:
    """Revokes everything when it joins (eager), or what it is asked to (cooperative).

    owned: what it consumes now. As leader it assigns as the ``uniform`` assignor does.
    """

    def __init__(
        self,
        host: CoordinatorHost,
        topics: list[str],
        *,
        client_id: str = "classic",
        instance_id: str | None = None,
        is_eager: bool = True,
        session_ms: int = 45_000,
    ) -> None:
        self.host = host
        self.topics = topics
        self.is_eager = is_eager
        self.protocol = "range" if is_eager else "cooperative-sticky"
        self.client = Client(host, client_id, instance_id=instance_id, session_ms=session_ms)
        self.owned: set[tuple[bytes, int]] = set()
        self.pending: Pending | None = None
        self.is_joining = True
        self.has_to_join = True

    @property
    def member_id(self) -> str:
        return self.client.member_id

    @property
    def generation(self) -> int:
        return self.client.generation

    def beat(self) -> None:
        """Do whatever is due: handle a response, join, send a heartbeat."""
        if self.pending is not None:
            if self.pending.done:
                self._answered()
        elif self.has_to_join:
            self.join()
        else:
            code = self.client.beat()
            if code:
                self._rejected(ErrorCode(code))

    def join(self) -> None:
        self.has_to_join = False
        if self.is_eager:
            self.owned.clear()
        metadata = encoded_subscription(*self.topics, version=3, owned=self._by_topic(self.owned))
        self.client.protocols = {self.protocol: metadata}
        self._wait_for(self.client.join(), is_joining=True)

    def _wait_for(self, pending: Pending, *, is_joining: bool) -> None:
        self.pending, self.is_joining = pending, is_joining
        if pending.done:
            self._answered()

    def _answered(self) -> None:
        pending, self.pending = self.pending, None
        assert pending is not None
        code = code_of(pending)
        if code:
            self._rejected(ErrorCode(code))
        elif self.is_joining:
            response = self.client.joined(pending)
            assignments = None
            if response.leader == response.member_id:
                assignments = self._assign(response.members)
            self._wait_for(self.client.send_sync(assignments), is_joining=False)
        else:
            self._take(pending.value.assignment)

    def _rejected(self, code: ErrorCode) -> None:
        assert code in REJOIN + FORGOTTEN, code
        if code in FORGOTTEN:
            self.client.member_id = ""
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.owned.clear()
        self.client.generation = -1 if code in FORGOTTEN else self.client.generation
        self.has_to_join = True

    def _take(self, data: bytes) -> None:
        found = subscription.assignment(data)
        assert found is not None, data
        topics = self.host.image.topics
        assigned = {
            (topics[one.topic].topic_id, partition)
            for one in found.assigned_partitions
            if one.topic in topics
            for partition in one.partitions
        }
        if self.owned - assigned:
            self.has_to_join = True  # to say that it has let go
        self.owned = assigned

    def _assign(self, members: list[Any]) -> dict[str, bytes]:
        topics = self.host.image.topics
        specs, metadata = {}, {}
        for member in members:
            metadata[member.member_id] = bytes(member.metadata)
            found = subscription.subscription(bytes(member.metadata))
            assert found is not None
            assert self.is_eager, "only eager members can lead"
            ids = frozenset(topics[t].topic_id for t in found.topics if t in topics)
            specs[member.member_id] = MemberSpec(ids, member.group_instance_id, {})
        counts = {topic.topic_id: len(topic.partitions) for topic in topics.values()}
        assign = assignors.find("uniform")
        assert assign is not None
        return {
            member_id: subscription.encoded_assignment(
                self._by_topic({(t, p) for t, parts in given.items() for p in parts}),
                metadata[member_id],
            )
            for member_id, given in assign(specs, counts).items()
        }

    def _by_topic(self, owned: set[tuple[bytes, int]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic_id, partition in sorted(owned):
            topic = self.host.image.topics_by_id.get(topic_id)
            if topic is not None:
                found.setdefault(topic.name, []).append(partition)
        return found

    def leave(self) -> int:
        self.owned.clear()
        return self.client.leave()
