"""A group as seen by other parts: commits, expiry, loading, moving to and from KIP-848."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.group_clients import (
    DELAY_MS,
    SESSION_MS,
    Client,
    OtherGroup,
    classic_host,
    code_of,
    form_group,
    rejoin,
    subscription,
)
from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_member import ClassicGroupMember
from kbroker.coordinator.group.group import CONSUMER
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey, GroupMetadataValue
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending
from kbroker.protocol.messages.heartbeat import HeartbeatResponse

pytestmark = pytest.mark.unit


def group(host: CoordinatorHost) -> ClassicGroup:
    found = host.machine.groups["g"]
    assert isinstance(found, ClassicGroup)
    return found


def commit(
    host: CoordinatorHost,
    member_id: str = "",
    epoch: int = -1,
    instance_id: str | None = None,
    **options: bool,
) -> int:
    """The error code for a commit of this member, or 0."""
    try:
        group(host).check_commit(member_id, instance_id, epoch, version=8, **options)
    except WireError as error:
        return int(error.code)
    return 0


# -- commits -------------------------------------------------------------------------------------


def test_commit_of_a_member_needs_id_and_generation() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host, instance_id="i"))
    member_id = client.member_id

    assert commit(host, member_id, 1, "i") == commit(host, member_id, 1) == 0
    assert commit(host, member_id, 0) == ErrorCode.ILLEGAL_GENERATION
    assert commit(host, member_id, 2) == ErrorCode.ILLEGAL_GENERATION
    assert commit(host, "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(host, "nobody", 1, "i") == ErrorCode.FENCED_INSTANCE_ID
    assert commit(host, member_id, 1, "j") == ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_without_a_member_needs_an_empty_group() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))

    assert commit(host) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(host, client.member_id, -1) == ErrorCode.ILLEGAL_GENERATION
    client.leave()
    assert commit(host) == 0


def test_commit_is_rejected_until_the_member_has_its_assignment() -> None:
    host = classic_host()
    client = Client(host)
    pending = client.join()
    host.advance(DELAY_MS)
    client.joined(pending)

    assert commit(host, client.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(host, client.member_id, 1, transactional=True) == 0


def test_commit_is_taken_while_members_are_called_to_join() -> None:
    """It is the last chance to commit its progress."""
    host = classic_host()
    (client,) = form_group(host, Client(host))
    Client(host, "second").join()

    assert group(host).state == "PreparingRebalance"
    assert commit(host, client.member_id, 1) == 0


def test_transactional_commit_without_a_member_is_taken() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))

    assert commit(host, transactional=True) == 0
    assert commit(host, client.member_id, 0, transactional=True) == ErrorCode.ILLEGAL_GENERATION
    assert commit(host, "nobody", 1, transactional=True) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("transactional", "members"), [(False, 1), (True, 0)])
def test_commit_counts_as_a_heartbeat(transactional: bool, members: int) -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))

    host.advance(SESSION_MS - 1)
    commit(host, client.member_id, 1, transactional=transactional)
    host.advance(SESSION_MS - 1)

    assert len(group(host).members) == members


# -- what members subscribe to -------------------------------------------------------------------


def test_group_wants_what_any_member_subscribes_to() -> None:
    host = classic_host()
    form_group(
        host,
        Client(host, "a", protocols={"range": subscription("t", version=0)}),
        Client(host, "b", protocols={"range": subscription("u", version=3)}),
    )

    assert [group(host).subscribes_to(t) for t in "tuv"] == [True, True, False]


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\xff\xff" + b"\0" * 20, b"\0\1\0\0\0\x09\0"])
def test_malformed_subscription_keeps_every_topic_and_harms_nobody(metadata: bytes) -> None:
    host = classic_host()
    a, b = form_group(host, Client(host, "a", protocols={"range": metadata}), Client(host, "b"))

    assert group(host).subscribes_to("anything")
    assert a.beat() == b.beat() == 0


def test_newer_subscription_than_known_is_read() -> None:
    host = classic_host()
    newer = b"\x00\x63" + subscription("t", version=3)[2:] + b"more"
    form_group(host, Client(host, protocols={"range": newer}))

    assert group(host).subscribes_to("t") and not group(host).subscribes_to("u")


def test_group_of_another_type_keeps_every_topic_until_it_is_empty() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host, protocol_type="connect"))
    assert group(host).subscribes_to("t")

    client.leave()

    assert not group(host).subscribes_to("t")


# -- loading -------------------------------------------------------------------------------------


def test_stable_group_continues_after_a_load() -> None:
    host = classic_host()
    a, b = form_group(host, Client(host, "a"), Client(host, "b", instance_id="i"))
    since = group(host).state_timestamp_ms
    host.advance(SESSION_MS - 1)

    host.reload()

    assert group(host).state == "Stable" and group(host).state_timestamp_ms == since
    host.advance(SESSION_MS - 1)
    assert a.beat() == b.beat() == 0
    assert value_of(a.send_sync()).assignment == a.member_id.encode()
    assert commit(host, b.member_id, 1, "i") == 0
    host.advance(SESSION_MS)
    assert group(host).state == "Empty"


def test_load_during_a_rebalance_goes_back_to_the_last_assignment() -> None:
    host = classic_host()
    a, b = form_group(host, Client(host, "a"), Client(host, "b"))
    newcomer = Client(host, "c")
    waiting = [newcomer.join(), a.join()]

    host.reload()

    assert {code_of(p) for p in waiting} == {ErrorCode.NOT_COORDINATOR}
    assert a.beat() == b.beat() == 0
    assert code_of(newcomer.join()) == ErrorCode.UNKNOWN_MEMBER_ID


def test_record_without_rebalance_timeout_or_protocol_is_loaded() -> None:
    host = classic_host()
    member = GroupMetadataValue.MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=20_000,
        subscription=b"", assignment=b"A",
    )  # fmt: skip
    value = GroupMetadataValue(
        protocol_type="consumer", generation=5, protocol=None, leader="gone", members=[member]
    )
    host.append(GroupMetadataKey(group="g"), value, version=0)
    host.reload()

    assert group(host).members["m"].rebalance_timeout_ms == 20_000
    assert group(host).leader == "m" and group(host).state_timestamp_ms == -1
    host.advance(20_000)
    assert group(host).state == "Empty" and group(host).generation == 6


def test_record_of_the_last_generation_is_followed_by_the_first() -> None:
    host = classic_host()
    value = GroupMetadataValue(protocol_type="consumer", generation=2**31 - 1, members=[])
    host.append(GroupMetadataKey(group="g"), value)

    (client,) = form_group(host, Client(host))

    assert client.generation == 0 and client.beat() == 0


def test_empty_group_says_since_when() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))
    assert group(host).empty_since_ms is None and not group(host).is_empty
    client.leave()
    since = host.wall_ms()

    host.advance(1_000)
    host.reload()

    assert group(host).is_empty and group(host).empty_since_ms == since
    Client(host).send_join()
    assert group(host).empty_since_ms is None


# -- KIP-848 -------------------------------------------------------------------------------------


class ConsumerStandIn:
    """Records which requests of classic members reach the consumer protocol."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def handler(op: Any, call: Any) -> Any:
            self.calls.append(name)
            raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)

        return handler


def test_requests_for_a_group_of_the_consumer_protocol_go_there() -> None:
    host = classic_host()
    host.machine.groups["g"] = OtherGroup("g")
    host.machine.consumer = ConsumerStandIn()
    client = Client(host)
    client.protocol = "range"

    client.send_join()
    client.send_sync()
    client.beat()
    with pytest.raises(WireError):
        client.leave()

    assert host.machine.consumer.calls == [
        "classic_join", "classic_sync", "classic_heartbeat", "classic_leave",
    ]  # fmt: skip


class EmptyGroup(OtherGroup):
    is_empty = True


def test_empty_group_of_the_consumer_protocol_becomes_a_classic_one() -> None:
    host = classic_host()
    host.machine.groups["g"] = EmptyGroup("g")

    (client,) = form_group(host, Client(host))

    assert group(host).kind != CONSUMER and client.beat() == 0


def adopted(host: CoordinatorHost, reason: str | None) -> list[Client]:
    """A group of generation 7 is converted from the consumer protocol."""
    clients = []
    members = []
    for name in ("a", "b"):
        client = Client(host, name, instance_id=f"i-{name}")
        client.member_id, client.generation, client.protocol = name, 7, "range"
        clients.append(client)
        host_and_timeouts = "/h", 60_000, SESSION_MS
        member = ClassicGroupMember(
            name, client.instance_id, name, *host_and_timeouts, client.protocols, name.encode()
        )
        members.append(member)

    def adopt(op: Any) -> None:
        op.touch()
        host.machine.classic.adopt(op, "g", 7, members, reason=reason)

    value_of(host.execute(adopt))
    return clients


def test_adopted_group_rebalances() -> None:
    host = classic_host()
    a, b = adopted(host, "a member of the consumer protocol left")

    assert a.beat() == b.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(a, b)
    assert group(host).generation == 8


def test_adopted_group_still_needs_its_rebalance_after_a_load() -> None:
    """Partitions of the member that left have no owner until then."""
    host = classic_host()
    a, b = adopted(host, "a member left")

    host.reload()

    assert a.beat() == b.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(a, b)
    host.reload()
    assert a.beat() == b.beat() == 0


def test_adopted_group_without_a_reason_is_stable() -> None:
    host = classic_host()
    a, b = adopted(host, None)

    assert a.beat() == b.beat() == 0
    assert value_of(b.send_sync()).assignment == b"b"
    host.reload()
    assert a.beat() == b.beat() == 0
    host.advance(SESSION_MS)
    assert group(host).state == "Empty"


def test_released_group_has_nobody_waiting_and_no_timers() -> None:
    host = classic_host()
    form_group(host, Client(host, "a"))
    waiting = Client(host, "b").join()

    def release(op: Any) -> None:
        op.touch()
        host.machine.classic.release(op, group(host))
        group(host).delete(op)

    value_of(host.execute(release))

    assert code_of(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not host.machine.groups and not len(host.timers)


def test_tombstone_from_elsewhere_leaves_nobody_waiting() -> None:
    host = classic_host()
    waiting: Pending = Client(host).join()

    host.append(GroupMetadataKey(group="g"), None)

    assert code_of(waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not len(host.timers)


def test_heartbeat_of_the_stand_in_is_not_served_here() -> None:
    """A group that was migrated must not be served from the state of the classic protocol."""
    host = classic_host()
    (client,) = form_group(host, Client(host))
    host.append(GroupMetadataKey(group="g"), None)
    host.machine.groups["g"] = OtherGroup("g")
    host.machine.consumer = ConsumerStandIn()
    host.machine.consumer.classic_heartbeat = lambda op, call: HeartbeatResponse(error_code=22)

    assert client.beat() == ErrorCode.ILLEGAL_GENERATION


# -- metrics -------------------------------------------------------------------------------------


def test_groups_are_counted_by_state() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))
    Client(host, group_id="h").join()

    def counted() -> dict[str, int]:
        return {name: count for name, count in host.counted.items() if count}

    prefix = "kbroker_classic_group"
    expected = {f"{prefix}s_stable": 1, f"{prefix}s_preparing_rebalance": 1}
    assert counted() == {**expected, f"{prefix}_rebalances_total": 1}
    client.leave()
    host.reload()
    assert counted() == {f"{prefix}s_empty": 1, f"{prefix}_rebalances_total": 1}
    host.append(GroupMetadataKey(group="g"), None)
    assert counted() == {f"{prefix}_rebalances_total": 1}
