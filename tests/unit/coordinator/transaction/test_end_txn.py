"""EndTxn in both protocols, retried and delayed."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.transaction_host import FIRST_ID, ID, TransactionHost, host_with_topics

from kbroker.coordinator.transaction.state import CLIENT_EPOCH_MAX, TransactionStatus
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit

AWAY = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
FENCED, STATE = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


@pytest.fixture
def producer(host: TransactionHost) -> tuple[int, int]:
    return host.producer()


def given(response: Any) -> tuple[int, int, int]:
    return response.error_code, response.producer_id, response.producer_epoch


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_end_writes_markers_and_completes(
    host: TransactionHost, producer: tuple[int, int], version: int, commit: bool
) -> None:
    host.add(producer, 0, 1, 3)
    epoch = 1 if version >= 5 else 0
    protocol = 2 if version >= 5 else 0
    expected = (0, FIRST_ID, 1) if version >= 5 else (0, -1, -1)
    assert given(host.end(producer, commit, version)) == expected
    assert sorted(host.markers) == [
        (slot, FIRST_ID, epoch, commit, 0, protocol) for slot in (0, 1, 3)
    ]
    assert host.txn.state == (
        TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT
    )
    assert (host.txn.epoch, host.txn.partitions) == (epoch, frozenset())


def test_one_call_goes_to_each_io_worker(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0, 1, 2, 3)
    host.rpc.calls.clear()
    host.end(producer)
    assert [(call[0].index, call[1]) for call in host.rpc.calls] == [
        (0, "write_markers"),
        (1, "write_markers"),
    ]


def test_two_records_end_a_transaction(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0, 1)
    host.written.clear()
    host.end(producer)
    assert [len(batch) for batch in host.written] == [1, 1]


def test_client_gets_its_response_before_the_markers_are_written(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    assert given(host.end(producer)) == (0, FIRST_ID, 1)
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT


def test_nothing_completes_or_is_sent_before_the_decision_is_committed(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.is_holding = True
    pending = host.send_end(producer)
    assert not pending.done
    assert not host.markers
    host.commit()
    assert pending.done
    assert host.markers


def test_decision_that_cannot_be_written_changes_nothing(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert host.send_end(producer).error is host.fail_with
    host.fail_with = None
    assert (host.txn.state, host.txn.epoch, host.markers) == (TransactionStatus.ONGOING, 0, [])
    assert host.end(producer).error_code == 0


@pytest.mark.parametrize("version", range(6))
def test_unknown_id_and_wrong_producer_id_are_no_mapping(
    host: TransactionHost, producer: tuple[int, int], version: int
) -> None:
    host.add(producer, 0)
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert host.end((producer[0] + 1, 0), version=version).error_code == code
    assert host.send_end(producer, version=version, name="unknown").value.error_code == code
    empty = host.send_end(producer, version=version, name="").value.error_code
    assert empty == ErrorCode.INVALID_REQUEST
    assert host.txn.state == TransactionStatus.ONGOING


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (4, 90), (5, 90)])
@pytest.mark.parametrize("epoch", [0, 2])
def test_other_epoch_is_fenced(host: TransactionHost, version: int, code: int, epoch: int) -> None:
    host.producer()
    new = host.producer()
    host.add(new, 0)
    assert host.end((new[0], epoch), version=version).error_code == code
    assert host.txn.state == TransactionStatus.ONGOING


# -- the first protocol --


@pytest.mark.parametrize(
    ("state", "commit", "code"),
    [
        ("empty", True, STATE),
        ("empty", False, STATE),
        ("committed", True, ErrorCode.NONE),
        ("committed", False, STATE),
        ("aborted", True, STATE),
        ("aborted", False, ErrorCode.NONE),
    ],
)
def test_first_protocol_without_a_transaction(
    host: TransactionHost, producer: tuple[int, int], state: str, commit: bool, code: ErrorCode
) -> None:
    if state != "empty":
        host.add(producer, 0)
        host.end(producer, state == "committed", version=4)
    host.written.clear()
    assert given(host.end(producer, commit, version=4)) == (code, -1, -1)
    assert not host.written


# -- the second protocol: Kafka's table of states, outcomes, and epochs --


@pytest.mark.parametrize(
    ("state", "commit", "is_repeated", "code"),
    [
        ("empty", False, True, FENCED),
        ("empty", False, False, ErrorCode.NONE),
        ("empty", True, True, FENCED),
        ("empty", True, False, STATE),
        ("aborted", False, True, ErrorCode.NONE),
        ("aborted", False, False, ErrorCode.NONE),
        ("aborted", True, True, STATE),
        ("aborted", True, False, STATE),
        ("committed", False, True, STATE),
        ("committed", False, False, ErrorCode.NONE),
        ("committed", True, True, ErrorCode.NONE),
        ("committed", True, False, STATE),
    ],
)
def test_second_protocol_without_a_transaction(
    host: TransactionHost, state: str, commit: bool, is_repeated: bool, code: ErrorCode
) -> None:
    host.producer()
    producer = host.producer()
    if state != "empty":
        host.add(producer, 0)
        host.end(producer, state == "committed")
    epoch = host.txn.epoch
    host.written.clear()
    response = host.end((FIRST_ID, epoch - is_repeated), commit)
    raised = code == ErrorCode.NONE and not is_repeated
    assert response.error_code == code
    assert host.txn.epoch == epoch + raised
    assert bool(host.written) == raised
    if code == ErrorCode.NONE:
        assert given(response) == (0, FIRST_ID, epoch + raised)


def test_abort_of_nothing_is_one_batch(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.written.clear()
    assert given(host.end(producer, False)) == (0, FIRST_ID, 1)
    assert [len(batch) for batch in host.written] == [2]
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT
    assert not host.markers


@pytest.mark.parametrize("commit", [True, False])
def test_repeated_while_it_is_being_done_waits(
    host: TransactionHost, producer: tuple[int, int], commit: bool
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer, commit)
    again = host.send_end(producer, commit)
    other = host.end(producer, not commit)
    assert given(other) == (STATE, -1, -1)
    assert not again.done
    host.marker_code = 0
    host.advance(99)
    assert given(again.value) == (0, FIRST_ID, 1)


def test_repeated_while_it_hangs_is_concurrent(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer)
    again = host.send_end(producer)
    host.advance(100)
    assert again.value.error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_delayed_end_does_not_reach_the_next_transaction(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.end(producer)
    host.add((FIRST_ID, 1), 0)
    assert host.end(producer).error_code == FENCED
    assert host.txn.state == TransactionStatus.ONGOING
    host.end((FIRST_ID, 1))
    assert host.end(producer).error_code == FENCED


@pytest.mark.parametrize(
    ("commit", "code"), [(False, ErrorCode.NONE), (True, ErrorCode.INVALID_TXN_STATE)]
)
def test_current_epoch_while_the_end_is_under_way_is_tried_again(
    host: TransactionHost, producer: tuple[int, int], commit: bool, code: ErrorCode
) -> None:
    """The next transaction has not begun, as its batches wait for the same."""
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer)
    waits = host.send_end((FIRST_ID, 1), commit)
    host.advance(100)
    assert waits.value.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    waits = host.send_end((FIRST_ID, 1), commit)
    host.marker_code = 0
    host.advance(90)
    if not waits.done:
        host.advance(2_000)
        waits = host.send_end((FIRST_ID, 1), commit)
    assert waits.value.error_code == code


@pytest.mark.parametrize("epoch", [0, 1])
def test_new_producer_id_while_the_end_is_under_way_is_tried_again(
    host: TransactionHost, epoch: int
) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(old, 0)
    host.marker_code = AWAY
    assert given(host.end(old)) == (0, FIRST_ID + 1, 0)
    waits = host.send_end((FIRST_ID + 1, epoch), False)
    host.advance(100)
    assert waits.value.error_code == (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING if epoch else ErrorCode.CONCURRENT_TRANSACTIONS
    )


# -- the end of the epochs --


@pytest.mark.parametrize("commit", [True, False])
def test_last_epoch_brings_a_new_producer_id(host: TransactionHost, commit: bool) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(old, 0)
    assert given(host.end(old, commit)) == (0, FIRST_ID + 1, 0)
    assert host.markers == [(0, FIRST_ID, CLIENT_EPOCH_MAX + 1, commit, 0, 2)]
    assert (host.txn.producer_id, host.txn.epoch) == (FIRST_ID + 1, 0)
    assert given(host.end(old, commit)) == (0, FIRST_ID + 1, 0)
    assert host.end(old, not commit).error_code == STATE
    host.reload()
    assert given(host.end(old, commit)) == (0, FIRST_ID + 1, 0)
    assert host.add((FIRST_ID + 1, 0), 0) == [0]
    assert host.end(old, commit).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_epoch_before_the_last_stays_with_its_producer_id(host: TransactionHost) -> None:
    host.producer()
    producer = host.set_epoch(CLIENT_EPOCH_MAX - 1)
    host.add(producer, 0)
    assert given(host.end(producer)) == (0, FIRST_ID, CLIENT_EPOCH_MAX)


def test_last_epoch_without_a_producer_id_to_be_had_keeps_the_transaction(
    host: TransactionHost,
) -> None:
    def reject(to: object) -> None:
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    host.producer()
    for number in range(9):  # the rest of the first block
        host.producer(name=f"other{number}")
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(old, 0)
    host.rpc.responses["allocate_producer_ids"] = reject
    assert isinstance(host.send_end(old).error, WireError)
    assert host.txn.state == TransactionStatus.ONGOING


def test_first_protocol_needs_no_new_producer_id(host: TransactionHost) -> None:
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(old, 0)
    assert given(host.end(old, version=4)) == (0, -1, -1)
    assert (host.txn.producer_id, host.txn.epoch) == (FIRST_ID, CLIENT_EPOCH_MAX)


def test_transactions_are_counted(host: TransactionHost, producer: tuple[int, int]) -> None:
    def counted() -> dict[str, int]:
        return {name: count for name, count in host.counted.items() if count}

    host.add(producer, 0)
    assert counted() == {"kbroker_transactions_open": 1}
    host.end(producer)
    host.add((FIRST_ID, 1), 0)
    host.end((FIRST_ID, 1), False)
    assert counted() == {
        "kbroker_transactions_committed_total": 1,
        "kbroker_transactions_aborted_total": 1,
    }
    host.add((FIRST_ID, 2), 0)
    host.reload()
    assert counted()["kbroker_transactions_open"] == 1
    assert host.machine.transactions[ID].state == TransactionStatus.ONGOING
