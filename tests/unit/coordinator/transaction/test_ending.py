"""Markers that fail, are retried, or have no target; and the state after a crash."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.controller.controllers import resolved
from support.coordinators.transaction_host import FIRST_ID, ID, TransactionHost, host_with_topics
from support.network.network_process import FakeRpc, topic_document

from kbroker.cluster import features
from kbroker.cluster.image import ClusterImage
from kbroker.coordinator.records.transaction_topic import TransactionLogKey
from kbroker.coordinator.transaction import state
from kbroker.coordinator.transaction.markers import MarkerWriter, TransactionMarker, over
from kbroker.coordinator.transaction.state import TransactionStatus
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending, run
from kbroker.metrics.catalog import TRANSACTIONS_HANGING
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

pytestmark = pytest.mark.unit

AWAY = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


@pytest.fixture
def producer(host: TransactionHost) -> tuple[int, int]:
    return host.producer()


def slots(host: TransactionHost) -> list[int]:
    return sorted(marker[0] for marker in host.markers)


@pytest.mark.parametrize(
    "failure",
    [
        AWAY,
        int(ErrorCode.NOT_ENOUGH_REPLICAS),
        int(ErrorCode.KAFKA_STORAGE_ERROR),
        int(ErrorCode.UNKNOWN_SERVER_ERROR),
        int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        WireError(ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_marker_is_tried_until_it_is_written(
    host: TransactionHost, producer: tuple[int, int], failure: Any
) -> None:
    host.add(producer, 0, 1)
    host.marker_code = failure
    host.end(producer)
    host.advance(30_000)
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT
    host.marker_code = 0
    host.advance(1_000)
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT
    assert slots(host) == [0, 1]


def test_only_what_failed_is_tried_again(host: TransactionHost, producer: tuple[int, int]) -> None:
    asked: list[int] = []

    def reject_slot_2_once(to: Address, markers: list[list[Any]]) -> list[int]:
        asked.extend(marker[0] for marker in markers)
        return [AWAY if row[0] == 2 and asked.count(2) == 1 else 0 for row in markers]

    host.on_markers = reject_slot_2_once
    host.add(producer, 0, 1, 2)
    host.end(producer)
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT
    host.advance(20)
    assert asked == [0, 2, 1, 2]
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_marker_is_written_as_soon_as_its_partition_has_another_leader(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    """Nobody waits for the pauses between attempts, which have become long by then."""
    host.marker_code = AWAY
    host.add(producer, 0)
    host.end(producer)
    host.advance(30_000)
    host.marker_code = 0

    host.set_topics(u=topic_document(b"u" * 16, [9]))
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT
    host.set_topics(t=topic_document(b"t" * 16, [0, 1, 2, 3], leader=1))

    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT
    assert slots(host) == [0]


def test_leader_that_hears_of_it_late_is_asked_again_soon(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.marker_code = AWAY
    host.add(producer, 0)
    host.end(producer)
    host.advance(30_000)
    host.set_topics(t=topic_document(b"t" * 16, [0, 1, 2, 3], leader=1))
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT

    host.marker_code = 0
    host.advance(20)

    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]
)
def test_marker_that_can_never_be_written_does_not_hold_up_the_rest(
    host: TransactionHost, producer: tuple[int, int], code: ErrorCode
) -> None:
    host.on_markers = lambda to, markers: [code if row[0] == 0 else 0 for row in markers]
    host.add(producer, 0, 1)
    host.end(producer)
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_newer_coordinator_is_left_to_end_it(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.marker_code = int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    host.add(producer, 0)
    host.end(producer)
    calls = len(host.rpc.calls)
    host.advance(10_000)
    assert len(host.rpc.calls) == calls
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT


def test_deleted_topic_needs_no_marker(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add_topic("gone", 2)
    host.add(producer, 0, 1, topic="gone")
    host.add(producer, 3)
    host.set_topics(gone=None)
    host.end(producer)
    assert slots(host) == [3]
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_topic_deleted_while_its_marker_fails_needs_none(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer)
    host.set_topics(t=None)
    host.advance(20)
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_partition_that_is_nowhere_yet_is_waited_for(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.set_topics(t=topic_document(b"t" * 16, [-1]))
    host.add(producer, 0)
    host.end(producer)
    host.advance(5_000)
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT
    host.set_topics(t=topic_document(b"t" * 16, [7]))
    host.advance(1_000)
    assert slots(host) == [7]
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_marker_names_the_leader_epoch_of_its_coordinator(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.leader_epoch = 17
    host.add(producer, 0)
    host.end(producer)
    assert host.markers == [(0, FIRST_ID, 1, True, 17, 2)]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_reload_continues_with_the_markers(
    host: TransactionHost, producer: tuple[int, int], version: int, commit: bool
) -> None:
    host.add(producer, 0, 1)
    host.marker_code = AWAY
    host.end(producer, commit, version)
    host.reload()
    host.marker_code = 0
    host.advance(1_000)
    assert slots(host) == [0, 1]
    assert {marker[3] for marker in host.markers} == {commit}
    assert host.txn.state == (
        TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT
    )


def test_old_machine_does_nothing_after_a_reload(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.rpc.is_holding = True
    host.end(producer)
    host.reload()
    host.rpc.is_holding = False
    host.rpc.release()
    completions = [batch for batch in host.written if batch[0][1].transaction_status == 4]
    assert len(completions) == 1
    assert len(host.markers) == 2  # the same one twice


def test_completion_that_cannot_be_written_is_tried_again(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.rpc.is_holding = True
    host.end(producer)
    host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    host.rpc.is_holding = False
    host.rpc.release()
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT
    host.fail_with = None
    host.advance(20)
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_hanging_transaction_is_reported_and_counted(
    host: TransactionHost, producer: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    host.add(producer, 0, 1)
    host.marker_code = AWAY
    host.end(producer)
    host.advance(35_000)
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(lines) == 3
    assert "t-0 (NOT_LEADER_OR_FOLLOWER)" in lines[0]
    assert host.counted[TRANSACTIONS_HANGING.name] == 1
    host.marker_code = 0
    host.advance(1_000)
    assert host.counted[TRANSACTIONS_HANGING.name] == 0


def test_reload_forgets_what_hangs(host: TransactionHost, producer: tuple[int, int]) -> None:
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer)
    host.advance(15_000)
    host.reload()
    host.marker_code = 0
    host.advance(2_000)
    assert host.counted[TRANSACTIONS_HANGING.name] == 0


@pytest.mark.parametrize("status", [7, 8, -3])
def test_unknown_state_in_the_log_frees_its_partitions(
    host: TransactionHost, producer: tuple[int, int], status: int
) -> None:
    host.add(producer, 0)
    value = state.value_of(host.txn, TransactionStatus.ONGOING, 5)
    value.transaction_status = status
    host.append(TransactionLogKey(transactional_id=ID), value)
    host.reload()
    assert slots(host) == [0]
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_record_of_an_old_broker_is_read(host: TransactionHost) -> None:
    """Value version 0, written by Kafka 2.7; it has no previous producer id."""
    host.producer()
    value = state.value_of(host.txn, TransactionStatus.COMPLETE_COMMIT, 5)
    value.producer_epoch, value.previous_producer_id = 3, -1
    host.append(TransactionLogKey(transactional_id="old"), value, version=0)
    host.reload()
    txn = host.machine.transactions["old"]
    assert (txn.producer_id, txn.epoch, txn.previous_producer_id) == (FIRST_ID, 3, -1)


def test_records_of_a_cluster_can_be_read_by_an_old_broker() -> None:
    """The feature may be finalized while the coordinator serves."""
    host = host_with_topics()
    host.image.features = features.NONE
    producer = host.producer()
    host.add(producer, 0)
    host.end(producer, version=3)
    written = len(host.log)
    assert {entry.value[:2] for entry in host.log if entry.value} == {b"\0\0"}
    host.reload()
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT
    host.image.features = features.ALL
    host.add(producer, 0)
    host.end(producer, version=3)
    assert {entry.value[:2] for entry in host.log[written:] if entry.value} == {b"\0\1"}
    host.reload()
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


def test_reload_of_a_compacted_log_is_the_same(
    host: TransactionHost, producer: tuple[int, int]
) -> None:
    host.add(producer, 0)
    host.end(producer)
    host.add((FIRST_ID, 1), 2, 1)
    before = {name: getattr(host.txn, name) for name in host.txn.__slots__}
    host.compact()
    host.reload()
    after = {name: getattr(host.txn, name) for name in host.txn.__slots__}
    before["last_epoch"] = after["last_epoch"] = None
    assert before == after


# -- WriteTxnMarkers, as other brokers send it --


def serve(host: TransactionHost, request: WriteTxnMarkersRequest, version: int) -> Any:
    decoded = codec.decode_exact(type(request), version, codec.encode(request, version))
    writer = MarkerWriter(over(host.rpc), lambda: host.image, host.io_worker)
    outcome = run(writer.serve(decoded))
    assert outcome.error is None
    coded = codec.encode(outcome.value, version)
    return codec.decode_exact(WriteTxnMarkersResponse, version, coded)


def marker(producer_id: int, topics: dict[str, list[int]], commit: bool = True) -> Any:
    made = WriteTxnMarkersRequest.WritableTxnMarker
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic
    return made(
        producer_id=producer_id,
        producer_epoch=3,
        transaction_result=commit,
        topics=[topic(name=name, partition_indexes=ids) for name, ids in topics.items()],
        coordinator_epoch=9,
        transaction_version=2,
    )


@pytest.mark.parametrize("version", range(*ApiKey.WRITE_TXN_MARKERS.versions))
def test_write_txn_markers_writes_each(host: TransactionHost, version: int) -> None:
    request = WriteTxnMarkersRequest(
        markers=[marker(5, {"t": [0, 1]}), marker(6, {"t": [1], "nowhere": [0]}, False)]
    )
    response = serve(host, request, version)
    protocol = 2 if version >= 2 else 0
    assert sorted(host.markers) == [
        (0, 5, 3, True, 9, protocol),
        (1, 5, 3, True, 9, protocol),
        (1, 6, 3, False, 9, protocol),
    ]
    assert {
        result.producer_id: [
            (topic.name, partition.partition_index, partition.error_code)
            for topic in result.topics
            for partition in topic.partitions
        ]
        for result in response.markers
    } == {5: [("t", 0, 0), ("t", 1, 0)], 6: [("t", 1, 0), ("nowhere", 0, 3)]}


def test_write_txn_markers_returns_failures_by_partition(host: TransactionHost) -> None:
    def fail_worker_1(to: Address, markers: list[list[Any]]) -> list[int]:
        if to.index == 1:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return [int(ErrorCode.INVALID_PRODUCER_EPOCH)] * len(markers)

    host.on_markers = fail_worker_1
    response = serve(host, WriteTxnMarkersRequest(markers=[marker(5, {"t": [0, 1]})]), 1)
    codes = [p.error_code for p in response.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_write_txn_markers_with_nothing_to_write(host: TransactionHost) -> None:
    assert serve(host, WriteTxnMarkersRequest(markers=[]), 1).markers == []


class Others:
    """Other brokers, which write all markers. ``code``: their error code."""

    broker_id = 0

    def __init__(self) -> None:
        self.code = 0
        self.written: list[tuple[int, Any]] = []

    def write(self, broker_id: int, wanted: Any) -> Pending[list[int]]:
        self.written += [(broker_id, partition) for partition, _ in wanted]
        return resolved([self.code] * len(wanted))


def test_markers_of_partitions_that_others_lead_are_written_by_them() -> None:
    rpc, others = FakeRpc(), Others()
    rpc.responses["write_markers"] = lambda to, markers: [0] * len(markers)
    image = ClusterImage()
    image.apply(
        {
            "version": 1,
            "topics": {
                "here": topic_document(b"h" * 16, [3]),
                "there": topic_document(b"t" * 16, [-1, 5], leader=2),
                "nowhere": topic_document(b"n" * 16, [-1], leader=-1),
                "coming": topic_document(b"c" * 16, [-1]),
            },
        }
    )
    writer = MarkerWriter(
        over(rpc), lambda: image, lambda slot: Address(ProcessKind.IO_WORKER, 0), others
    )
    marker = TransactionMarker(7, 3, True, 9, 0)
    names = [("there", 0), ("here", 0), ("nowhere", 0), ("there", 1), ("gone", 0), ("coming", 0)]

    codes = run(writer.write([(partition, marker) for partition in names])).value

    gone = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert codes == [0, 0, AWAY, 0, gone, AWAY]
    assert others.written == [(2, ("there", 0)), (2, ("there", 1))]
    others.code = AWAY
    assert run(writer.write([(("there", 0), marker)])).value == [AWAY]
