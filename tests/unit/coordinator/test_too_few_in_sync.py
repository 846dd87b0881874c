"""While fewer replicas than min.insync.replicas are in sync, coordinators acknowledge nothing new.

Requests that write get COORDINATOR_NOT_AVAILABLE with nothing changed, as in Kafka; what only reads
is served, no shard is reloaded, and afterwards everything continues where it was.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.classic_consumer import both_host
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
from support.coordinators.consumer_member import FakeConsumer, make_host
from support.coordinators.coordinator_host import CoordinatorHost, value_of
from support.coordinators.offsets_host import OffsetsHost
from support.coordinators.transaction_host import ID, TransactionHost, host_with_topics

from kbroker.coordinator.transaction.state import TransactionStatus
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending

pytestmark = pytest.mark.unit

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
DAY_MS = 86_400_000


def code(pending: Pending) -> int:
    assert pending.done and isinstance(pending.error, WireError), pending.value
    return int(pending.error.code)


# -- the classic protocol ----------------------------------------------------------------------


def test_assignment_is_not_acknowledged_and_the_group_forms_later() -> None:
    host = classic_host()
    joins = [(one, one.join()) for one in (Client(host), Client(host, "other"))]
    host.advance(2 * DELAY_MS)
    for one, pending in joins:
        one.joined(pending)
    leader = joins[0][1].value.leader
    joins.sort(key=lambda each: each[0].member_id != leader)
    follower = joins[1][0].send_sync()
    host.is_refusing = True

    answer = joins[0][0].send_sync({one.member_id: b"it" for one, _ in joins})

    assert (code_of(answer), code_of(follower)) == (NOT_AVAILABLE, NOT_AVAILABLE)
    assert (host.written, host.loads) == ([], 1)
    host.is_refusing = False
    rejoin(*(one for one, _ in joins))
    assert host.machine.groups["g"].state == "Stable"


def test_stable_group_lives_on_with_heartbeats() -> None:
    host = classic_host()
    members = form_group(host, Client(host), Client(host, "other"))
    host.is_refusing = True
    for _ in range(10):
        host.advance(SESSION_MS // 2)
        assert [one.beat() for one in members] == [0, 0]


def test_group_whose_members_fall_silent_is_empty_and_can_be_joined() -> None:
    host = classic_host()
    form_group(host, Client(host))
    written = len(host.written)
    host.is_refusing = True

    host.advance(SESSION_MS + REBALANCE_MS)

    group = host.machine.groups["g"]
    assert (group.state, group.generation, len(host.written), host.loads) == (
        "Empty",
        2,
        written,
        1,
    )
    host.is_refusing = False
    form_group(host, Client(host))
    assert group.generation == 3


def test_static_member_that_returns_keeps_its_old_id_until_the_new_one_is_written() -> None:
    host = classic_host()
    (old,) = form_group(host, Client(host, instance_id="i"))
    host.is_refusing = True

    assert code_of(Client(host, instance_id="i").join()) == NOT_AVAILABLE

    assert old.beat() == 0
    host.is_refusing = False
    again = Client(host, instance_id="i")
    again.joined(again.join())
    assert old.beat() == ErrorCode.FENCED_INSTANCE_ID


# -- the consumer protocol ---------------------------------------------------------------------


def test_member_stays_through_rejected_heartbeats() -> None:
    host = make_host()
    host.add_topic("t", 4)
    member = FakeConsumer(host, "m", ["t"])
    member.join()
    member.beat()
    host.add_topic("t", 6)  # the next heartbeat assigns the new partitions
    host.is_refusing = True

    for _ in range(10):
        with pytest.raises(WireError, match="COORDINATOR_NOT_AVAILABLE"):
            member.beat()
        host.advance(30_000)

    assert host.loads == 1
    host.is_refusing = False
    for _ in range(3):
        member.beat()
    assert len(member.owned) == 6


def test_heartbeat_that_changes_nothing_is_served() -> None:
    host = make_host()
    host.add_topic("t", 4)
    member = FakeConsumer(host, "m", ["t"])
    member.join()
    member.beat()
    host.is_refusing = True
    assert member.beat().error_code == 0


def test_session_that_expires_meanwhile_ends_the_member_afterwards() -> None:
    host = make_host()
    host.add_topic("t", 4)
    FakeConsumer(host, "m", ["t"]).join()
    host.is_refusing = True
    host.advance(200_000)
    assert "m" in host.machine.groups["g"].members and host.loads == 1

    host.is_refusing = False
    host.advance(1_000)

    assert "m" not in host.machine.groups["g"].members


def test_group_does_not_change_its_protocol() -> None:
    host = both_host()
    host.add_topic("t", 4)
    member = FakeConsumer(host, "m", ["t"])
    member.join()
    member.leave()
    host.is_refusing = True
    classic = Client(host)
    assert code_of(classic.join()) == NOT_AVAILABLE
    assert host.machine.groups["g"].kind == "consumer"

    host.is_refusing = False
    classic.join()
    assert host.machine.groups["g"].kind == "classic"


# -- offsets -----------------------------------------------------------------------------------


def test_offsets_can_be_read_and_not_committed() -> None:
    host = OffsetsHost()
    assert host.commit_offset(5) == 0
    host.is_refusing = True

    assert host.commit_offset(6) == NOT_AVAILABLE
    assert host.commit_offset(6, topic="unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert host.commit_in_transaction(6) == NOT_AVAILABLE
    with pytest.raises(WireError, match="COORDINATOR_NOT_AVAILABLE"):
        host.delete_offset()

    assert host.fetch()[0] == 5
    host.is_refusing = False
    assert host.commit_offset(6) == 0


def test_offsets_of_a_deleted_topic_are_deleted_afterwards() -> None:
    host = OffsetsHost()
    host.commit_offset(5)
    host.is_refusing = True
    host.set_topics(t=None)
    host.advance(10_000)
    assert (len(host.offsets.store), host.loads) == (1, 1)

    host.is_refusing = False
    host.advance(1_000)

    assert len(host.offsets.store) == 0


def test_offsets_expire_afterwards() -> None:
    host = OffsetsHost(offsets_retention_minutes="1")
    host.commit_offset(5)
    host.is_refusing = True
    host.advance(3_600_000)
    assert (len(host.offsets.store), host.loads) == (1, 1)

    host.is_refusing = False
    host.advance(3_600_000)

    assert len(host.offsets.store) == 0


# -- transactions ------------------------------------------------------------------------------


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


def test_epoch_does_not_rise_by_repeated_init_producer_id(host: TransactionHost) -> None:
    first = host.producer()
    host.is_refusing = True

    for _ in range(5):
        assert code(host.send_init()) == NOT_AVAILABLE
        assert code(host.send_init("new")) == NOT_AVAILABLE

    host.is_refusing = False
    assert host.producer() == (first[0], first[1] + 1)
    assert "new" not in host.machine.transactions


def test_transaction_is_neither_extended_nor_ended(host: TransactionHost) -> None:
    producer = host.producer()
    assert host.add(producer, 0) == [0]
    host.is_refusing = True

    assert code(host.send_add(producer, 1)) == NOT_AVAILABLE
    assert code(host.send_add_offsets(producer, "g")) == NOT_AVAILABLE
    assert code(host.send_verify(producer, 1, add=True)) == NOT_AVAILABLE
    assert code(host.send_end(producer)) == NOT_AVAILABLE
    assert code(host.send_init()) == NOT_AVAILABLE, "it would abort the transaction"
    assert host.add(producer, 0) == [0], "it has this partition"
    assert host.verify(producer, 0) == 0

    assert (host.txn.state, host.markers, host.loads) == (TransactionStatus.ONGOING, [], 1)
    host.is_refusing = False
    assert host.end(producer).error_code == 0
    assert len(host.markers) == 1


def wake(host: TransactionHost, delay_ms: int) -> None:
    host.advance(delay_ms)
    host.rpc.wake()


def test_transaction_whose_markers_are_written_completes_afterwards(host: TransactionHost) -> None:
    producer = host.producer()
    host.add(producer, 0)
    host.marker_code = int(ErrorCode.NOT_ENOUGH_REPLICAS)
    host.send_end(producer)
    host.marker_code = 0
    host.is_refusing = True
    for _ in range(5):
        wake(host, 1_000)
    assert (host.txn.state, host.loads) == (TransactionStatus.PREPARE_COMMIT, 1)

    host.is_refusing = False
    wake(host, 1_000)

    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
)
def test_marker_that_too_few_replicas_have_is_sent_again(
    host: TransactionHost, error: ErrorCode
) -> None:
    producer = host.producer()
    host.add(producer, 0)
    host.marker_code = int(error)
    host.send_end(producer)
    wake(host, 1_000)
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT

    host.marker_code = 0
    wake(host, 1_000)

    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_transaction_that_is_overdue_is_aborted_afterwards(host: TransactionHost) -> None:
    producer = host.producer(transaction_timeout_ms=10_000)
    host.add(producer, 0)
    host.is_refusing = True
    host.advance(60_000)
    assert host.txn.state == TransactionStatus.ONGOING

    host.is_refusing = False
    host.advance(30_000)

    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_unused_transactional_id_expires_afterwards(host: TransactionHost) -> None:
    host.producer()
    host.is_refusing = True
    host.clock.advance(8 * DAY_MS)  # at once: timers fire ten times a second
    host.advance(60_000)
    assert (list(host.machine.transactions), host.loads) == ([ID], 1)

    host.is_refusing = False
    host.advance(1_000)

    assert not host.machine.transactions


def test_test_double_refuses_what_a_shard_would_have_to_reload_for() -> None:
    """Soft state that is touched before records that are refused would cost the shard a reload."""
    host: Any = classic_host()
    host.is_refusing = True

    def careless(op: Any) -> None:
        op.touch()
        op.append(None, None)

    with pytest.raises(AssertionError, match="touches"):
        CoordinatorHost.execute(host, careless)
    assert value_of(host.execute(lambda op: 5)) == 5
