"""Static members (KIP-345, KIP-814): they may restart without a rebalance."""

from __future__ import annotations

import pytest
from support.clients.group_clients import (
    DELAY_MS,
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

pytestmark = pytest.mark.unit


def group(host: CoordinatorHost) -> ClassicGroup:
    found = host.machine.groups["g"]
    assert isinstance(found, ClassicGroup)
    return found


def two_static(host: CoordinatorHost, **options: object) -> list[Client]:
    """Leader (instance i0) and follower (i1) of a stable group."""
    return form_group(
        host,
        Client(host, "a", instance_id="i0", **options),  # type: ignore[arg-type]
        Client(host, "b", instance_id="i1", **options),  # type: ignore[arg-type]
    )


def reborn(old: Client, **options: object) -> Client:
    """The same client after a restart, without its member id."""
    return Client(old.host, old.client_id, instance_id=old.instance_id, **options)  # type: ignore[arg-type]


def test_static_member_joins_without_being_asked_for_an_id() -> None:
    host = classic_host()
    client = Client(host, "app", instance_id="worker-1")

    pending = client.send_join()
    host.advance(DELAY_MS)

    assert client.joined(pending).member_id.startswith("worker-1-")
    assert value_of(pending).members[0].group_instance_id == "worker-1"


def test_restarted_follower_takes_its_place_without_a_rebalance() -> None:
    host = classic_host()
    leader, follower = two_static(host)
    again = reborn(follower)

    response = again.joined(again.join())

    assert response.member_id not in ("", follower.member_id)
    assert response.generation_id == 1 and response.members == []
    assert response.leader == leader.member_id and not response.skip_assignment
    assert value_of(again.send_sync()).assignment == follower.member_id.encode()
    assert leader.beat() == again.beat() == 0
    assert follower.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert code_of(follower.send_sync()) == ErrorCode.FENCED_INSTANCE_ID
    assert code_of(follower.join()) == ErrorCode.FENCED_INSTANCE_ID
    assert follower.leave() == ErrorCode.FENCED_INSTANCE_ID


def test_restart_is_written_and_survives_a_load() -> None:
    host = classic_host()
    leader, follower = two_static(host)
    again = reborn(follower)
    again.joined(again.join())

    host.reload()

    assert again.beat() == leader.beat() == 0
    assert follower.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert value_of(again.send_sync()).assignment == follower.member_id.encode()


def test_restarted_leader_of_version_9_is_told_to_assign_nothing() -> None:
    host = classic_host()
    leader, follower = two_static(host)
    again = reborn(leader)

    response = again.joined(again.join())

    assert response.leader == again.member_id and response.skip_assignment
    assert {m.member_id for m in response.members} == {again.member_id, follower.member_id}
    assert follower.beat() == 0
    assert value_of(again.send_sync()).assignment == leader.member_id.encode()


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_restarted_leader_of_an_older_version_is_not_told_that_it_leads(version: int) -> None:
    host = classic_host()
    leader, _ = two_static(host)
    again = reborn(leader, version=version)

    response = again.joined(again.join())

    assert response.leader == leader.member_id and response.members == []
    assert group(host).leader == again.member_id
    assert value_of(again.send_sync()).assignment == leader.member_id.encode()


def test_restart_with_another_subscription_starts_a_rebalance() -> None:
    host = classic_host()
    leader, follower = two_static(host)
    again = reborn(follower, protocols={"range": subscription("other")})

    pending = again.join()

    assert not pending.done
    assert leader.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.joined(leader.join()).generation_id == again.joined(pending).generation_id == 2


def test_restart_that_only_forgot_what_it_owned_starts_no_rebalance() -> None:
    host = classic_host()
    owning = {"range": subscription("t", owned={"t": [0, 1]})}
    leader, follower = two_static(host, protocols=owning)

    response = value_of(reborn(follower).join())

    assert response.error_code == 0 and response.generation_id == 1
    assert leader.beat() == 0


def test_restart_with_another_choice_of_protocol_starts_a_rebalance() -> None:
    host = classic_host()
    both = {"range": subscription("t"), "roundrobin": subscription("t")}
    leader, follower = two_static(host, protocols=both)
    assert group(host).protocol == "range"
    again = reborn(follower, protocols={"roundrobin": subscription("t")})

    pending = again.join()

    assert not pending.done
    leader.joined(leader.join())
    assert again.joined(pending).protocol_name == "roundrobin"


def test_restart_between_join_and_sync_starts_a_rebalance() -> None:
    host = classic_host()
    a, b = Client(host, "a", instance_id="i0"), Client(host, "b", instance_id="i1")
    joins = [a.join(), b.join()]
    host.advance(2 * DELAY_MS)
    a.joined(joins[0])
    b.joined(joins[1])
    waiting = b.send_sync()
    again = reborn(b)

    pending = again.join()

    assert code_of(waiting) == ErrorCode.FENCED_INSTANCE_ID
    assert code_of(a.send_sync()) == ErrorCode.REBALANCE_IN_PROGRESS
    assert a.joined(a.join()).generation_id == again.joined(pending).generation_id == 2


def test_restart_during_a_rebalance_fences_the_join_that_waits() -> None:
    host = classic_host()
    leader, follower = two_static(host)
    waiting = leader.join()
    first = reborn(follower)
    first.protocols = {"range": subscription("t", "u")}
    again = reborn(leader)

    again_pending = again.join()
    assert code_of(waiting) == ErrorCode.FENCED_INSTANCE_ID
    first_pending = first.join()

    assert again.joined(again_pending).generation_id == 2
    assert first.joined(first_pending).generation_id == 2
    assert len(group(host).members) == 2


def test_old_and_new_incarnation_in_a_new_group() -> None:
    host = classic_host()
    old, new = Client(host, instance_id="i"), Client(host, instance_id="i")
    first, second = old.join(), new.join()

    assert code_of(first) == ErrorCode.FENCED_INSTANCE_ID
    host.advance(2 * DELAY_MS)

    assert new.joined(second).generation_id == 1
    assert len(group(host).members) == 1


def test_static_member_that_leaves_by_its_instance_is_gone() -> None:
    host = classic_host()
    leader, follower = two_static(host)
    member_id, follower.member_id = follower.member_id, ""

    assert follower.leave("removed by an administrator") == 0

    assert member_id not in group(host).members and "i1" not in group(host).static_members
    rejoin(leader)


def test_absent_static_member_is_kept_over_a_rebalance_until_its_session_ends() -> None:
    host = classic_host()
    leader, follower = two_static(host, rebalance_ms=6_000)
    pending = leader.join()
    host.advance(6_000)
    assert leader.joined(pending).generation_id == 2
    assert follower.member_id in group(host).members
    leader.send_sync({leader.member_id: b"A", follower.member_id: b"B"})

    again = reborn(follower)
    again.joined(again.join())
    assert value_of(again.send_sync()).assignment == b"B"

    host.advance(SESSION_MS - 1)
    leader.beat()
    host.advance(1)
    assert again.member_id not in group(host).members


def test_member_id_of_another_instance_is_fenced() -> None:
    host = classic_host()
    leader, follower = two_static(host)

    assert leader.beat(group_instance_id="i1") == ErrorCode.FENCED_INSTANCE_ID
    assert leader.beat(group_instance_id="unknown") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(leader.send_join(group_instance_id="i1")) == ErrorCode.FENCED_INSTANCE_ID
    assert leader.beat() == follower.beat() == 0


def test_id_that_was_given_out_cannot_be_joined_with_as_static_member() -> None:
    host = classic_host()
    client = Client(host)
    client.member_id = value_of(client.send_join()).member_id

    code = code_of(client.send_join(group_instance_id="i"))

    assert code == ErrorCode.UNKNOWN_MEMBER_ID
