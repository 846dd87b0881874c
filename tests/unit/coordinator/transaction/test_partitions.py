"""AddPartitionsToTxn, AddOffsetsToTxn, and the verification of produced batches (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.transaction_host import FIRST_ID, ID, TransactionHost, host_with_topics

from kbroker.coordinator.partitioner import OFFSETS_TOPIC, coordinator_partition
from kbroker.coordinator.transaction.state import CLIENT_EPOCH_MAX, TransactionStatus
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

pytestmark = pytest.mark.unit

AWAY = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


@pytest.fixture
def producer(host: TransactionHost) -> tuple[int, int]:
    return host.producer()


def records(host: TransactionHost) -> int:
    return sum(len(batch) for batch in host.written)


@pytest.mark.parametrize("version", range(4))
def test_first_partition_begins_the_transaction(
    host: TransactionHost, producer: tuple[int, int], version: int
) -> None:
    host.advance(5)
    assert host.add(producer, 0, 2, version=version) == [0, 0]
    assert host.txn.state == TransactionStatus.ONGOING
    assert host.txn.partitions == {("t", 0), ("t", 2)}
    assert host.txn.start_ms == host.wall_ms()


def test_later_partitions_join_it(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0)
    began_ms = host.txn.start_ms
    host.advance(5)
    host.add(producer, 1)
    assert host.txn.partitions == {("t", 0), ("t", 1)}
    assert host.txn.start_ms == began_ms


def test_known_partition_is_not_written_again(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0, 1)
    before = records(host)
    assert host.add(producer, 1) == [0]
    assert records(host) == before


def test_missing_partition_keeps_the_others_out(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    codes = host.add(producer, 0, 4)
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert host.add(producer, 0, topic="nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert host.txn.state == TransactionStatus.EMPTY


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
def test_old_epoch_is_fenced(host: TransactionHost, version: int, code: int) -> None:
    old = host.producer()
    host.producer()
    assert host.add(old, 0, version=version) == [code]
    assert host.add_offsets(old, "g", version) == code
    assert host.txn.state == TransactionStatus.EMPTY


def test_epoch_never_given_out_is_fenced(host: TransactionHost, producer: tuple[int, int]) -> None:
    assert host.add((producer[0], producer[1] + 1), 0) == [ErrorCode.PRODUCER_FENCED]


def test_wrong_producer_id_and_unknown_id_are_no_mapping(host: TransactionHost) -> None:
    assert host.add((FIRST_ID, 0), 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    host.producer()
    assert host.add((5, 0), 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_partition_while_the_last_transaction_ends_waits_for_it(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    producer = producer[0], host.end(producer).producer_epoch
    pending = host.send_add(producer, 1)
    assert not pending.done
    host.marker_code = 0
    host.advance(99)
    assert pending.done
    assert host.txn.state == TransactionStatus.ONGOING
    assert host.txn.partitions == {("t", 1)}


def test_partition_while_the_last_transaction_hangs_is_concurrent(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    producer = producer[0], host.end(producer).producer_epoch
    waits = [host.send_add(producer, 1), host.send_verify(producer, 2, True)]
    host.advance(99)
    assert not any(pending.done for pending in waits)
    host.advance(1)
    added = waits[0].value.results_by_topic_v3_and_below[0].results_by_partition[0]
    assert added.partition_error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert waits[1].value == ErrorCode.CONCURRENT_TRANSACTIONS


def test_who_is_fenced_does_not_wait_for_the_end(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer)
    assert host.add(producer, 1) == [ErrorCode.PRODUCER_FENCED]


def test_only_so_many_wait(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    producer = producer[0], host.end(producer).producer_epoch
    waits = [host.send_add(producer, 1) for _ in range(17)]
    assert [pending.done for pending in waits] == [False] * 16 + [True]


def test_reload_completes_who_waits(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    producer = producer[0], host.end(producer).producer_epoch
    pending = host.send_add(producer, 1)
    host.reload()
    assert isinstance(pending.error, WireError)
    assert pending.error.code == ErrorCode.NOT_COORDINATOR


def test_new_producer_id_begins_while_the_old_one_ends(host: TransactionHost) -> None:
    """The client has got the new id in the response to EndTxn."""
    host.producer()
    old = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(old, 0)
    host.marker_code = AWAY
    ended = host.end(old)
    assert (ended.producer_id, ended.producer_epoch) == (FIRST_ID + 1, 0)
    pending = host.send_add((FIRST_ID + 1, 0), 1)
    host.marker_code = 0
    host.advance(99)
    assert pending.done
    assert (host.txn.producer_id, host.txn.epoch) == (FIRST_ID + 1, 0)
    assert host.txn.state == TransactionStatus.ONGOING


# -- offsets --


@pytest.mark.parametrize("version", range(5))
def test_offsets_add_the_partition_of_the_group(
    host: TransactionHost, producer: tuple[int, int], version: int
) -> None:
    assert host.add_offsets(producer, "group-1", version) == 0
    partition = coordinator_partition("group-1", 5)
    assert host.txn.partitions == {(OFFSETS_TOPIC, partition)}


def test_offsets_before_their_topic_exists_name_the_partition_it_will_have() -> None:
    host = TransactionHost()
    producer = host.producer()
    assert host.add_offsets(producer, "group-1") == 0
    partition = coordinator_partition("group-1", 50)
    assert host.txn.partitions == {(OFFSETS_TOPIC, partition)}


# -- batches of other brokers --


def batched(host: TransactionHost, version: int, *rows: tuple[Any, ...]) -> dict[str, list[int]]:
    """rows: (transactional id, producer, verify only, partitions)."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction(
                transactional_id=name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                verify_only=verify_only,
                topics=[topic(name="t", partitions=list(partitions))],
            )
            for name, producer, verify_only, partitions in rows
        ]
    )
    response = host.ask(request, version)
    assert response.error_code == 0
    return {
        result.transactional_id: [
            partition.partition_error_code
            for topic in result.topic_results
            for partition in topic.results_by_partition
        ]
        for result in response.results_by_transaction
    }


def test_batch_serves_each_transaction_alone(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    other = host.producer(name="other")
    codes = batched(
        host,
        5,
        (ID, producer, False, [0, 1]),
        ("other", (other[0], 7), False, [0]),
        ("unknown", (1, 0), False, [0]),
        ("", (1, 0), False, [0]),
    )
    assert codes == {
        ID: [0, 0],
        "other": [ErrorCode.PRODUCER_FENCED],
        "unknown": [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
        "": [ErrorCode.INVALID_REQUEST],
    }
    assert host.txn.client_version == 2


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_batch_that_verifies_adds_nothing(
    host: TransactionHost, producer: tuple[int, int], version: int, code: ErrorCode
) -> None:
    host.add(producer, 0)
    assert batched(host, version, (ID, producer, True, [0, 1])) == {ID: [0, code]}
    assert host.txn.partitions == {("t", 0)}


def test_batch_does_not_wait(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    producer = producer[0], host.end(producer).producer_epoch
    code = ErrorCode.CONCURRENT_TRANSACTIONS
    assert batched(host, 5, (ID, producer, False, [0])) == {ID: [code]}


# -- verification --


def test_verify_of_an_added_partition_passes(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    before = records(host)
    assert host.verify(producer, 0) == 0
    assert host.verify(producer, 1) == ErrorCode.TRANSACTION_ABORTABLE
    assert records(host) == before


def test_verify_after_the_end_is_rejected(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0)
    host.end(producer, version=4)
    assert host.verify(producer, 0) == ErrorCode.TRANSACTION_ABORTABLE


def test_verify_of_the_second_protocol_adds_the_partition(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    assert host.verify(producer, 3, add=True) == 0
    assert host.txn.state == TransactionStatus.ONGOING
    assert host.txn.partitions == {("t", 3)}
    assert host.txn.client_version == 2


@pytest.mark.parametrize("add", [False, True])
def test_verify_of_who_may_not_write(
    host: TransactionHost, producer: tuple[int, int], add: bool
) -> None:
    host.add(producer, 0)
    assert host.verify((producer[0], 7), 0, add) == ErrorCode.PRODUCER_FENCED
    assert host.verify((7, 0), 0, add) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    unknown = host.send_verify(producer, 0, add, name="unknown")
    assert unknown.value == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert host.send_verify(producer, 0, add, name="").value == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("add", [False, True])
def test_verify_of_a_batch_sent_before_the_end_is_fenced(
    host: TransactionHost, producer: tuple[int, int], add: bool
) -> None:
    host.add(producer, 0)
    host.end(producer)
    assert host.verify(producer, 0, add) == ErrorCode.PRODUCER_FENCED
