"""Members of the consumer protocol with a shard in memory."""

from __future__ import annotations

from typing import Any

from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group.consumer.consumer import ConsumerProtocol
from kbroker.coordinator.group.machine import GroupMachine
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

VERSION = 1


def make_host(**settings: str) -> CoordinatorHost:
    """A shard with the consumer protocol alone."""

    def make(host: Any) -> GroupMachine:
        machine = GroupMachine(host)
        machine.add(ConsumerProtocol(machine))
        return machine

    return CoordinatorHost(make, **settings)


def topic_id(name: str) -> bytes:
    """The id assigned by ``CoordinatorHost.add_topic``."""
    return name.encode().ljust(16, b"-")[:16]


def partitions(owned: set[tuple[bytes, int]]) -> list[Any]:
    """A set of partitions in the form of a heartbeat."""
    by_topic: dict[bytes, list[int]] = {}
    for one, partition in sorted(owned):
        by_topic.setdefault(one, []).append(partition)
    cls = ConsumerGroupHeartbeatRequest.TopicPartitions
    return [cls(topic_id=one, partitions=numbers) for one, numbers in by_topic.items()]


class FakeConsumer:
    """A consumer: joins, heartbeats, revokes partitions before it takes others.

    owned: what it consumes now. assigned: what it was told to. lets_go: whether it revokes at once.
    """

    def __init__(
        self,
        host: CoordinatorHost,
        member_id: str,
        topics: list[str] | None = None,
        *,
        group: str = "g",
        principal: KafkaPrincipal = ANONYMOUS,
        **options: Any,
    ) -> None:
        self.host = host
        self.group = group
        self.member_id = member_id
        self.topics = topics
        self.principal = principal
        self.options = options  # further fields of its first heartbeat
        self.epoch = 0
        self.owned: set[tuple[bytes, int]] = set()
        self.assigned: set[tuple[bytes, int]] = set()
        self.lets_go = True
        self.version = VERSION
        self.is_unsure = False  # a response was lost: the next heartbeat is complete
        self._reported: set[tuple[bytes, int]] | None = None

    def request(self, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        values = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.options.get("instance_id"),
        }
        return ConsumerGroupHeartbeatRequest(**{**values, **fields})

    def send(self, **fields: Any) -> Any:
        """One heartbeat with only these fields."""
        return self.host.ask(self.request(**fields), self.version, principal=self.principal)

    def join(self, **fields: Any) -> Any:
        """Start over with nothing."""
        self.epoch = 0
        self.owned, self.assigned, self._reported = set(), set(), None
        return self._take(self.send(**{**self._everything(), **fields}))

    def _everything(self) -> dict[str, Any]:
        return {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": self.topics,
            "topic_partitions": partitions(self.owned),
            **self.options,
        }

    def beat(self, **fields: Any) -> Any:
        """A heartbeat according to its state; joins if it is not a member."""
        if self.epoch <= 0:
            return self.join(**fields)
        if self.lets_go:
            self.revoke()
        if self.is_unsure:
            fields = {**self._everything(), **fields}
        elif self._reported != self.owned and "topic_partitions" not in fields:
            fields["topic_partitions"] = partitions(self.owned)
        return self._take(self.send(**fields))

    def beat_or_fenced(self) -> bool:
        """Send a heartbeat; returns whether the member was fenced, and starts over next time."""
        try:
            self.beat()
        except WireError as error:
            if error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE and self.host.is_refusing:
                return False
            assert error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH), error
            self.epoch = 0
            self.owned, self.assigned = set(), set()
            return True
        return False

    def revoke(self) -> None:
        """Revoke partitions outside its target, then take new ones."""
        self.owned &= self.assigned
        self.owned |= self.assigned

    def leave(self, epoch: int = -1) -> Any:
        response = self.send(member_epoch=epoch)
        self.epoch = epoch
        self.owned, self.assigned = set(), set()
        return response

    def _take(self, response: Any) -> Any:
        assert response.error_code == 0, response
        self.member_id = response.member_id
        self.is_unsure = False
        self._reported = set(self.owned)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self._reported = None  # a client acknowledges each assignment, changed or not
            self.assigned = {
                (topic.topic_id, partition)
                for topic in response.assignment.topic_partitions
                for partition in topic.partitions
            }
            if self.lets_go and not self.owned - self.assigned:
                self.owned |= self.assigned
        return response


def settle(*members: FakeConsumer, rounds: int = 6) -> None:
    """Heartbeats in turn, as many as any change of a group needs."""
    for _ in range(rounds):
        for member in members:
            member.beat()


def describe(host: CoordinatorHost, group: str = "g", version: int = VERSION) -> Any:
    """The group in ConsumerGroupDescribe."""
    response = host.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
    return response.groups[0]
