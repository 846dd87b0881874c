"""JoinGroup and the transition between generations."""

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
    subscription,
)
from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.join_group import JoinGroupRequest

pytestmark = pytest.mark.unit


def group(host: CoordinatorHost, group_id: str = "g") -> ClassicGroup:
    found = host.machine.groups[group_id]
    assert isinstance(found, ClassicGroup)
    return found


# -- the first join ------------------------------------------------------------------------------


def test_first_join_gets_the_id_to_join_with() -> None:
    host = classic_host()

    response = value_of(Client(host, "app").send_join())

    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id.startswith("app-") and len(response.member_id) == 4 + 36
    assert response.generation_id == -1 and response.leader == ""
    assert group(host).pending_joins == {response.member_id}


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_first_join_of_an_old_client_is_let_in(version: int) -> None:
    host = classic_host()
    client = Client(host, version=version)

    pending = client.send_join()
    assert not pending.done
    host.advance(DELAY_MS)

    response = client.joined(pending)
    assert response.generation_id == 1
    assert response.leader == response.member_id
    assert [m.member_id for m in response.members] == [response.member_id]


@pytest.mark.parametrize("version", range(10))
def test_join_in_every_version_ends_in_a_stable_group(version: int) -> None:
    host = classic_host()
    clients = [Client(host, "a", version=version), Client(host, "b", version=version)]

    leader, follower = form_group(host, *clients)

    assert group(host).state == "Stable" and group(host).generation == 1
    assert leader.beat() == follower.beat() == 0


def test_join_of_version_0_takes_the_session_timeout_for_its_rebalance_timeout() -> None:
    host = classic_host()
    client = Client(host, version=0)
    client.send_join()

    (member,) = group(host).members.values()

    assert member.rebalance_timeout_ms == SESSION_MS


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_join_that_is_rejected_leaves_no_group(changes: dict[str, object], code: int) -> None:
    host = classic_host()

    assert code_of(Client(host).send_join(**changes)) == code
    assert not host.machine.groups and not len(host.timers)


@pytest.mark.parametrize("session_ms", [6000, 1_800_000])
def test_session_timeout_at_its_limits_is_taken(session_ms: int) -> None:
    client = Client(classic_host(), session_ms=session_ms)

    assert code_of(client.send_join()) == ErrorCode.MEMBER_ID_REQUIRED


def test_id_that_nobody_joins_with_is_forgotten_with_its_group() -> None:
    host = classic_host()
    client = Client(host)
    client.member_id = value_of(client.send_join()).member_id

    host.advance(SESSION_MS)

    assert not host.machine.groups
    assert code_of(client.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_id_of_a_long_client_id_fits_into_a_record() -> None:
    host = classic_host()
    client = Client(host, "ä" * 16_000)
    form_group(host, client)

    assert len(client.member_id.encode()) <= 32_767
    assert client.member_id.startswith("äää")


# -- a new group waits ---------------------------------------------------------------------------


def test_new_group_waits_for_more_members_as_long_as_some_come() -> None:
    host = classic_host()
    joins = []
    for number in range(4):
        joins.append(Client(host, f"c{number}").join())
        host.advance(DELAY_MS - 100)
    assert not any(pending.done for pending in joins)

    host.advance(2 * DELAY_MS)

    assert {value_of(p).generation_id for p in joins} == {1}
    assert sum(len(value_of(p).members) for p in joins) == 4


def test_new_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    host = classic_host()
    first = Client(host, "first", rebalance_ms=10_000).join()
    for number in range(5):
        host.advance(2_000)
        Client(host, f"c{number}", rebalance_ms=10_000).join()

    assert first.done


def test_new_group_without_delay_starts_at_once() -> None:
    host = classic_host(group_initial_rebalance_delay_ms="0")
    pending = Client(host).join()

    host.advance(0)

    assert value_of(pending).generation_id == 1


def test_group_that_was_left_by_all_waits_again() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))
    client.leave()

    pending = Client(host, "late").join()
    assert not pending.done
    host.advance(DELAY_MS)

    # Generation 2 was the empty one.
    assert value_of(pending).generation_id == 3


# -- rebalances ----------------------------------------------------------------------------------


def test_second_member_starts_a_rebalance_that_waits_for_the_first() -> None:
    host = classic_host()
    (first,) = form_group(host, Client(host, "first"))
    second = Client(host, "second")

    pending = second.join()
    assert not pending.done and group(host).state == "PreparingRebalance"
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    again = first.join()

    assert first.joined(again).generation_id == second.joined(pending).generation_id == 2
    assert again.value.leader == first.member_id
    assert {m.member_id for m in again.value.members} == {first.member_id, second.member_id}
    assert pending.value.members == []


def test_member_that_does_not_join_again_is_left_behind() -> None:
    host = classic_host()
    slow, quick = form_group(
        host, Client(host, "slow", session_ms=300_000), Client(host, "quick", session_ms=300_000)
    )
    late = Client(host, "late").join()
    back = quick.join()

    host.advance(REBALANCE_MS - 1)
    assert not late.done
    host.advance(1)

    assert value_of(late).generation_id == value_of(back).generation_id == 2
    assert value_of(back).leader == quick.member_id
    assert slow.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_the_longest_rebalance_timeout() -> None:
    host = classic_host()
    members = form_group(
        host,
        Client(host, "a", rebalance_ms=20_000, session_ms=300_000),
        Client(host, "b", rebalance_ms=90_000, session_ms=300_000),
    )
    pending = Client(host, "c", rebalance_ms=5_000).join()

    host.advance(89_999)
    assert not pending.done
    host.advance(1)

    assert value_of(pending).generation_id == 2
    assert all(m.beat() == ErrorCode.UNKNOWN_MEMBER_ID for m in members)


def test_rebalance_waits_for_an_id_that_was_given_out() -> None:
    host = classic_host()
    (first,) = form_group(host, Client(host, "first", rebalance_ms=90_000))
    newcomer = Client(host, "newcomer")
    newcomer.member_id = value_of(newcomer.send_join()).member_id
    again = first.join()
    assert not again.done  # the leader wants a rebalance, and there is one more to come

    host.advance(SESSION_MS)

    assert first.joined(again).generation_id == 2


def test_leader_that_joins_again_starts_a_rebalance() -> None:
    host = classic_host()
    leader, follower = form_group(host, Client(host, "a"), Client(host, "b"))

    pending = leader.join()

    assert not pending.done
    assert follower.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_follower_that_joins_again_unchanged_gets_the_generation_it_has() -> None:
    host = classic_host()
    leader, follower = form_group(host, Client(host, "a"), Client(host, "b"))

    response = follower.joined(follower.join())

    assert response.generation_id == 1 and response.members == []
    assert response.leader == leader.member_id
    assert leader.beat() == 0
    assert value_of(follower.send_sync()).assignment == follower.member_id.encode()


def test_follower_with_another_subscription_starts_a_rebalance() -> None:
    host = classic_host()
    leader, follower = form_group(host, Client(host, "a"), Client(host, "b"))
    follower.protocols = {"range": subscription("t", "u")}

    pending = follower.join()

    assert not pending.done
    assert leader.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(leader, follower)
    assert group(host).subscribes_to("u")


def test_member_that_lost_the_response_gets_it_again() -> None:
    host = classic_host()
    a, b = Client(host, "a"), Client(host, "b")
    joins = [a.join(), b.join()]
    host.advance(2 * DELAY_MS)
    a.joined(joins[0])
    b.joined(joins[1])

    again_a, again_b = value_of(a.join()), value_of(b.join())

    assert again_a.generation_id == again_b.generation_id == 1
    assert len(again_a.members) == 2 and again_b.members == []
    assert group(host).state == "CompletingRebalance"


def test_join_that_is_sent_twice_gets_two_responses() -> None:
    host = classic_host()
    client = Client(host)
    first = client.join()
    second = client.join()

    assert value_of(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    host.advance(2 * DELAY_MS)

    assert client.joined(second).generation_id == 1


def test_static_member_that_does_not_join_again_stays() -> None:
    """It may be restarting: only the session timeout decides."""
    host = classic_host()
    a, b = form_group(
        host,
        Client(host, "a", instance_id="i1", session_ms=300_000, rebalance_ms=20_000),
        Client(host, "b", instance_id="i2", session_ms=100_000, rebalance_ms=20_000),
    )
    a.protocols = {"range": subscription("other")}
    waiting = a.join()
    a_id = a.member_id
    assert not waiting.done
    host.advance(20_000)

    assert value_of(waiting).generation_id == 2 and value_of(waiting).leader == a_id
    assert set(group(host).members) == {a_id, b.member_id}


# -- protocols -----------------------------------------------------------------------------------


def test_protocol_is_chosen_by_vote() -> None:
    host = classic_host()
    wanted = [["x", "y"], ["y", "x"], ["y", "x", "z"]]
    clients = [
        Client(host, f"c{number}", protocols={name: name.encode() for name in names})
        for number, names in enumerate(wanted)
    ]
    joins = [client.join() for client in clients]

    host.advance(3 * DELAY_MS)

    assert [value_of(p).protocol_name for p in joins] == ["y", "y", "y"]
    (members,) = [value_of(p).members for p in joins if value_of(p).members]
    assert {m.metadata for m in members} == {b"y"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("consumer", {"other": b""}), ("connect", {"range": b""}), ("", {"range": b""})],
)
def test_member_without_a_common_protocol_is_rejected(
    protocol_type: str, protocols: dict[str, bytes]
) -> None:
    host = classic_host()
    (member,) = form_group(host, Client(host))
    stranger = Client(host, protocol_type=protocol_type, protocols=protocols)

    assert code_of(stranger.send_join()) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert member.beat() == 0 and not group(host).pending_joins


def test_member_that_gives_up_the_common_protocol_is_rejected_and_stays() -> None:
    host = classic_host()
    a, b = form_group(
        host,
        Client(host, "a", protocols={"x": b"", "y": b""}),
        Client(host, "b", protocols={"x": b""}),
    )
    a.protocols = {"y": b""}

    assert code_of(a.join()) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert a.beat() == b.beat() == 0


def test_first_of_two_protocols_of_one_name_counts() -> None:
    host = classic_host()
    client = Client(host)
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    twice = [protocol(name="range", metadata=b"one"), protocol(name="range", metadata=b"two")]

    pending = client.join(protocols=twice)
    host.advance(DELAY_MS)

    assert [m.metadata for m in value_of(pending).members] == [b"one"]


# -- size ----------------------------------------------------------------------------------------


def test_full_group_turns_newcomers_away() -> None:
    host = classic_host(group_max_size="2")
    a, b = form_group(host, Client(host, "a"), Client(host, "b"))

    rejected = value_of(Client(host, "c").send_join())

    assert rejected.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED and rejected.member_id == ""
    assert a.beat() == b.beat() == 0


def test_new_group_turns_away_who_comes_last() -> None:
    host = classic_host(group_max_size="2")
    joins = [Client(host, f"c{number}").join() for number in range(3)]

    assert code_of(joins[2]) == ErrorCode.GROUP_MAX_SIZE_REACHED
    host.advance(2 * DELAY_MS)

    assert [code_of(p) for p in joins[:2]] == [0, 0]
    assert not group(host).pending_joins


def test_static_member_of_a_full_group_may_come_back() -> None:
    host = classic_host(group_max_size="1")
    form_group(host, Client(host, instance_id="i"))

    response = value_of(Client(host, instance_id="i").join())

    assert response.error_code == 0


def test_group_that_is_too_large_after_a_load_shrinks() -> None:
    host = classic_host()
    clients = form_group(host, *[Client(host, f"c{number}") for number in range(4)])
    host.configure(group_max_size="2")
    host.reload()
    assert group(host).state == "PreparingRebalance"
    assert {c.beat() for c in clients} == {ErrorCode.REBALANCE_IN_PROGRESS}

    joins = [client.join() for client in clients]

    codes = [code_of(p) for p in joins]
    assert codes == [0, 0] + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
    assert len(group(host).members) == 2 and group(host).state == "CompletingRebalance"


# -- sessions of those who wait ------------------------------------------------------------------


def test_old_client_that_never_hears_of_its_id_is_dropped_after_five_minutes() -> None:
    host = classic_host()
    (first,) = form_group(host, Client(host, "first", rebalance_ms=600_000, session_ms=900_000))
    lost = Client(host, "lost", version=3).send_join()

    host.advance(5 * 60 * 1000 - 1)
    assert not lost.done
    host.advance(1)

    assert code_of(lost) == ErrorCode.UNKNOWN_MEMBER_ID
    rejoin(first)
    assert list(group(host).members) == [first.member_id]


def test_session_does_not_end_while_a_member_waits_in_a_rebalance() -> None:
    host = classic_host()
    a, b = form_group(
        host, Client(host, "a"), Client(host, "b", session_ms=300_000, rebalance_ms=120_000)
    )
    pending = a.join()

    host.advance(119_000)
    assert not pending.done
    rejoin_b = b.join()

    assert a.joined(pending).generation_id == b.joined(rejoin_b).generation_id == 2
    host.advance(SESSION_MS - 1)
    assert a.beat() == 0


@pytest.mark.parametrize("version", range(4, 10))
def test_rejected_join_has_no_protocol_as_its_version_says_it(version: int) -> None:
    """Null from version 7 on, as in Kafka."""
    rejected = Client(classic_host(), "new", version=version).send_join()

    assert code_of(rejected) == ErrorCode.MEMBER_ID_REQUIRED
    assert value_of(rejected).protocol_name == (None if version >= 7 else "")
