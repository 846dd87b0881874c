"""DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs, DescribeProducers, and Produce 0 to 2."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess
from support.security.authorizers import Rules

from kbroker._ext.shared.partition_table import FOLLOWER, NO_ROLE, OFFLINE
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import now_ms
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest
from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.describe_producers import DescribeProducersRequest
from kbroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kbroker.security.operations import AclOperation

pytestmark = pytest.mark.unit


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic("t", b"t" * 16, [2, 3], leader_epoch=4)
    process.put_log(2, 5, 20, epochs=(4, 17, 3))
    process.put_log(3, 0, 10, epochs=(4, 8, 3))
    return process


class TestDeleteRecords:
    @staticmethod
    def ask(
        process: NetworkProcess, version: int, *asked: tuple[int, int], topic: str = "t"
    ) -> list[tuple[int, int]]:
        """asked: (partition, offset); returns (error code, low watermark)."""
        partition = DeleteRecordsRequest.DeleteRecordsPartition
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[partition(partition_index=n, offset=o) for n, o in asked],
                )
            ],
            timeout_ms=1000,
        )
        (answered,) = process.ask(request, version).topics
        assert answered.name == topic
        assert [p.partition_index for p in answered.partitions] == [n for n, _ in asked]
        return [(p.error_code, p.low_watermark) for p in answered.partitions]

    @pytest.mark.parametrize("version", range(3))
    def test_delete_records_tells_the_owner_and_returns_the_low_watermark(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_each_response(
            "delete_records", lambda to, slot, offset: {"low_watermark": max(offset, 5)}
        )
        answered = self.ask(process, version, (0, 7), (1, -1), (0, 3))
        assert answered == [(0, 7), (0, 10), (0, 5)]
        assert process.asked("delete_records") == [(2, 7), (2, 3), (3, 10)]
        assert process.rpc.calls[0][0] == Address(ProcessKind.IO_WORKER, 0)
        assert process.rpc.calls[1][0] == Address(ProcessKind.IO_WORKER, 1)

    def test_delete_records_waits_for_followers_that_are_behind(
        self, process: NetworkProcess
    ) -> None:
        process.set_each_response("delete_records", lambda to, slot, offset: {"low_watermark": 4})
        process.set_each_response(
            "await_deletion", lambda to, slot, offset, until_ms: {"low_watermark": offset + 1}
        )

        assert self.ask(process, 1, (0, 7), (1, -1), (0, 4)) == [(0, 8), (0, 11), (0, 4)]

        waited = process.asked("await_deletion")
        assert [(slot, offset) for slot, offset, _ in waited] == [(2, 7), (3, 10)]
        assert 0 < waited[0][2] - now_ms() <= 1000

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ErrorCode.REQUEST_TIMED_OUT, (ErrorCode.REQUEST_TIMED_OUT, 4)),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)),
            (ErrorCode.COORDINATOR_NOT_AVAILABLE, (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)),
        ],
    )
    def test_delete_records_that_followers_have_not_done_in_time_has_the_low_watermark_of_before(
        self, process: NetworkProcess, error: ErrorCode, expected: tuple[int, int]
    ) -> None:
        def fail(*_: Any) -> Any:
            raise WireError(error)

        process.set_each_response("delete_records", lambda to, slot, offset: {"low_watermark": 4})
        process.set_each_response("await_deletion", fail)
        assert self.ask(process, 1, (0, 7)) == [expected]

    @pytest.mark.parametrize("offset", [21, -2, 1 << 62])
    def test_delete_records_outside_the_log_is_out_of_range(
        self, process: NetworkProcess, offset: int
    ) -> None:
        assert self.ask(process, 1, (0, offset)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert process.rpc.calls == []

    def test_delete_records_of_unknown_internal_or_compacted_topics_is_rejected(
        self, process: NetworkProcess
    ) -> None:
        process.add_topic("__consumer_offsets", b"o" * 16, [4], internal=True)
        process.add_topic("compacted", b"c" * 16, [5], config={"cleanup.policy": "compact"})
        process.put_log(4, 0, 10)
        process.put_log(5, 0, 10)
        internal = self.ask(process, 1, (0, 5), topic="__consumer_offsets")
        assert internal == [(ErrorCode.INVALID_TOPIC_EXCEPTION, -1)]
        assert self.ask(process, 1, (0, 5), topic="compacted") == [(ErrorCode.POLICY_VIOLATION, -1)]
        unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert self.ask(process, 1, (0, 5), topic="no") == [unknown]
        assert self.ask(process, 1, (9, 5)) == [unknown]

    def test_delete_records_failures_stay_with_their_partition(
        self, process: NetworkProcess
    ) -> None:
        def only_io_1(to: Address, slot: int, offset: int) -> Any:
            if to.index == 0:
                raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return {"low_watermark": offset}

        process.set_each_response("delete_records", only_io_1)
        assert self.ask(process, 1, (0, 7), (1, 7)) == [
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
            (0, 7),
        ]
        process.table.set_state(2, OFFLINE)
        assert self.ask(process, 1, (0, 7)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]


class TestOffsetForLeaderEpoch:
    @staticmethod
    def ask(
        process: NetworkProcess,
        version: int,
        number: int,
        current_epoch: int = -1,
        leader_epoch: int = 2,
    ) -> Any:
        request = OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic="t",
                    partitions=[
                        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                            partition=number,
                            current_leader_epoch=current_epoch,
                            leader_epoch=leader_epoch,
                        )
                    ],
                )
            ]
        )
        (topic,) = process.ask(request, version).topics
        assert topic.topic == "t"
        (partition,) = topic.partitions
        assert partition.partition == number
        return partition

    @pytest.mark.parametrize("version", range(5))
    def test_offset_for_leader_epoch_is_the_owners_result(
        self, process: NetworkProcess, version: int
    ) -> None:
        answer = {"leader_epoch": 2, "end_offset": 13}
        process.set_each_response("offset_for_leader_epoch", lambda to, *args: answer)
        found = self.ask(process, version, 1)
        assert (found.error_code, found.end_offset) == (0, 13)
        assert found.leader_epoch == (2 if version >= 1 else -1)
        assert process.asked("offset_for_leader_epoch") == [(3, 2, False)]

    @pytest.mark.parametrize(
        ("asked", "answered"), [(4, (4, 20)), (3, (3, 17)), (5, (-1, -1)), (-1, (-1, -1))]
    )
    def test_offset_for_leader_epoch_of_the_last_two_is_in_the_slot(
        self, process: NetworkProcess, asked: int, answered: tuple[int, int]
    ) -> None:
        """Consumers that start at a committed offset ask for it; the owner is spared the call."""
        found = self.ask(process, 4, 0, leader_epoch=asked)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, *answered)
        assert process.rpc.calls == []

    @pytest.mark.parametrize("version", [2, 3, 4])
    @pytest.mark.parametrize(
        ("epoch", "code"), [(3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)]
    )
    def test_offset_for_leader_epoch_fences_the_current_epoch(
        self, process: NetworkProcess, version: int, epoch: int, code: int
    ) -> None:
        found = self.ask(process, version, 0, epoch)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (code, -1, -1)

    def test_offset_for_leader_epoch_unknown_partition_and_absent_owner(
        self, process: NetworkProcess
    ) -> None:
        def away(to: Any, **args: Any) -> Any:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        process.set_response("offset_for_leader_epoch", away)
        assert self.ask(process, 4, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self.ask(process, 4, 2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestDescribeLogDirs:
    @staticmethod
    def described(path: str, *logs: tuple[str, int, int], error: str | None = None) -> Any:
        return {
            "path": path,
            "error": error,
            "total_bytes": 1000,
            "usable_bytes": 400,
            "cordoned": path == "/b",
            "logs": [{"topic": t, "partition": p, "size": s} for t, p, s in logs],
        }

    @pytest.fixture
    def process(self) -> NetworkProcess:
        process = NetworkProcess()
        answers = [
            [self.described("/a", ("t", 0, 10), ("u", 0, 1)), self.described("/b")],
            [self.described("/a", ("t", 1, 20)), self.described("/b", error="disk on fire")],
        ]
        process.set_response("describe_log_dirs", lambda to, topics: answers[to.index])
        return process

    @pytest.mark.parametrize("version", range(6))
    def test_describe_log_dirs_joins_the_io_workers(
        self, process: NetworkProcess, version: int
    ) -> None:
        response = process.ask(DescribeLogDirsRequest(topics=None), version)
        assert response.error_code == 0
        first, second = response.results
        assert (first.log_dir, first.error_code) == ("/a", 0)
        sizes = {
            topic.name: {p.partition_index: p.partition_size for p in topic.partitions}
            for topic in first.topics
        }
        assert sizes == {"t": {0: 10, 1: 20}, "u": {0: 1}}
        assert (second.log_dir, second.error_code) == ("/b", ErrorCode.KAFKA_STORAGE_ERROR)
        expected = (1000, 400) if version >= 4 else (-1, -1)
        assert (first.total_bytes, first.usable_bytes) == expected
        assert (first.is_cordoned, second.is_cordoned) == (False, version >= 5)

    @pytest.mark.parametrize("version", range(2, 6))
    def test_totals_alone_are_the_sums_of_the_io_workers(
        self, process: NetworkProcess, version: int
    ) -> None:
        """Rows of ten thousand replicas took longer than the page that wants their sum."""
        asked: list[Any] = []
        totals = [{"count": 2, "size": 11}, {"count": 1, "size": 20}]

        def answer(to: Address, topics: None, **asked_for: Any) -> list[Any]:
            asked.append(asked_for["totals"])
            error = "disk on fire" if to.index else None
            return [
                self.described("/a") | totals[to.index],
                self.described("/b", error=error) | {"count": 0, "size": 0},
            ]

        process.set_response("describe_log_dirs", answer)
        request = DescribeLogDirsRequest(topics=None, only_totals=True)

        first, second = process.ask(request, version).results

        assert asked == [True, True]
        assert (first.replica_count, first.replica_bytes, first.topics) == (3, 31, [])
        assert (second.replica_count, second.replica_bytes) == (-1, -1)

    @pytest.mark.parametrize("version", range(6))
    def test_describe_log_dirs_tells_future_replicas_apart(
        self, process: NetworkProcess, version: int
    ) -> None:
        described = self.described("/a", ("t", 0, 10))
        future = {"topic": "t", "partition": 1, "size": 4, "lag": 7, "future": True}
        described["logs"].append(future)
        process.set_response("describe_log_dirs", lambda to, topics: [described])
        (answered,) = process.ask(DescribeLogDirsRequest(topics=None), version).results
        found = [
            (p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
            for topic in answered.topics
            for p in topic.partitions
        ]
        assert found[:2] == [(0, 10, 0, False), (1, 4, 7, True)]

    def test_describe_log_dirs_asks_for_the_wanted_partitions_only(
        self, process: NetworkProcess
    ) -> None:
        """Of 10,000 partitions, an io worker describes those of a topic."""
        topic = DescribeLogDirsRequest.DescribableLogDirTopic
        rows = [topic(topic="t", partitions=[1, 7]), topic(topic="t", partitions=[2])]
        for asked, topics in ((rows, {"t": [1, 7, 2]}), ([], {}), (None, None)):
            process.ask(DescribeLogDirsRequest(topics=asked), 4)
            calls = process.calls("describe_log_dirs")[-2:]
            assert [call["topics"] for call in calls] == [topics, topics]


class TestDescribeProducers:
    PRODUCER = {
        "producer_id": 7,
        "producer_epoch": 2,
        "last_sequence": 41,
        "last_timestamp": 1000,
        "coordinator_epoch": 5,
        "current_txn_start_offset": 12,
    }

    def late(self, topic: str, partition: int) -> Any:
        return {"topic": topic, "partition": partition, "producers": [self.PRODUCER]}

    @staticmethod
    def ask(process: NetworkProcess, topic: str, *numbers: int) -> list[Any]:
        wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=list(numbers))
        (answered,) = process.ask(DescribeProducersRequest(topics=[wanted]), 0).topics
        assert answered.name == topic
        assert [p.partition_index for p in answered.partitions] == list(numbers)
        return list(answered.partitions)

    def test_describe_producers_tells_what_the_owners_remember(
        self, process: NetworkProcess
    ) -> None:
        answers = {2: [self.PRODUCER], 3: []}
        process.set_each_response(
            "describe_producers", lambda to, slot: {"producers": answers[slot]}
        )

        first, second = self.ask(process, "t", 0, 1)

        assert (first.error_code, second.error_code) == (0, 0)
        (producer,) = first.active_producers
        assert {key: getattr(producer, key) for key in self.PRODUCER} == self.PRODUCER
        assert second.active_producers == []

    def test_describe_producers_failures_stay_with_their_partition(
        self, process: NetworkProcess
    ) -> None:
        process.put_log(2, 0, 0, state=OFFLINE)
        process.set_each_response("describe_producers", lambda to, slot: {"producers": []})

        offline, known, unknown = self.ask(process, "t", 0, 1, 9)

        assert offline.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert known.error_code == 0
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.error_message

    def test_describe_producers_is_answered_by_followers_and_not_without_a_replica(
        self, process: NetworkProcess
    ) -> None:
        """Kafka's tool asks each broker for all its replicas, to find hanging transactions."""
        process.put_log(2, 0, 0, role=FOLLOWER)
        process.put_log(3, 0, 0, role=NO_ROLE)
        process.set_each_response(
            "describe_producers", lambda to, slot: {"producers": [self.PRODUCER]}
        )

        followed, foreign = self.ask(process, "t", 0, 1)

        assert (followed.error_code, len(followed.active_producers)) == (0, 1)
        assert foreign.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_describe_producers_of_many_partitions_takes_few_calls(
        self, process: NetworkProcess
    ) -> None:
        """A call for each would fill the owners' queues; a single call would have a very long
        result.
        """
        process.set_each_response("describe_producers", lambda to, slot: {"producers": []})

        process.add_topic("wide", b"w" * 16, [2, 3] * 25)

        answered = self.ask(process, "wide", *range(50))

        assert all(partition.error_code == 0 for partition in answered)
        sizes = [len(call["asked"]) for call in process.calls("describe_producers")]
        assert sizes == [10, 10, 5, 10, 10, 5]

    def test_describe_producers_of_a_partition_that_is_named_again_is_in_the_response_once(
        self, process: NetworkProcess
    ) -> None:
        """Naming a partition takes four bytes, and the response has thousands of producers."""
        process.set_each_response("describe_producers", lambda to, slot: {"producers": []})
        wanted = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[1, 0, 1, 1])

        (answered,) = process.ask(DescribeProducersRequest(topics=[wanted, wanted]), 0).topics

        assert [partition.partition_index for partition in answered.partitions] == [1, 0]
        assert sorted(process.asked("describe_producers")) == [(2,), (3,)]

    def test_late_transactions_take_one_call_to_each_owner(self, process: NetworkProcess) -> None:
        """Ten thousand partitions of which nothing is open took a row each."""
        process.add_topic("wide", b"w" * 16, [2, 3] * 25)
        rows = {
            0: [self.late("wide", 4), self.late("t", 0)],
            1: [self.late("wide", 7)],
        }
        process.set_response("late_transactions", lambda to, before_ms: rows[to.index])

        answered = process.ask(DescribeProducersRequest(late_before=900), 0)

        assert [call["before_ms"] for call in process.calls("late_transactions")] == [900, 900]
        assert process.calls("describe_producers") == []
        assert answered.only_late
        assert {
            topic.name: [row.partition_index for row in topic.partitions]
            for topic in answered.topics
        } == {"wide": [4, 7], "t": [0]}
        (producer,) = answered.topics[0].partitions[0].active_producers
        assert {key: getattr(producer, key) for key in self.PRODUCER} == self.PRODUCER

    def test_late_transactions_in_topics_that_may_not_be_read_are_errors_or_unseen(
        self, process: NetworkProcess
    ) -> None:
        """None would be taken for none that hangs."""
        seen = {"t": AclOperation.READ, "closed": AclOperation.DESCRIBE}
        process.follow(Rules(lambda operation, kind, name: seen.get(name) == operation))
        late = [self.late(name, 0) for name in ("closed", "t", "hidden")]
        process.set_response("late_transactions", lambda to, before_ms: late[to.index :: 2])

        answered = process.ask(DescribeProducersRequest(late_before=900), 0)

        assert {
            topic.name: [(row.error_code, len(row.active_producers)) for row in topic.partitions]
            for topic in answered.topics
        } == {"t": [(0, 1)], "closed": [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)]}

    def test_late_transactions_of_a_broker_that_cannot_say_are_not_none(
        self, process: NetworkProcess
    ) -> None:
        """Whoever asks sees that it is no answer to that question, as of Kafka's brokers."""

        def opening(to: Address, before_ms: int) -> Any:
            if to.index:
                raise WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return [self.late("t", 0)]

        process.set_response("late_transactions", opening)

        answered = process.ask(DescribeProducersRequest(late_before=900), 0)

        assert (answered.topics, answered.only_late) == ([], False)
