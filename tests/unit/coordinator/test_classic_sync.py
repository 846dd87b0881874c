"""SyncGroup, Heartbeat, LeaveGroup and the sessions of members."""

from __future__ import annotations

import pytest
from support.clients.group_clients import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Client,
    classic_host,
    code_of,
    form_group,
    rejoin,
)
from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey
from kbroker.errors import ErrorCode, WireError
from kbroker.metrics.catalog import CLASSIC_REBALANCES
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.leave_group import LeaveGroupRequest

pytestmark = pytest.mark.unit


def group(host: CoordinatorHost, group_id: str = "g") -> ClassicGroup:
    found = host.machine.groups[group_id]
    assert isinstance(found, ClassicGroup)
    return found


def two_joined(host: CoordinatorHost, **options: int) -> tuple[Client, Client]:
    """A leader and a follower of generation 1, without an assignment."""
    clients = Client(host, "a", **options), Client(host, "b", **options)  # type: ignore[arg-type]
    joins = [client.join() for client in clients]
    host.advance(2 * DELAY_MS)
    for client, pending in zip(clients, joins, strict=True):
        client.joined(pending)
    return clients


# -- SyncGroup -----------------------------------------------------------------------------------


def test_sync_waits_for_the_leader_and_writes_the_group() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()
    assert not waiting.done and not host.log

    answer = value_of(leader.send_sync({leader.member_id: b"A", follower.member_id: b"B"}))

    assert answer.assignment == b"A" and value_of(waiting).assignment == b"B"
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    ((key, value),) = host.written[0]
    assert key == GroupMetadataKey(group="g")
    assert value is not None and value.generation == 1 and value.leader == leader.member_id
    assert [(m.member_id, m.assignment) for m in value.members] == [
        (leader.member_id, b"A"),
        (follower.member_id, b"B"),
    ]
    assert value.members[0].subscription == leader.protocols["range"]
    assert value.members[0].client_host == "/127.0.0.1"
    assert value.current_state_timestamp == host.wall_ms()
    assert host.counted[CLASSIC_REBALANCES.name] == 1


def test_sync_completes_once_the_group_is_committed() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()
    host.is_holding = True

    answer = leader.send_sync()
    assert not answer.done and not waiting.done
    host.commit()

    assert answer.done and waiting.done


def test_sync_that_cannot_be_written_costs_the_shard_and_nobody_hangs() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()
    host.fail_with = WireError(ErrorCode.NOT_COORDINATOR)

    answer = leader.send_sync()

    assert code_of(answer) == code_of(waiting) == ErrorCode.NOT_COORDINATOR
    assert host.loads == 2 and not host.machine.groups


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_sync_has_to_name_the_protocol_from_version_5_on(missing: str) -> None:
    """Whatever the member: an old one does not get UNKNOWN_MEMBER_ID."""
    host = classic_host()
    leader, _ = two_joined(host)
    unnamed = {missing: None}

    codes = [
        code_of(leader.send_sync(**unnamed)),
        code_of(leader.send_sync(member_id="nobody", **unnamed)),
        code_of(leader.send_sync(group_id="none", **unnamed)),
    ]

    assert codes == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL] * 3
    assert code_of(leader.send_sync(version=4, member_id="nobody")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_the_leader_leaves_out_gets_nothing() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()

    leader.send_sync({leader.member_id: b"A", "nobody": b"X"})

    assert value_of(waiting).error_code == 0 and value_of(waiting).assignment == b""
    assert len(host.written[0][0][1].members) == 2  # type: ignore[union-attr]


def test_late_sync_gets_the_assignment_of_the_stable_group() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    leader.send_sync({follower.member_id: b"B"})

    assert value_of(follower.send_sync()).assignment == b"B"
    assert not group(host).pending_syncs


def test_sync_that_is_sent_twice_gets_two_responses() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    first = follower.send_sync()
    second = follower.send_sync()

    assert value_of(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leader.send_sync({follower.member_id: b"B"})

    assert value_of(second).assignment == b"B"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_that_does_not_fit_is_rejected(changes: dict[str, object], code: int) -> None:
    host = classic_host()
    leader, _ = two_joined(host)

    assert code_of(leader.send_sync(**changes)) == code  # type: ignore[arg-type]
    assert group(host).state == "CompletingRebalance" and not host.log


@pytest.mark.parametrize("version", range(5))
def test_sync_before_version_5_names_no_protocol(version: int) -> None:
    host = classic_host()
    leader, _ = two_joined(host)

    answer = leader.send_sync({leader.member_id: b"A"}, version, protocol_type=None)

    assert value_of(answer).assignment == b"A"


def test_sync_during_a_rebalance_sends_the_member_back_to_join() -> None:
    host = classic_host()
    _, follower = form_group(host, Client(host, "a"), Client(host, "b"))
    Client(host, "c").join()

    assert code_of(follower.send_sync()) == ErrorCode.REBALANCE_IN_PROGRESS


def test_newcomer_sends_those_who_wait_for_the_leader_back() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()

    newcomer = Client(host, "c")
    pending = newcomer.join()

    assert code_of(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert code_of(leader.send_sync()) == ErrorCode.REBALANCE_IN_PROGRESS
    joins = [leader.join(), follower.join()]
    assert {value_of(p).generation_id for p in (pending, *joins)} == {2}


def test_members_that_do_not_sync_are_removed_after_the_rebalance_timeout() -> None:
    host = classic_host()
    leader, _ = two_joined(host, session_ms=300_000)
    leader.send_sync({leader.member_id: b"A"})

    host.advance(REBALANCE_MS)

    assert group(host).state == "PreparingRebalance"
    assert list(group(host).members) == [leader.member_id]
    rejoin(leader)


def test_leader_that_does_not_sync_is_replaced() -> None:
    host = classic_host()
    leader, follower = two_joined(host, session_ms=300_000)
    waiting = follower.send_sync()

    host.advance(REBALANCE_MS)

    assert code_of(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert follower.joined(follower.join()).leader == follower.member_id


def test_leader_that_dies_between_join_and_sync_is_replaced_when_its_session_ends() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()

    host.advance(SESSION_MS)

    assert code_of(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert follower.joined(follower.join()).leader == follower.member_id
    assert leader.member_id not in group(host).members


def test_group_too_large_for_a_record_gets_no_assignment_and_joins_again() -> None:
    host = classic_host()
    leader, follower = two_joined(host)
    waiting = follower.send_sync()

    answer = leader.send_sync({leader.member_id: b"A" * 1_100_000})

    assert code_of(answer) == code_of(waiting) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert group(host).state == "PreparingRebalance" and not host.log and host.loads == 1


def test_large_group_that_compresses_well_is_written() -> None:
    host = classic_host(offsets_topic_compression_codec="1")
    leader, _ = two_joined(host)

    answer = leader.send_sync({leader.member_id: b"A" * 1_100_000})

    assert code_of(answer) == 0 and group(host).state == "Stable"


# -- Heartbeat -----------------------------------------------------------------------------------


def test_heartbeats_keep_a_member() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))

    for _ in range(5):
        host.advance(SESSION_MS - 1)
        assert client.beat() == 0


def test_silent_member_is_removed_at_the_end_of_its_session() -> None:
    host = classic_host()
    a, b = form_group(host, Client(host, "a"), Client(host, "b", session_ms=300_000))

    host.advance(SESSION_MS - 1)
    assert len(group(host).members) == 2
    host.advance(1)

    assert list(group(host).members) == [b.member_id]
    assert a.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert b.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert b.joined(b.join()).leader == b.member_id


def test_last_member_that_falls_silent_leaves_an_empty_generation() -> None:
    host = classic_host()
    form_group(host, Client(host))

    host.advance(SESSION_MS)

    assert group(host).state == "Empty" and group(host).generation == 2
    ((_, value),) = host.written[-1]
    assert value is not None
    assert (value.generation, value.members, value.leader) == (2, [], None)
    assert (value.protocol, value.protocol_type) == (None, "consumer")
    assert group(host).empty_since_ms == host.wall_ms()
    assert not len(host.timers)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeat_that_does_not_fit_is_rejected(changes: dict[str, object], code: int) -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))

    assert client.beat(**changes) == code


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_in_every_version(version: int) -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=client.member_id)

    assert code_of(host.send(request, version)) == 0


def test_heartbeat_between_join_and_sync_keeps_the_member() -> None:
    host = classic_host()
    leader, follower = two_joined(host)

    host.advance(SESSION_MS - 1)
    assert leader.beat() == follower.beat() == 0
    host.advance(SESSION_MS - 1)

    assert len(group(host).members) == 2


# -- LeaveGroup ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_leave_of_one_member_by_an_old_client(version: int) -> None:
    host = classic_host()
    a, b = form_group(host, Client(host, "a"), Client(host, "b"))

    def leave(member_id: str, group_id: str = "g") -> int:
        request = LeaveGroupRequest(group_id=group_id, member_id=member_id)
        return code_of(host.send(request, version))

    assert leave("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave(a.member_id, "none") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave(a.member_id) == 0
    assert list(group(host).members) == [b.member_id]
    assert b.beat() == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("version", [3, 4, 5])
def test_leave_of_several_members_returns_results_for_each(version: int) -> None:
    host = classic_host()
    a, _, c = form_group(
        host, Client(host, "a"), Client(host, "b", instance_id="i"), Client(host, "c")
    )
    newcomer = value_of(Client(host, "d").send_join()).member_id
    identity = LeaveGroupRequest.MemberIdentity
    request = LeaveGroupRequest(
        group_id="g",
        members=[
            identity(member_id=a.member_id),
            identity(member_id="nobody"),
            identity(member_id="", group_instance_id="i"),
            identity(member_id="", group_instance_id="unknown"),
            identity(member_id=""),
            identity(member_id=newcomer),
        ],
    )

    response = host.ask(request, version)

    assert response.error_code == 0
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [m.error_code for m in response.members] == [0, unknown, 0, unknown, unknown, 0]
    assert response.members[2].group_instance_id == "i" and response.members[2].member_id == ""
    assert list(group(host).members) == [c.member_id]
    assert c.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(c)


def test_leave_with_a_stale_id_of_a_static_member_is_fenced() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host, instance_id="i"))
    client.member_id = "old"

    assert client.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert len(group(host).members) == 1


def test_leave_of_an_unknown_group_returns_results_for_each_member() -> None:
    host = classic_host()
    client = Client(host)
    client.member_id = "m"

    assert client.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    no_id = LeaveGroupRequest(group_id="", members=[])
    assert code_of(host.send(no_id, 3)) == ErrorCode.INVALID_GROUP_ID


def test_last_member_that_leaves_makes_the_group_empty() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))

    assert client.leave("shutting down") == 0

    assert group(host).state == "Empty" and group(host).generation == 2
    assert group(host).leader is None and not len(host.timers)


def test_leave_of_the_member_that_was_waited_for_ends_the_rebalance() -> None:
    host = classic_host()
    a, b = form_group(host, Client(host, "a"), Client(host, "b"))
    pending = a.join()
    assert not pending.done

    b.leave()

    assert a.joined(pending).generation_id == 2


def test_leave_of_a_waiting_member_completes_its_join() -> None:
    host = classic_host()
    client = Client(host)
    pending = client.join()

    assert client.leave() == 0

    assert code_of(pending) == ErrorCode.UNKNOWN_MEMBER_ID
    host.advance(DELAY_MS)
    assert group(host).state == "Empty"


def test_id_that_is_given_back_leaves_a_stable_group_alone() -> None:
    host = classic_host()
    (member,) = form_group(host, Client(host, "a"))
    newcomer = Client(host, "b")
    newcomer.member_id = value_of(newcomer.send_join()).member_id

    assert newcomer.leave() == 0

    assert member.beat() == 0 and not group(host).pending_joins
