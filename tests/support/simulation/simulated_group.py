"""The coordinator of one group in simulated time, in both protocols, and what it knows of commits.

It is a model, as small as the checks allow: members, generations or epochs, who has which
partition, and committed offsets. ``committed``, ``accepted`` tell what came of each commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from support.simulation.simulated_brokers import TOPICS, Event, Key, Reply, World

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from kbroker.protocol.messages.describe_groups import DescribeGroupsResponse
from kbroker.protocol.messages.heartbeat import HeartbeatResponse
from kbroker.protocol.messages.join_group import JoinGroupResponse
from kbroker.protocol.messages.leave_group import LeaveGroupResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchResponse
from kbroker.protocol.messages.sync_group import SyncGroupResponse

NAMES = {topic_id: name for name, topic_id in TOPICS.items()}
SESSION_S = 6.0
STATIC_LEAVE_EPOCH = -2  # of a member whose instance comes back


class Accepted(NamedTuple):
    """A commit that was accepted. tag: its text. since: the epoch in which the member got the
    partition.
    """

    key: Key
    offset: int
    epoch: int
    member: str
    generation: int
    tag: str
    since: int


class Group:
    """What both protocols share: offsets."""

    def __init__(self, world: World, on_accepted: Callable[[Accepted], None]) -> None:
        self.world = world
        self.keys: list[Key] = []  # all partitions of its topics
        self.on_accepted = on_accepted
        self.committed: dict[Key, tuple[int, int]] = {}
        self.instances: dict[str, str] = {}  # static members
        self.commits_wait_until = 0.0  # they are to be made again later
        self.numbers = itertools.count(1)

    def topics_grew(self) -> None:
        """It has other ``keys``; here members notice that themselves."""

    def handle(self, name: str, request: Any, reply: Reply, error: int) -> None:
        """error: of every answer, unless it is 0."""
        getattr(self, f"_on_{_snake(name)}")(request, reply, error)

    def _on_offset_fetch(self, request: Any, reply: Reply, error: int) -> None:
        topics = []
        for topic in request.topics:
            parts = []
            for index in topic.partition_indexes:
                offset, epoch = self.committed.get((topic.name, index), (-1, -1))
                parts.append(
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=offset, committed_leader_epoch=epoch
                    )
                )
            topics.append(
                OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=parts)
            )
        reply(OffsetFetchResponse(error_code=error, topics=[] if error else topics))

    def _on_offset_commit(self, request: Any, reply: Reply, error: int) -> None:
        member, generation = request.member_id, request.generation_id_or_member_epoch
        if self.world.now < self.commits_wait_until:
            error = error or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        error = error or self.fencing(member, request.group_instance_id)
        error = error or self.refusal(member, generation)
        topics = []
        for topic in request.topics:
            parts = []
            for row in topic.partitions:
                key = topic.name, row.partition_index
                if not error:
                    self.on_accepted(
                        Accepted(
                            key,
                            row.committed_offset,
                            row.committed_leader_epoch,
                            member,
                            generation,
                            row.committed_metadata,
                            self.since(member, key),
                        )
                    )
                    self.committed[key] = row.committed_offset, row.committed_leader_epoch
                parts.append(
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=key[1], error_code=error
                    )
                )
            topics.append(
                OffsetCommitResponse.OffsetCommitResponseTopic(name=key[0], partitions=parts)
            )
        reply(OffsetCommitResponse(topics=topics))

    def refusal(self, member: str, generation: int) -> int:
        raise NotImplementedError

    def fencing(self, member: str, instance: str | None) -> int:
        """Of a static member whose place another one has taken."""
        known = self.instances.get(instance or "", member)
        return 0 if known == member else ErrorCode.FENCED_INSTANCE_ID

    def since(self, member: str, key: Key) -> int:
        """The epoch in which a member got a partition."""
        return -1

    def rebalance(self) -> float:
        """Without a change of members; returns how many seconds that takes, besides what the
        members need.
        """
        raise NotImplementedError


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class _Member:
    def __init__(self, number: str, instance: str | None = None) -> None:
        self.id = number
        self.instance = instance
        self.metadata: bytes = b""
        self.protocols: list[tuple[str, bytes]] = []
        self.joining: Reply | None = None
        self.syncing: Reply | None = None
        self.expiry: Event | None = None
        # of the consumer protocol
        self.epoch = 0
        self.previous = -1
        self.owned: set[Key] = set()
        self.assigned: dict[Key, int] = {}  # with the epochs of that
        self.sent: frozenset[Key] | None = None


class ClassicGroup(Group):
    """Whose members assign the partitions."""

    def __init__(self, world: World, on_accepted: Callable[[Accepted], None]) -> None:
        super().__init__(world, on_accepted)
        self.members: dict[str, _Member] = {}
        self.state = "empty"
        self.generation = 0
        self.leader = ""
        self.assignment: dict[str, bytes] = {}
        self._end: Event | None = None

    def refusal(self, member: str, generation: int) -> int:
        if member not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state == "completing" else 0

    def _touch(self, member: _Member) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
        member.expiry = self.world.after(SESSION_S, lambda: self._expire(member))

    def _expire(self, member: _Member) -> None:
        if member.joining is not None:
            self._touch(member)
        elif self.members.get(member.id) is member:
            self._remove(member)

    def expel(self, member: _Member) -> None:
        """It is a member no more: a join or sync that waits is told so, the rest hears of it by its
        next request.
        """
        self._remove(member)
        self._end_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)

    @staticmethod
    def _end_waiting(member: _Member, error: int) -> None:
        joining, member.joining = member.joining, None
        syncing, member.syncing = member.syncing, None
        if joining is not None:
            joining(JoinGroupResponse(error_code=error))
        if syncing is not None:
            syncing(SyncGroupResponse(error_code=error))

    def _forget(self, member: _Member) -> None:
        del self.members[member.id]
        if member.instance is not None and self.instances.get(member.instance) == member.id:
            del self.instances[member.instance]

    def _remove(self, member: _Member) -> None:
        self._forget(member)
        if member.expiry is not None:
            member.expiry.cancel()
        if self.state in ("stable", "completing"):
            self._prepare()
        self._maybe_complete()

    def _prepare(self) -> None:
        """Everybody is to join again."""
        for member in self.members.values():
            syncing, member.syncing = member.syncing, None
            if syncing is not None:
                syncing(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self.state = "preparing"
        if self._end is not None:
            self._end.cancel()
        self._end = self.world.after(self.rebalance_s, lambda: self._complete())

    rebalance_s = 15.0

    def rebalance(self) -> float:
        """See ``Group``."""
        if self.state == "stable":
            self._prepare()
        return 0.0

    def _on_join_group(self, request: Any, reply: Reply, error: int) -> None:
        if error:
            reply(JoinGroupResponse(error_code=error))
            return
        self.rebalance_s = request.rebalance_timeout_ms / 1000
        if not request.member_id:
            made = _Member(f"m{next(self.numbers)}", request.group_instance_id)
            if made.instance is not None:
                self._join_static(made, request, reply)
                return
            self.members[made.id] = made
            self._touch(made)
            if self.state == "empty":
                self._prepare()
            reply(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=made.id))
            return
        member = self.members.get(request.member_id)
        error = self.fencing(request.member_id, request.group_instance_id)
        if error or member is None:
            reply(JoinGroupResponse(error_code=error or ErrorCode.UNKNOWN_MEMBER_ID))
            return
        self._join(member, request, reply)

    def _join_static(self, made: _Member, request: Any, reply: Reply) -> None:
        """It takes the place of the one before it, without a rebalance if the group is stable."""
        assert made.instance is not None
        before = self.members.get(self.instances.get(made.instance, ""))
        self.instances[made.instance] = made.id
        if before is None:
            self.members[made.id] = made
            if self.state in ("empty", "stable", "completing"):
                self._prepare()
        else:
            made.protocols = before.protocols
            self.members = {
                made.id if name == before.id else name: made if name == before.id else one
                for name, one in self.members.items()
            }
            if before.expiry is not None:
                before.expiry.cancel()
            self._end_waiting(before, ErrorCode.FENCED_INSTANCE_ID)
            if before.id in self.assignment:
                self.assignment[made.id] = self.assignment.pop(before.id)
            if self.leader == before.id:
                self.leader = made.id
            if self.state == "completing":
                self._prepare()
        self._join(made, request, reply, is_replaced=before is not None)

    def _join(self, member: _Member, request: Any, reply: Reply, is_replaced: bool = False) -> None:
        protocols = [(row.name, bytes(row.metadata)) for row in request.protocols]
        is_same, member.protocols = protocols == member.protocols, protocols
        self._touch(member)
        if is_replaced and self.state == "stable":
            reply(self._joined(member, skip_assignment=member.id == self.leader))
            return
        if self.state == "stable" and (member.id == self.leader or not is_same):
            self._prepare()
        elif self.state == "completing" and not is_same:
            self._prepare()
        if self.state in ("stable", "completing"):
            reply(self._joined(member))
            return
        member.joining = reply
        self._maybe_complete()

    def _maybe_complete(self) -> None:
        if not self.members:
            self.state = "empty"
        elif self.state == "preparing" and all(one.joining for one in self.members.values()):
            # A little later, as others may join.
            self.world.after(0.05, self._complete_if_all)

    def _complete_if_all(self) -> None:
        if self.state == "preparing" and all(one.joining for one in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        if self.state != "preparing":
            return
        if self._end is not None:
            self._end.cancel()
        for member in list(self.members.values()):
            if member.joining is None:
                self._forget(member)
        if not self.members:
            self.state = "empty"
            return
        self.generation += 1
        self.state = "completing"
        self.assignment = {}
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            joining, member.joining = member.joining, None
            self._touch(member)
            assert joining is not None
            joining(self._joined(member))

    def _joined(self, member: _Member, skip_assignment: bool = False) -> Any:
        name = member.protocols[0][0]
        rows = [
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=one.id,
                group_instance_id=one.instance,
                metadata=dict(one.protocols)[name],
            )
            for one in self.members.values()
            if one.protocols
        ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=name,
            leader=self.leader,
            skip_assignment=skip_assignment,
            member_id=member.id,
            members=rows if member.id == self.leader else [],
        )

    def _on_sync_group(self, request: Any, reply: Reply, error: int) -> None:
        member = self.members.get(request.member_id)
        error = error or self.fencing(request.member_id, request.group_instance_id)
        if not error and member is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif not error and request.generation_id != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        elif not error and self.state == "preparing":
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error or member is None:
            reply(SyncGroupResponse(error_code=error))
            return
        self._touch(member)
        member.syncing = reply
        if member.id == self.leader and self.state == "completing":
            self.assignment = {row.member_id: bytes(row.assignment) for row in request.assignments}
            self.state = "stable"
        if self.state == "stable":
            for one in self.members.values():
                syncing, one.syncing = one.syncing, None
                if syncing is not None:
                    data = self.assignment.get(one.id, b"")
                    syncing(SyncGroupResponse(assignment=data, protocol_type="consumer"))

    def _on_heartbeat(self, request: Any, reply: Reply, error: int) -> None:
        member = self.members.get(request.member_id)
        error = error or self.fencing(request.member_id, request.group_instance_id)
        if not error and member is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif not error and request.generation_id != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        elif not error and self.state == "preparing":
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if member is not None:
            self._touch(member)
        reply(HeartbeatResponse(error_code=error))

    def _on_describe_groups(self, request: Any, reply: Reply, error: int) -> None:
        rows = [
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=one.id,
                member_assignment=self.assignment.get(one.id, b""),
            )
            for one in self.members.values()
        ]
        group = DescribeGroupsResponse.DescribedGroup(
            error_code=error, group_state=self.state.capitalize(), members=[] if error else rows
        )
        reply(DescribeGroupsResponse(groups=[group]))

    def _on_leave_group(self, request: Any, reply: Reply, error: int) -> None:
        for row in request.members:
            member = self.members.get(row.member_id)
            if member is not None and not error:
                self._remove(member)
        reply(LeaveGroupResponse(error_code=error))


class ConsumerGroup(Group):
    """Whose partitions the coordinator assigns (KIP-848)."""

    def __init__(self, world: World, on_accepted: Callable[[Accepted], None]) -> None:
        super().__init__(world, on_accepted)
        self.members: dict[str, _Member] = {}
        self.epoch = 0
        self.target: dict[str, set[Key]] = {}
        self._withheld: set[Key] = set()

    def refusal(self, member: str, generation: int) -> int:
        known = self.members.get(member)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.STALE_MEMBER_EPOCH if generation != known.epoch else 0

    def since(self, member: str, key: Key) -> int:
        known = self.members.get(member)
        return known.assigned.get(key, self.epoch + 1) if known is not None else -1

    def topics_grew(self) -> None:
        """See ``Group``: the coordinator notices."""
        self._retarget()

    def _retarget(self) -> None:
        """Each member gets the same, and keeps what it has so far as that goes."""
        self.epoch += 1
        self.target = {name: set() for name in self.members}
        if not self.members:
            return
        most = -(-len(self.keys) // len(self.members))
        left = []
        for key in (key for key in self.keys if key not in self._withheld):
            owner = next((name for name, one in self.members.items() if key in one.assigned), None)
            if owner is not None and len(self.target[owner]) < most:
                self.target[owner].add(key)
            else:
                left.append(key)
        for key in left:
            min(self.target.values(), key=len).add(key)

    def rebalance(self) -> float:
        """See ``Group``: some partitions are nobody's for a while."""
        seconds = self.world.random.choice((0.5, 2.0, 4.0))
        self._withheld = set(self.world.random.sample(self.keys, 2))
        self._retarget()

        def give_back() -> None:
            self._withheld.clear()
            self._retarget()

        self.world.after(seconds, give_back)
        return seconds

    def _touch(self, member: _Member) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
        member.expiry = self.world.after(SESSION_S, lambda: self._remove(member))

    def expel(self, member: _Member) -> None:
        """See ``ClassicGroup``."""
        self._remove(member)

    def _remove(self, member: _Member) -> None:
        if self.members.get(member.id) is member:
            del self.members[member.id]
            self.instances.pop(member.instance or "", None)
            if member.expiry is not None:
                member.expiry.cancel()
            self._retarget()

    def _on_consumer_group_heartbeat(self, request: Any, reply: Reply, error: int) -> None:
        error = error or self._beat_error(request)
        if error:
            reply(ConsumerGroupHeartbeatResponse(error_code=error))
            return
        if request.member_epoch < 0:
            member = self.members.get(request.member_id)
            if member is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
                member.epoch = STATIC_LEAVE_EPOCH
            elif member is not None:
                self._remove(member)
            reply(ConsumerGroupHeartbeatResponse(member_epoch=request.member_epoch))
            return
        if request.member_epoch == 0:
            self._join(request.member_id, request.instance_id)
        member = self.members[request.member_id]
        self._touch(member)
        if request.topic_partitions is not None:
            member.owned = {
                (NAMES[row.topic_id], partition)
                for row in request.topic_partitions
                for partition in row.partitions
            }
        self._reconcile(member, request.topic_partitions is not None)
        reply(self._beaten(member, request.subscribed_topic_names is not None))

    def _beat_error(self, request: Any) -> int:
        member = self.members.get(request.member_id)
        there = self.members.get(self.instances.get(request.instance_id or "", ""))
        if request.member_epoch == 0 and there is not None and there.id != request.member_id:
            has_left = there.epoch == STATIC_LEAVE_EPOCH
            return 0 if has_left else ErrorCode.UNRELEASED_INSTANCE_ID
        if self.fencing(request.member_id, request.instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        if request.member_epoch <= 0:
            return 0
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.member_epoch in (member.epoch, member.previous):
            return 0
        return ErrorCode.FENCED_MEMBER_EPOCH

    def _join(self, name: str, instance: str | None) -> None:
        before = self.members.get(self.instances.get(instance or "", name))
        if before is not None and before.id == name:
            before.owned = set()
            before.sent = None
            return
        made = self.members[name] = _Member(name, instance)
        if instance is not None:
            self.instances[instance] = name
        if before is None:
            self._retarget()
            return
        if before.expiry is not None:
            before.expiry.cancel()
        del self.members[before.id]
        self.target[name] = self.target.pop(before.id)
        made.assigned = before.assigned

    def _reconcile(self, member: _Member, is_told: bool) -> None:
        target = self.target[member.id]
        unwanted = member.assigned.keys() - target
        if unwanted:
            if not is_told or member.owned & unwanted:
                return
            for key in unwanted:
                del member.assigned[key]
        if member.epoch != self.epoch:
            member.previous, member.epoch = member.epoch, self.epoch
        held = {key for one in self.members.values() for key in one.assigned}
        for key in target - held:
            member.assigned[key] = self.epoch

    def _beaten(self, member: _Member, whole: bool) -> Any:
        now = frozenset(member.assigned.keys() & self.target[member.id])
        assignment = None
        if whole or now != member.sent:
            member.sent = now
            rows = [
                ConsumerGroupHeartbeatResponse.TopicPartitions(
                    topic_id=topic_id,
                    partitions=sorted(partition for topic, partition in now if topic == name),
                )
                for name, topic_id in TOPICS.items()
                if any(topic == name for topic, _ in now)
            ]
            assignment = ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=rows)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=1000,
            assignment=assignment,
        )
