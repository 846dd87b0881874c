"""AlterReplicaLogDirs, AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ALTER_REASSIGNMENTS
from kbroker.ipc.process_table import Address
from kbroker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from kbroker.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from kbroker.protocol.messages.elect_leaders import ElectLeadersRequest
from kbroker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic("t", b"t" * 16, [2, 3])
    return process


def not_controller(to: Address, **_: Any) -> Any:
    raise WireError(ErrorCode.NOT_CONTROLLER)


class TestAlterReplicaLogDirs:
    @staticmethod
    def ask(process: NetworkProcess, version: int, **where: dict[str, list[int]]) -> Any:
        cls = AlterReplicaLogDirsRequest
        topic = cls.AlterReplicaLogDirTopic
        request = cls(
            dirs=[
                cls.AlterReplicaLogDir(
                    path=f"/{path}",
                    topics=[topic(name=n, partitions=numbers) for n, numbers in topics.items()],
                )
                for path, topics in where.items()
            ]
        )
        return {
            (answered.topic_name, p.partition_index): p.error_code
            for answered in process.ask(request, version).results
            for p in answered.partitions
        }

    @pytest.mark.parametrize("version", range(3))
    def test_alter_replica_log_dirs_asks_the_owners(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response(
            "alter_replica_log_dirs", lambda to, replicas: [to.index] * len(replicas)
        )
        answered = self.ask(process, version, a={"t": [0]}, b={"t": [1]})
        assert answered == {("t", 0): 0, ("t", 1): 1}
        assert process.calls("alter_replica_log_dirs") == [
            {"replicas": [["t", 0, 2, "/a"]]},
            {"replicas": [["t", 1, 3, "/b"]]},
        ]

    def test_alter_replica_log_dirs_of_an_unknown_partition_tells_every_io_worker(
        self, process: NetworkProcess
    ) -> None:
        code = int(ErrorCode.REPLICA_NOT_AVAILABLE)
        process.set_response("alter_replica_log_dirs", lambda to, replicas: [code] * len(replicas))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.ask(process, 2, a={"no": [3], "t": [9]}) == {
            ("no", 3): unknown,
            ("t", 9): unknown,
        }
        assert len(process.calls("alter_replica_log_dirs")) == 2

    def test_alter_replica_log_dirs_without_its_owner_is_not_available_now(
        self, process: NetworkProcess
    ) -> None:
        def absent(to: Address, replicas: Any) -> Any:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        process.set_response("alter_replica_log_dirs", absent)
        assert self.ask(process, 2, a={"t": [0]}) == {("t", 0): ErrorCode.REPLICA_NOT_AVAILABLE}


class TestPartitionReassignments:
    @staticmethod
    def ask(process: NetworkProcess, version: int, replicas: dict[int, Any]) -> Any:
        cls = AlterPartitionReassignmentsRequest
        rows = [
            cls.ReassignablePartition(partition_index=number, replicas=row)
            for number, row in replicas.items()
        ]
        return process.ask(cls(topics=[cls.ReassignableTopic(name="t", partitions=rows)]), version)

    @pytest.mark.parametrize("version", range(2))
    def test_controller_is_asked_and_its_results_are_given(
        self, process: NetworkProcess, version: int
    ) -> None:
        results = [["t", 1, 0, None], ["t", 0, int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS), "no"]]
        process.set_response("alter_reassignments", lambda to, **_: results)
        response = self.ask(process, version, {1: [1, 2], 0: None})
        assert process.calls("alter_reassignments") == [
            {"partitions": [["t", 1, [1, 2]], ["t", 0, None]]}
        ]
        (topic,) = response.responses
        assert (response.error_code, response.error_message) == (0, None)
        assert [(p.partition_index, p.error_code, p.error_message) for p in topic.partitions] == [
            (1, 0, None),
            (0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no"),
        ]

    @pytest.mark.parametrize(
        ("timeout_ms", "deadline_ms"),
        [(0, ALTER_REASSIGNMENTS.deadline_ms), (-1, ALTER_REASSIGNMENTS.deadline_ms),
         (1, 1_000), (60_000, 60_000)],
    )  # fmt: skip
    def test_a_timeout_of_zero_is_no_bound(
        self, process: NetworkProcess, timeout_ms: int, deadline_ms: int
    ) -> None:
        """kafka-go sends it: it got REQUEST_TIMED_OUT, and the move was made."""
        process.set_response("alter_reassignments", lambda to, **_: [])
        process.set_response("list_reassignments", lambda to, **_: [])

        process.ask(AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms), 1)
        process.ask(ListPartitionReassignmentsRequest(timeout_ms=timeout_ms), 0)

        deadlines = [deadline for _, name, deadline, _ in process.rpc.calls if "reassign" in name]
        assert deadlines == [deadline_ms] * 2

    def test_other_brokers_name_no_partition(self, process: NetworkProcess) -> None:
        """A client asks for the controller then."""
        process.set_response("alter_reassignments", not_controller)
        response = self.ask(process, 1, {1: [1, 2]})
        assert (response.error_code, response.responses) == (ErrorCode.NOT_CONTROLLER, [])

    @pytest.mark.parametrize("named", [True, False])
    def test_reassignments_are_listed_by_topic(self, process: NetworkProcess, named: bool) -> None:
        rows = [["t", 1, [1, 2], [1], [2]], ["t", 0, [3], [], [3]]]
        process.set_response("list_reassignments", lambda to, **_: rows)
        cls = ListPartitionReassignmentsRequest
        topic = cls.ListPartitionReassignmentsTopics(name="t", partition_indexes=[1, 0])
        response = process.ask(cls(topics=[topic] if named else None), 0)
        asked = [["t", 1], ["t", 0]] if named else None
        assert process.calls("list_reassignments") == [{"partitions": asked}]
        (listed,) = response.topics
        assert [
            [listed.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas]
            for p in listed.partitions
        ] == rows


class TestElectLeaders:
    @staticmethod
    def ask(process: NetworkProcess, version: int, listed: Any, election_type: int = 0) -> Any:
        request = ElectLeadersRequest(topic_partitions=listed)
        if version:
            request.election_type = election_type
        answered = process.ask(request, version)
        return answered.error_code, {
            (topic.topic, part.partition_id): part.error_code
            for topic in answered.replica_election_results
            for part in topic.partition_result
        }

    @pytest.mark.parametrize("version", range(3))
    def test_controller_elects_and_its_results_are_given(
        self, process: NetworkProcess, version: int
    ) -> None:
        needless = int(ErrorCode.ELECTION_NOT_NEEDED)
        results = [["t", 1, needless, "no"], ["t", 0, 0, None]]
        process.set_response("elect_leaders", lambda to, **_: results)
        listed = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[1, 0])]
        unclean = version > 0
        assert self.ask(process, version, listed, int(unclean)) == (
            0,
            {("t", 1): needless, ("t", 0): 0},
        )
        assert process.calls("elect_leaders") == [
            {"unclean": unclean, "partitions": [["t", 1], ["t", 0]], "within_ms": 60_000}
        ]

    def test_without_a_list_the_controller_elects_for_all(self, process: NetworkProcess) -> None:
        process.set_response("elect_leaders", lambda to, **_: [])
        assert self.ask(process, 2, None) == (0, {})
        assert process.calls("elect_leaders")[0]["partitions"] is None

    def test_other_brokers_name_the_error_of_each_partition(self, process: NetworkProcess) -> None:
        process.set_response("elect_leaders", not_controller)
        listed = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[1])]
        code = ErrorCode.NOT_CONTROLLER
        assert self.ask(process, 2, listed) == (code, {("t", 1): code})

    def test_unknown_type_of_election_is_rejected(self, process: NetworkProcess) -> None:
        listed = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[1])]

        invalid = ErrorCode.INVALID_REQUEST
        assert self.ask(process, 2, listed, 5) == (invalid, {("t", 1): invalid})
