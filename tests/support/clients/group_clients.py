"""Requests of the classic group protocol in short form."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.group.classic.classic_protocol import ClassicProtocol
from kbroker.coordinator.group.group import CONSUMER, Group
from kbroker.coordinator.group.machine import GroupMachine
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending
from kbroker.protocol import codec
from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest
from kbroker.protocol.messages.leave_group import LeaveGroupRequest
from kbroker.protocol.messages.sync_group import SyncGroupRequest

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 9, 5, 4, 5
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000


class OffsetsStandIn:
    """The groups with committed offsets, instead of the part for offsets."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.deleted: list[str] = []

    def has_group(self, group_id: str) -> bool:
        return group_id in self.groups

    def group_ids(self) -> Iterable[str]:
        return list(self.groups)

    def delete_group(self, op: Any, group_id: str) -> None:
        self.deleted.append(group_id)


def classic_host(**settings: str) -> CoordinatorHost:
    """A shard with the classic protocol alone; ``machine.offsets`` is a stand-in."""

    def make(host: Any) -> GroupMachine:
        machine: Any = GroupMachine(host)
        machine.add(ClassicProtocol(machine))
        machine.offsets = OffsetsStandIn()
        return machine  # type: ignore[no-any-return]

    return CoordinatorHost(make, **settings)


def subscription(
    *topics: str, version: int = 1, owned: dict[str, list[int]] | None = None
) -> bytes:
    """The metadata of a consumer."""
    message = ConsumerProtocolSubscription(topics=list(topics), owned_partitions=[])
    if owned:
        message.owned_partitions = [
            ConsumerProtocolSubscription.TopicPartition(topic=t, partitions=p)
            for t, p in owned.items()
        ]
    return struct.pack(">h", version) + codec.encode(message, version)


class Client:
    """A consumer's state, from the last response."""

    def __init__(
        self,
        host: CoordinatorHost,
        client_id: str = "app",
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = JOIN_VERSION,
    ) -> None:
        self.host = host
        self.client_id = client_id
        self.group_id = group_id
        self.instance_id = instance_id
        self.protocols = {"range": subscription("t")} if protocols is None else protocols
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.protocol: str | None = None

    # -- requests --

    def send_join(self, **changes: Any) -> Pending:
        """JoinGroup; a required member id is accepted, and the member joins with it."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms if self.version > 0 else -1,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols.items()
            ],
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return self.host.send(request, self.version, client_id=self.client_id)

    def join(self, **changes: Any) -> Pending:
        """Join with the member id from the coordinator."""
        pending = self.send_join(**changes)
        if pending.done and pending.value is not None and pending.value.error_code == 79:
            self.member_id = pending.value.member_id
            pending = self.send_join(**changes)
        return pending

    def joined(self, pending: Pending) -> Any:
        """The response to a join, which must be there; updates the state."""
        response = value_of(pending)
        assert response.error_code == 0, response
        self.member_id, self.generation = response.member_id, response.generation_id
        self.protocol = response.protocol_name
        return response

    def send_sync(
        self,
        assignments: dict[str, bytes] | None = None,
        version: int = SYNC_VERSION,
        **changes: Any,
    ) -> Pending:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 3 else None,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a)
                for m, a in (assignments or {}).items()
            ],
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return self.host.send(request, version)

    def beat(self, **changes: Any) -> int:
        """The error code of a heartbeat."""
        return code_of(self.send_beat(**changes))

    def send_beat(self, **changes: Any) -> Pending:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return self.host.send(request, HEARTBEAT_VERSION)

    def leave(self, reason: str | None = None) -> int:
        """The member's error code in the LeaveGroup response."""
        response = value_of(self.send_leave(reason))
        assert response.error_code == 0
        return int(response.members[0].error_code)

    def send_leave(self, reason: str | None = None) -> Pending:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance_id, reason=reason
        )
        request = LeaveGroupRequest(group_id=self.group_id, members=[identity])
        return self.host.send(request, LEAVE_VERSION)


def code_of(pending: Pending) -> int:
    """The error code for a client, in whichever field."""
    assert pending.done, "it waits"
    if pending.error is not None:
        return int(pending.error.code)  # type: ignore[attr-defined]
    return int(pending.value.error_code)


def form_group(host: CoordinatorHost, *clients: Client) -> list[Client]:
    """Make a new group stable; the leader comes first."""
    joins = [client.join() for client in clients]
    host.advance(2 * DELAY_MS)
    for client, pending in zip(clients, joins, strict=True):
        client.joined(pending)
    return sync_all(list(clients), joins)


def rejoin(*clients: Client) -> list[Client]:
    """Let all members join the rebalance in progress and get their assignments."""
    joins = [client.join() for client in clients]
    for client, pending in zip(clients, joins, strict=True):
        client.joined(pending)
    return sync_all(list(clients), joins)


def sync_all(clients: list[Client], joins: list[Pending]) -> list[Client]:
    """Each member is assigned its own id."""
    leader_id = joins[0].value.leader
    clients = sorted(clients, key=lambda c: c.member_id != leader_id)
    assert clients[0].member_id == leader_id
    assignments = {c.member_id: c.member_id.encode() for c in clients}
    syncs = [c.send_sync() for c in clients[1:]]
    syncs.insert(0, clients[0].send_sync(assignments))
    for client, pending in zip(clients, syncs, strict=True):
        response = value_of(pending)
        assert response.error_code == 0, response
        assert response.assignment == client.member_id.encode()
    return clients


class OtherGroup(Group):
    """A group of the consumer protocol, as seen by admin requests."""

    __slots__ = ("is_busy",)
    kind = CONSUMER
    state = "Reconciling"
    protocol_type = "consumer"
    is_empty = False
    empty_since_ms = None

    def subscribes_to(self, topic: str) -> bool:
        return False

    def check_commit(self, *args: Any, **kwargs: Any) -> None: ...

    def check_fetch(self, *args: Any) -> None: ...

    def check_deletion(self) -> None:
        raise WireError(ErrorCode.NON_EMPTY_GROUP)

    def delete(self, op: Any) -> None: ...
