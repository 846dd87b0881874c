"""Consumer groups: list, describe, lag, delete, and offsets to go on from. Any Kafka from 0.11.

Groups of the classic and of the consumer protocol (KIP-848) look the same here. Times are in
milliseconds since 1970.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kbroker.client.admin.partitions import in_requests
from kbroker.client.batches.offsets import (
    EARLIEST,
    LATEST,
    TopicPartition,
    committed,
    list_offsets,
)
from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ClientError, RejectedError, UnsupportedByBroker
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.list_groups import ListGroupsRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest

CLASSIC, CONSUMER = "classic", "consumer"
# BOUND: groups in one request.
GROUPS_AT_ONCE = 200
_FIRST_OF_GROUPS, _LAST_BY_NAME = 8, 9  # versions of OffsetFetch
_DEAD = "Dead"
_MEMBER_KINDS = {0: CLASSIC, 1: CONSUMER}  # WIRE: KIP-1099
_NOT_OF_THAT_KIND = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}
# WIRE: the newest version of an assignment that this client knows.
_ASSIGNMENT_MAX = ConsumerProtocolAssignment.VERSIONS[1]


class ListedGroup(NamedTuple):
    """kind: CLASSIC, CONSUMER, ...; empty before Kafka 3.8. state: such as Stable; empty before
    Kafka 2.6. coordinator: a node id. protocol: of the members, ``consumer`` for consumers.
    """

    group: str
    kind: str
    state: str
    protocol: str
    coordinator: int


class Member(NamedTuple):
    """instance: the id of a static member, else empty. host: its address. Only of the consumer
    protocol: epoch; target: the partitions that it shall have; kind: the protocol that it speaks,
    empty before Kafka 4.1.
    """

    member: str
    instance: str
    client: str
    host: str
    partitions: list[TopicPartition]
    epoch: int | None = None
    target: list[TopicPartition] = []
    kind: str = ""


class GroupState(NamedTuple):
    """coordinator: a node id. assignor: how partitions are assigned, such as ``range``. members: in
    the order of the broker. epoch, assignment_epoch: only of the consumer protocol.
    """

    group: str
    kind: str
    state: str
    coordinator: int
    assignor: str
    members: list[Member]
    epoch: int | None = None
    assignment_epoch: int | None = None


class Progress(NamedTuple):
    """How far a group is in a partition. offset: None if it has committed none. end: the offset
    that the next record gets. lag: records between them, None without an offset.
    """

    topic: str
    partition: int
    offset: int | None
    start: int
    end: int

    @property
    def lag(self) -> int | None:
        return None if self.offset is None else max(self.end - self.offset, 0)


def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """The groups of all brokers, sorted. Raises RejectedError, UnreachableError, Timeout."""
    listed = []
    for node in cluster.nodes():
        listed += groups_of_broker(cluster, node)
    return sorted(listed)


def groups_of_broker(cluster: Cluster, node: int) -> list[ListedGroup]:
    """The groups that it coordinates. Raises RejectedError, UnreachableError, Timeout."""
    response = cluster.call(node, ListGroupsRequest(), what="list groups")
    if response.error_code:
        raise RejectedError(response.error_code, f"list groups of broker {node}")
    return [
        ListedGroup(row.group_id, row.group_type, row.group_state, row.protocol_type, node)
        for row in response.groups
    ]


def member_counts(cluster: Cluster, groups: Iterable[ListedGroup]) -> dict[str, int]:
    """Members of each, many groups in a request; groups of which nobody tells are left out."""
    asked: dict[tuple[int, bool], list[str]] = {}
    for row in groups:
        asked.setdefault((row.coordinator, row.kind.lower() == CONSUMER), []).append(row.group)
    counts: dict[str, int] = {}
    for (node, is_consumer), names in asked.items():
        for some in in_requests(names, GROUPS_AT_ONCE):
            with suppress(ClientError):
                response = cluster.call(node, _description(some, is_consumer=is_consumer))
                counts |= {
                    row.group_id: len(row.members) for row in response.groups if not row.error_code
                }
    return counts


def _description(groups: Sequence[str], *, is_consumer: bool) -> Message:
    if not is_consumer:
        return DescribeGroupsRequest(groups=list(groups))
    from kbroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest

    return ConsumerGroupDescribeRequest(group_ids=list(groups))


def offsets_of_groups(
    cluster: Cluster, groups: Iterable[ListedGroup], until: float = math.inf
) -> dict[str, dict[TopicPartition, int]]:
    """The committed offsets of each, many groups in a request from Kafka 3.0 on; groups of which
    nobody tells are left out. until: a time of time.monotonic from which nobody is asked any more.
    """
    by_node: dict[int, list[str]] = {}
    for row in groups:
        by_node.setdefault(row.coordinator, []).append(row.group)
    found: dict[str, dict[TopicPartition, int]] = {}
    for node, names in by_node.items():
        for some in in_requests(names, GROUPS_AT_ONCE):
            if time.monotonic() > until:
                return found
            with suppress(ClientError):
                found |= _offsets_at_once(cluster, node, some)
            for name in some:
                # Of an older broker, or of a group that has another coordinator now.
                if name not in found and time.monotonic() <= until:
                    with suppress(ClientError):
                        rows = committed(cluster, name, stable=False)
                        found[name] = {key: row.offset for key, row in rows.items()}
    return found


def _offsets_at_once(
    cluster: Cluster, node: int, names: Sequence[str]
) -> dict[str, dict[TopicPartition, int]]:
    retry = cluster.retry("read offsets of groups")
    connection = cluster.connection(node, retry)
    if connection.version_of(ApiKey.OFFSET_FETCH) < _FIRST_OF_GROUPS:
        return {}
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name) for name in names]
    )
    response = connection.call(request, retry.step(cluster.request_timeout), at_most=_LAST_BY_NAME)
    return {
        group.group_id: {
            (topic.name, row.partition_index): row.committed_offset
            for topic in group.topics
            for row in topic.partitions
            if row.committed_offset >= 0
        }
        for group in response.groups
        if not group.error_code
    }


def describe_group(cluster: Cluster, group: str) -> GroupState:
    """State and members of a group. Raises RejectedError, GROUP_ID_NOT_FOUND if there is none."""
    try:
        return _consumer_group(cluster, group)
    except UnsupportedByBroker:
        pass  # before Kafka 4.0 there are only classic ones
    except RejectedError as error:
        if error.code not in _NOT_OF_THAT_KIND:
            raise
    return _classic_group(cluster, group)


def _consumer_group(cluster: Cluster, group: str) -> GroupState:
    response, node = _described(cluster, group, _description([group], is_consumer=True))
    return _consumer_state(response.groups[0], node)


def _classic_group(cluster: Cluster, group: str) -> GroupState:
    response, node = _described(cluster, group, _description([group], is_consumer=False))
    row = response.groups[0]
    if row.group_state == _DEAD:
        raise RejectedError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}")
    return _classic_state(row, node)


def _described(cluster: Cluster, group: str, request: Message) -> tuple[Any, int]:
    """The response, and the node of the coordinator."""
    what = f"describe group {group}"
    nodes: list[int] = []

    def made(connection: Connection, node: int) -> Message:
        nodes.append(node)
        return request

    def error_of(response: Any) -> int:
        if not response.groups:
            return -1
        code, message = int(response.groups[0].error_code), response.groups[0].error_message
        if code and message:
            raise RejectedError(code, what, message)
        return code

    response = cluster.call_coordinator(group, GROUP, made, error_of, what=what)
    return response, nodes[-1]


def _consumer_state(row: Any, node: int) -> GroupState:
    members = [
        Member(
            member.member_id,
            member.instance_id or "",
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            member.member_epoch,
            _partitions(member.target_assignment),
            _MEMBER_KINDS.get(member.member_type, ""),
        )
        for member in row.members
    ]
    return GroupState(
        row.group_id,
        CONSUMER,
        row.group_state,
        node,
        row.assignor_name,
        members,
        row.group_epoch,
        row.assignment_epoch,
    )


def _partitions(assignment: Any) -> list[TopicPartition]:
    return sorted(
        (topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


def _classic_state(row: Any, node: int) -> GroupState:
    members = [
        Member(
            member.member_id,
            member.group_instance_id or "",
            member.client_id,
            member.client_host,
            _assigned(bytes(member.member_assignment)),
        )
        for member in row.members
    ]
    return GroupState(row.group_id, CLASSIC, row.group_state, node, row.protocol_data, members)


def _assigned(data: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment; none in what is not the assignment of a consumer:
    members may use the bytes for anything.
    """
    if len(data) < 2:
        return []
    version = min(int.from_bytes(data[:2], "big"), _ASSIGNMENT_MAX)
    try:
        assignment, _ = codec.decode(ConsumerProtocolAssignment, version, data, 2)
    except ValueError:
        return []
    return sorted(
        (row.topic, number) for row in assignment.assigned_partitions for number in row.partitions
    )


def progress(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] = ()
) -> list[Progress]:
    """How far a group is, in the partitions that it has committed offsets of and in ``partitions``.

    Partitions that do not exist anymore are left out. Raises RejectedError, ...
    """
    offsets = committed(cluster, group, stable=False)
    wanted = _existing(cluster, {*offsets, *partitions})
    starts = list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    ends = list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    return [
        Progress(
            *key,
            offsets[key].offset if key in offsets else None,
            starts[key].offset,
            ends[key].offset,
        )
        for key in sorted(wanted)
    ]


def _existing(cluster: Cluster, keys: Iterable[TopicPartition]) -> list[TopicPartition]:
    wanted = list(keys)
    topics = cluster.topics({topic for topic, _ in wanted})
    return [
        (topic, number)
        for topic, number in wanted
        if topic in topics and number in topics[topic].partitions
    ]


def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """The first offset at or after a time, or EARLIEST or LATEST; the end of the log if there is
    no record after it.
    """
    wanted = list(partitions)
    offsets = list_offsets(cluster, dict.fromkeys(wanted, time_ms))
    late = [key for key in wanted if offsets[key].offset < 0]
    ends = list_offsets(cluster, dict.fromkeys(late, LATEST)) if late else {}
    return {key: (ends if key in ends else offsets)[key].offset for key in wanted}


def delete_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, ClientError | None]:
    """Delete groups without members, with their offsets; the error of each."""
    from kbroker.protocol.messages.delete_groups import DeleteGroupsRequest

    results: dict[str, ClientError | None] = {}
    for group in dict.fromkeys(groups):
        try:
            cluster.call_coordinator(
                group,
                GROUP,
                DeleteGroupsRequest(groups_names=[group]),
                lambda response: int(response.results[0].error_code),
                what=f"delete group {group}",
            )
            results[group] = None
        except RejectedError as error:
            results[group] = error
    return results


def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Let a group have no offsets of these partitions. From Kafka 2.4. Raises RejectedError,
    GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic.
    """
    for error in delete_offsets_each(cluster, group, partitions).values():
        if error is not None:
            raise error


def delete_offsets_each(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ClientError | None]:
    """The same, with the error of each partition. Raises RejectedError of the whole group."""
    from kbroker.protocol.messages.offset_delete import OffsetDeleteRequest

    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number)
                    for number in numbers
                ],
            )
            for name, numbers in by_topic.items()
        ],
    )
    what = f"delete offsets of group {group}"
    response = cluster.call_coordinator(
        group, GROUP, request, lambda response: int(response.error_code), what=what
    )
    return {
        (topic.name, row.partition_index): RejectedError(
            row.error_code, f"{what}: {topic.name}-{row.partition_index}"
        )
        if row.error_code
        else None
        for topic in response.topics
        for row in topic.partitions
    }


def by_member(state: GroupState) -> Mapping[TopicPartition, Member]:
    """The member that each partition is assigned to."""
    return {key: member for member in state.members for key in member.partitions}


def remove_members(cluster: Cluster, group: str, members: Iterable[str]) -> None:
    """Let members, by their ids, be no longer in a group of the classic protocol. From Kafka 2.4.
    Raises RejectedError.
    """
    from kbroker.protocol.messages.leave_group import LeaveGroupRequest

    rows = [
        LeaveGroupRequest.MemberIdentity(member_id=member, reason="removed by an administrator")
        for member in members
    ]

    def error_of(response: Any) -> int:
        codes = [response.error_code, *(row.error_code for row in response.members)]
        return int(next((code for code in codes if code), 0))

    request = LeaveGroupRequest(group_id=group, members=rows)
    what = f"remove members of group {group}"
    cluster.call_coordinator(group, GROUP, request, error_of, what=what)
