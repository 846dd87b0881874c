"""A member of a group in the classic protocol, and the timers of members' sessions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from kbroker.ipc.rpc import Pending
from kbroker.protocol.primitives import MAX_INT16

if TYPE_CHECKING:
    from kbroker.coordinator.group.classic.classic_group import ClassicGroup
    from kbroker.coordinator.machine import Call, Host

# The longest time that a member without an id may wait in its first join: it cannot send
# heartbeats, so nobody knows whether its client is still there.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


class ClassicGroupMember:
    """protocols: name -> metadata, in the member's order of preference.

    join, sync: the response it waits for. is_new: its first join has not got a response yet.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: dict[str, bytes],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.join: Pending[Any] | None = None
        self.sync: Pending[Any] | None = None

    def __repr__(self) -> str:
        return f"ClassicGroupMember({self.member_id!r})"

    def matches(self, protocols: dict[str, bytes]) -> bool:
        """Whether these are its protocols, with the same metadata and in the same order."""
        return list(self.protocols.items()) == list(protocols.items())

    def vote(self, candidates: Container[str]) -> str:
        """The candidate that it prefers; there must be one."""
        return next(name for name in self.protocols if name in candidates)


def protocols_of(request: Any) -> dict[str, bytes]:
    """The protocols of a JoinGroup; the first of several with the same name counts."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return protocols


def rebalance_timeout_of(request: Any) -> int:
    """JoinGroup 0 has no rebalance timeout of its own."""
    timeout: int = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout == -1 else max(timeout, 0)


def joining_member(call: Call, member_id: str) -> ClassicGroupMember:
    """A new member from its JoinGroup."""
    request = call.request
    member = ClassicGroupMember(
        member_id,
        request.group_instance_id,
        call.client_id,
        call.client_host,
        rebalance_timeout_of(request),
        request.session_timeout_ms,
        protocols_of(request),
    )
    member.is_new = True
    return member


def new_member_id(client_id: str, instance_id: str | None) -> str:
    """A member id that was never used: the name the client gave, and a UUID."""
    suffix = f"-{uuid.uuid4()}"
    prefix = client_id if instance_id is None else instance_id
    # BOUND: a string of a record; a longer name is truncated.
    room = MAX_INT16 - len(suffix)
    if len(prefix) * 3 > room:
        prefix = prefix.encode()[:room].decode(errors="ignore")
    return prefix + suffix


class MemberSessions:
    """Session timers of the members of all groups of one partition.

    expire: run as the operation ``expire(op, group, member_id)`` when a session ends. The group may
    be gone by then.
    """

    def __init__(self, host: Host, expire: Callable[..., None]) -> None:
        self._host = host
        self._expire = expire

    def start(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """Start or restart the session: the member has sent a request."""
        name = ("classic session", group.group_id, member_id)
        self._host.set_timer(name, timeout_ms, self._expire, group, member_id)

    def cancel(self, group: ClassicGroup, member_id: str) -> None:
        self._host.cancel_timer(("classic session", group.group_id, member_id))
