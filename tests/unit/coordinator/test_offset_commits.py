"""OffsetCommit, TxnOffsetCommit and OffsetDelete, from their requests on."""

from __future__ import annotations

import pytest
from support.coordinators.coordinator_host import WALL_MS
from support.coordinators.offsets_host import NOTHING, FakeGroup, OffsetsHost

from kbroker.coordinator.offsets.failures import (
    commit_failure,
    fetch_failure,
    txn_commit_code,
    txn_commit_failure,
)
from kbroker.coordinator.records.offsets_topic import OffsetCommitKey, OffsetCommitValue
from kbroker.errors import ErrorCode, WireError
from kbroker.metrics.catalog import OFFSET_COMMITS, OFFSETS
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

pytestmark = pytest.mark.unit

HOUR_MS = 3_600_000


def last_record(host: OffsetsHost) -> tuple[int, OffsetCommitKey, OffsetCommitValue]:
    """Version of the value, key and value of the last record."""
    entry = host.log[-1]
    assert entry.value is not None
    key, value = host.machine.records.decode(entry.key, entry.value)
    return int.from_bytes(entry.value[:2], "big"), key, value


@pytest.mark.parametrize("version", range(11))
def test_commit_of_any_version_is_fetched_and_survives_a_reload(version: int) -> None:
    host = OffsetsHost()

    assert host.commit_offset(42, metadata="m", version=version) == ErrorCode.NONE

    assert host.fetch() == (42, -1, "m", 0)
    host.reload()
    assert host.fetch() == (42, -1, "m", 0)
    assert host.counted[OFFSET_COMMITS.name] == 1
    assert host.counted[OFFSETS.name] == 1


def test_commit_is_written_as_kafka_2_7_reads_it() -> None:
    host = OffsetsHost()

    host.commit_offset(42, partition=3, leader_epoch=7, metadata=None)

    assert last_record(host) == (
        3,
        OffsetCommitKey(group="g", topic="t", partition=3),
        OffsetCommitValue(offset=42, leader_epoch=7, metadata="", commit_timestamp=WALL_MS),
    )


def test_retention_of_the_request_becomes_an_expiry_of_its_own() -> None:
    host = OffsetsHost()

    host.commit_offset(42, version=2, retention_time_ms=HOUR_MS)

    version, _, value = last_record(host)
    assert (version, value.expire_timestamp) == (1, WALL_MS + HOUR_MS)
    assert host.offsets.store.timestamps("g", "t", 0) == (WALL_MS, WALL_MS + HOUR_MS)


def test_retention_beyond_all_time_is_cut_to_the_last_moment() -> None:
    host = OffsetsHost()

    assert host.commit_offset(42, version=4, retention_time_ms=2**63 - 1) == 0

    assert last_record(host)[2].expire_timestamp == 2**63 - 1


def test_timestamp_of_the_request_is_kept() -> None:
    host = OffsetsHost()

    host.commit_offset(42, version=1, commit_timestamp=1234)

    assert host.offsets.store.timestamps("g", "t", 0) == (1234, -1)


@pytest.mark.parametrize(
    ("topic", "partition", "version", "code"),
    [
        ("nobody", 0, 8, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 4, 8, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, 8, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nobody", 0, 10, ErrorCode.UNKNOWN_TOPIC_ID),
        ("t", 4, 10, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_commit_of_what_does_not_exist_is_rejected(
    topic: str, partition: int, version: int, code: ErrorCode
) -> None:
    host = OffsetsHost()
    if (topic, version) == ("t", 10):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # the id is known, its partition is not

    assert host.commit_offset(1, topic=topic, partition=partition, version=version) == code

    assert host.log == []


@pytest.mark.parametrize("version", [8, 10])
def test_partition_that_does_not_exist_is_unknown_whoever_commits(version: int) -> None:
    """A client that was removed from its group still has to refresh the topic."""
    host = OffsetsHost()
    host.put_group(FakeGroup(reject=ErrorCode.UNKNOWN_MEMBER_ID))
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version == 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    codes = [
        host.commit_offset(1, topic=topic, partition=partition, version=version)
        for topic, partition in [("t", 0), ("t", 4), ("nobody", 0)]
    ]

    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [ErrorCode.UNKNOWN_MEMBER_ID, missing, unknown]


def test_partition_that_does_not_exist_is_unknown_in_a_transaction() -> None:
    host = OffsetsHost()
    host.put_group(FakeGroup(reject=ErrorCode.UNKNOWN_MEMBER_ID))

    codes = [host.commit_in_transaction(1, topic=topic) for topic in ("t", "nobody")]

    assert codes == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_one_bad_partition_does_not_cost_its_neighbour() -> None:
    host = OffsetsHost(offset_metadata_max_bytes="10")
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    part(partition_index=0, committed_offset=1, committed_metadata="x" * 11),
                    part(partition_index=1, committed_offset=2, committed_metadata="x" * 10),
                ],
            )
        ],
    )

    response = host.ask(request, 8)

    assert [(p.partition_index, p.error_code) for p in response.topics[0].partitions] == [
        (0, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (1, ErrorCode.NONE),
    ]
    assert host.fetch_all() == {("t", 1): (2, -1, "x" * 10, 0)}


def test_commit_too_large_for_a_batch_is_rejected_as_a_whole() -> None:
    host = OffsetsHost(message_max_bytes="20000")
    part = OffsetCommitRequest.OffsetCommitRequestPartition
    partitions = [
        part(partition_index=i % 4, committed_offset=i, committed_metadata="x" * 4096)
        for i in range(5)
    ]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=partitions)

    response = host.ask(OffsetCommitRequest(group_id="g", topics=[topic]), 8)

    assert {p.error_code for p in response.topics[0].partitions} == {
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    }
    assert host.log == [] and host.counted[OFFSET_COMMITS.name] == 0


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_member_of_an_unknown_group_is_rejected(version: int, code: ErrorCode) -> None:
    host = OffsetsHost()

    rejected = host.commit_offset(
        1, version=version, generation_id_or_member_epoch=3, member_id="m"
    )

    assert rejected == code


def test_member_of_a_group_that_only_commits_is_unknown() -> None:
    host = OffsetsHost()
    host.commit_offset(1)

    rejected = host.commit_offset(2, generation_id_or_member_epoch=3, member_id="m")

    assert rejected == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_of_its_own_decides_who_commits() -> None:
    host = OffsetsHost()
    group = host.put_group(FakeGroup())
    values = {"generation_id_or_member_epoch": 3, "member_id": "m", "group_instance_id": "i"}

    assert host.commit_offset(1, version=8, **values) == ErrorCode.NONE
    group.reject = ErrorCode.FENCED_INSTANCE_ID
    assert host.commit_offset(2, version=8, **values) == ErrorCode.FENCED_INSTANCE_ID

    assert group.checked == [("m", "i", 3, 8, False)] * 2
    assert host.offsets.store.get("g", "t", 0) == (1, -1, "", None)


def test_transactional_commit_counts_with_its_marker() -> None:
    host = OffsetsHost()
    host.commit_offset(1)

    assert host.commit_in_transaction(5, producer_id=7, producer_epoch=3) == ErrorCode.NONE

    assert (host.log[-1].producer_id, host.log[-1].epoch) == (7, 3)
    assert host.fetch() == (1, -1, "", 0)
    host.append_marker(7, 3, commit=True)
    assert host.fetch() == (5, -1, "", 0)
    host.reload()
    assert host.fetch() == (5, -1, "", 0)


def test_transactional_commit_is_forgotten_with_an_abort() -> None:
    host = OffsetsHost()
    host.commit_in_transaction(5)

    host.append_marker(1, 0, commit=False)

    assert host.fetch() == NOTHING and not host.offsets.has_group("g")


def test_transaction_does_not_undo_a_later_commit() -> None:
    host = OffsetsHost()
    host.commit_in_transaction(5)
    host.commit_offset(9)

    host.append_marker(1, 0, commit=True)

    assert host.fetch() == (9, -1, "", 0)


def test_transactions_hold_offsets_back_side_by_side() -> None:
    host = OffsetsHost()
    host.commit_in_transaction(5, producer_id=1)
    host.commit_in_transaction(6, producer_id=2)
    host.append_marker(2, 0, commit=True)
    host.append_marker(1, 0, commit=True)

    assert host.fetch() == (6, -1, "", 0)  # the later record, not the later marker


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(-1, 0), (1, -1)])
def test_transactional_commit_without_a_producer_is_rejected(
    producer_id: int, producer_epoch: int
) -> None:
    host = OffsetsHost()

    code = host.commit_in_transaction(1, producer_id=producer_id, producer_epoch=producer_epoch)

    assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING and host.log == []


def test_transactional_commit_is_checked_by_the_group() -> None:
    host = OffsetsHost()
    values = {"generation_id": 3, "member_id": "m", "group_instance_id": "i"}
    assert host.commit_in_transaction(1, **values) == ErrorCode.ILLEGAL_GENERATION
    host.commit_offset(1)
    assert host.commit_in_transaction(1, **values) == ErrorCode.UNKNOWN_MEMBER_ID

    group = host.put_group(FakeGroup(reject=ErrorCode.STALE_MEMBER_EPOCH))

    assert host.commit_in_transaction(1, **values) == ErrorCode.ILLEGAL_GENERATION
    assert group.checked == [("m", "i", 3, 4, True)]


@pytest.mark.parametrize("version", range(6))
def test_transactional_commit_of_any_version_is_held_back(version: int) -> None:
    host = OffsetsHost()

    assert host.commit_in_transaction(5, version=version, metadata="m") == ErrorCode.NONE
    assert host.commit_in_transaction(5, version=version, partition=9) == 3

    assert host.offsets.store.pending_of("g") == {("t", 0)}


@pytest.mark.parametrize(
    ("code", "version", "sent"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.PRODUCER_FENCED, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, 3, ErrorCode.PRODUCER_FENCED),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_transactional_code_is_put_for_the_version(
    code: ErrorCode, version: int, sent: ErrorCode
) -> None:
    assert txn_commit_code(code, version) == sent


def test_failures_name_every_partition_that_was_asked() -> None:
    error = WireError(ErrorCode.NOT_COORDINATOR)
    commit = OffsetCommitRequest(
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=2)],
            )
        ]
    )
    txn = TxnOffsetCommitRequest(
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=2)
                ],
            )
        ]
    )
    fetch = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[2])],
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="h")],
    )

    for response in (
        commit_failure(commit, error),
        txn_commit_failure(txn, 3, error),
        fetch_failure(fetch, 1, error),
    ):
        partition = response.topics[0].partitions[0]
        assert response.topics[0].name == "t"
        assert (partition.partition_index, partition.error_code) == (2, error.code)
    old = fetch_failure(fetch, 2, error)
    assert (old.topics, old.error_code) == ([], error.code)
    (group,) = fetch_failure(fetch, 8, error).groups
    assert (group.group_id, group.error_code, group.topics) == ("h", error.code, [])


def test_delete_removes_an_offset_and_what_is_held_back() -> None:
    host = OffsetsHost()
    host.commit_offset(1)
    host.commit_offset(2, partition=1)
    host.commit_in_transaction(3)

    assert host.delete_offset() == ErrorCode.NONE
    host.append_marker(1, 0, commit=True)

    assert host.fetch_all() == {("t", 1): (2, -1, "", 0)}
    host.reload()
    assert host.fetch_all() == {("t", 1): (2, -1, "", 0)}


def test_delete_of_what_was_never_committed_writes_nothing() -> None:
    host = OffsetsHost()
    host.commit_offset(1)

    assert host.delete_offset(partition=1) == ErrorCode.NONE
    assert host.delete_offset(topic="nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert host.delete_offset(partition=99) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert host.delete_offset(group="nobody") == -ErrorCode.GROUP_ID_NOT_FOUND

    assert len(host.log) == 1


def test_delete_spares_topics_the_group_is_subscribed_to() -> None:
    host = OffsetsHost()
    host.commit_offset(1)
    host.commit_offset(2, topic="u")
    host.put_group(FakeGroup(is_empty=False, state="Stable", subscribed={"t"}))

    assert host.delete_offset() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert host.delete_offset(topic="u") == ErrorCode.NONE

    assert host.fetch_all() == {("t", 0): (1, -1, "", 0)}


def test_delete_is_rejected_by_members_that_are_no_consumers() -> None:
    host = OffsetsHost()
    host.put_group(FakeGroup(is_empty=False, state="Stable", protocol_type="connect"))
    assert host.delete_offset() == -ErrorCode.NON_EMPTY_GROUP

    host.put_group(FakeGroup(protocol_type="connect"))
    assert host.delete_offset() == ErrorCode.NONE
