"""InitProducerId with a transactional id: epochs, fencing, recovery (KIP-360)."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.transaction_host import FIRST_ID, TransactionHost, host_with_topics

from kbroker.coordinator.transaction.state import CLIENT_EPOCH_MAX, TransactionStatus
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


def given(response: Any) -> tuple[int, int, int]:
    return response.error_code, response.producer_id, response.producer_epoch


@pytest.mark.parametrize("version", range(7))
def test_new_id_gets_a_producer_id_and_epoch_0(host: TransactionHost, version: int) -> None:
    assert given(host.init(version=version)) == (0, FIRST_ID, 0)
    assert host.txn.state == TransactionStatus.EMPTY
    assert host.txn.timeout_ms == 60_000


def test_second_producer_gets_the_next_epoch(host: TransactionHost) -> None:
    host.init()
    assert given(host.init()) == (0, FIRST_ID, 1)


def test_ids_have_producer_ids_of_their_own(host: TransactionHost) -> None:
    assert [host.init(f"tx{n}").producer_id for n in range(12)] == [FIRST_ID + n for n in range(12)]


def test_epoch_survives_a_reload(host: TransactionHost) -> None:
    host.init()
    host.reload()
    assert given(host.init()) == (0, FIRST_ID, 1)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"name": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 7}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 7}, ErrorCode.INVALID_REQUEST),
        ({"version": 6, "enable2_pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"version": 6, "keep_prepared_txn": True}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_request_that_cannot_be_served_is_rejected(
    host: TransactionHost, values: dict[str, Any], code: ErrorCode
) -> None:
    assert given(host.init(**values)) == (code, -1, -1)
    assert not host.machine.transactions


def test_two_phase_commit_has_to_be_enabled_and_keeps_nothing_prepared() -> None:
    host = host_with_topics(transaction_two_phase_commit_enable="true")
    kept = host.init(version=6, enable2_pc=True, keep_prepared_txn=True)
    assert given(kept) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)

    answer = host.init(version=6, enable2_pc=True, transaction_timeout_ms=-1)

    assert given(answer) == (0, FIRST_ID, 0)
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (-1, -1)
    assert host.txn.timeout_ms == 2**31 - 1
    assert host.init(version=6, transaction_timeout_ms=0).error_code == (
        ErrorCode.INVALID_TRANSACTION_TIMEOUT
    )


def test_longest_timeout_is_allowed(host: TransactionHost) -> None:
    assert host.init(transaction_timeout_ms=900_000).error_code == 0


def test_no_producer_id_is_an_error_of_the_request_alone(host: TransactionHost) -> None:
    def reject(to: object) -> None:
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    good = host.rpc.responses["allocate_producer_ids"]
    host.rpc.responses["allocate_producer_ids"] = reject
    with pytest.raises(WireError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        host.init()
    host.rpc.responses["allocate_producer_ids"] = good
    assert host.init().error_code == 0


def test_two_producers_that_start_at_once_get_different_epochs(host: TransactionHost) -> None:
    host.rpc.is_holding = True
    both = [host.send_init(), host.send_init()]
    host.rpc.is_holding = False
    host.rpc.release()
    assert [given(pending.value)[0] for pending in both] == [0, 0]
    assert [given(pending.value)[2] for pending in both] == [0, 1]


def test_close_while_waiting_for_a_producer_id_completes(host: TransactionHost) -> None:
    host.rpc.is_holding = True
    pending = host.send_init()
    host.reload()
    assert isinstance(pending.error, WireError)
    host.rpc.release()
    assert not host.machine.transactions


def test_ongoing_transaction_is_aborted_first(host: TransactionHost) -> None:
    old = host.producer()
    host.add(old, 0, 1)
    assert given(host.init()) == (0, FIRST_ID, 2)
    assert [marker[1:4] for marker in host.markers] == [(FIRST_ID, 1, False)] * 2
    assert [batch[0][1].transaction_status for batch in host.written[-3:]] == [
        TransactionStatus.PREPARE_ABORT,
        TransactionStatus.COMPLETE_ABORT,
        TransactionStatus.EMPTY,
    ]
    assert host.add(old, 0) == [ErrorCode.PRODUCER_FENCED]


def test_ongoing_transaction_that_is_not_aborted_at_once_is_concurrent(
    host: TransactionHost,
) -> None:
    host.add(host.producer(), 0)
    host.marker_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    pending = host.send_init()
    assert not pending.done
    host.advance(100)
    assert given(pending.value) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert host.txn.state == TransactionStatus.PREPARE_ABORT
    host.marker_code = 0
    host.advance(1_000)
    assert given(host.init()) == (0, FIRST_ID, 2)


def test_abort_for_a_new_producer_that_cannot_be_written_changes_nothing(
    host: TransactionHost,
) -> None:
    old = host.producer()
    host.add(old, 0)
    host.fail_with = WireError(ErrorCode.NOT_COORDINATOR)
    assert host.send_init().error is host.fail_with
    host.fail_with = None
    assert host.loads == 1
    assert host.end(old).error_code == 0


def test_prepared_transaction_is_waited_for(host: TransactionHost) -> None:
    producer = host.producer()
    host.add(producer, 0)
    host.marker_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    host.end(producer)
    pending = host.send_init()
    assert not pending.done
    host.marker_code = 0
    host.advance(50)
    assert given(pending.value) == (0, FIRST_ID, 2)


def test_prepared_transaction_that_takes_long_is_concurrent(host: TransactionHost) -> None:
    producer = host.producer()
    host.add(producer, 0)
    host.marker_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    host.end(producer)
    pending = host.send_init()
    host.advance(100)
    assert given(pending.value) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)


# -- a producer that names what it had --


def recover(host: TransactionHost, producer: tuple[int, int], version: int = 5) -> Any:
    return host.init(version=version, producer_id=producer[0], producer_epoch=producer[1])


def test_recovery_raises_the_epoch(host: TransactionHost) -> None:
    assert given(recover(host, host.producer())) == (0, FIRST_ID, 1)


def test_recovery_repeated_gets_the_same_epoch(host: TransactionHost) -> None:
    old = host.producer()
    first = recover(host, old)
    assert given(recover(host, old)) == given(first)
    assert given(recover(host, old)) == given(first)


def test_recovery_repeated_after_another_producer_started_is_fenced(host: TransactionHost) -> None:
    old = host.producer()
    recover(host, old)
    host.init()
    assert given(recover(host, old)) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_recovery_of_an_unknown_id_starts_again(host: TransactionHost) -> None:
    assert given(recover(host, (5, 17))) == (0, FIRST_ID, 0)


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
def test_recovery_with_another_producer_id_is_fenced(
    host: TransactionHost, version: int, code: int
) -> None:
    host.producer()
    assert given(recover(host, (5, 0), version)) == (code, -1, -1)


def test_recovery_with_an_old_epoch_is_fenced(host: TransactionHost) -> None:
    old = host.producer()
    host.producer()
    assert given(recover(host, old)) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_recovery_with_an_old_epoch_leaves_an_ongoing_transaction_alone(
    host: TransactionHost,
) -> None:
    """Kafka aborts it, although the producer was fenced long ago."""
    old = host.producer()
    new = host.producer()
    host.add(new, 0)
    assert given(recover(host, old)) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert host.txn.state == TransactionStatus.ONGOING


def test_recovery_within_a_transaction_aborts_it(host: TransactionHost) -> None:
    """The producer gets the epoch that the abort bumped: it is used by no other."""
    producer = host.producer()
    host.add(producer, 0)
    assert given(recover(host, producer)) == (0, FIRST_ID, 1)
    assert [marker[3] for marker in host.markers] == [False]


# -- the end of the epochs --


@pytest.mark.parametrize("is_recovery", [False, True])
def test_exhausted_epochs_bring_a_new_producer_id(host: TransactionHost, is_recovery: bool) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    response = recover(host, old) if is_recovery else host.init()
    assert given(response) == (0, FIRST_ID + 1, 0)
    assert host.txn.previous_producer_id == FIRST_ID


def test_last_epoch_is_reached(host: TransactionHost) -> None:
    host.producer()
    host.set_epoch(CLIENT_EPOCH_MAX - 1)
    assert given(host.init()) == (0, FIRST_ID, CLIENT_EPOCH_MAX)


def test_rotation_repeated_by_who_asked_for_it_gets_the_same(host: TransactionHost) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    first = recover(host, old)
    assert given(recover(host, old)) == given(first)


def test_rotation_repeated_by_somebody_else_is_fenced(host: TransactionHost) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.init()
    assert given(recover(host, old)) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_fencing_at_the_last_epoch_brings_a_new_producer_id(host: TransactionHost) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(old, 0)
    assert given(host.init()) == (0, FIRST_ID + 1, 1)
    assert host.markers[0][1:4] == (FIRST_ID, CLIENT_EPOCH_MAX + 1, False)
    assert host.add(old, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_records_that_cannot_be_written_change_nothing(host: TransactionHost) -> None:
    host.producer()
    host.fail_with = WireError(ErrorCode.NOT_COORDINATOR)
    pending = host.send_init()
    assert pending.error is host.fail_with
    host.fail_with = None
    assert given(host.init()) == (0, FIRST_ID, 1)
