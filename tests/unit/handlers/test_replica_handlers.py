"""AlterReplicaLogDirs, AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders."""

from __future__ import annotations

from typing import Any

import pytest
from support.network_process import NetworkProcess

from kbroker.errors import ErrorCode, WireError
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
        process.answers("alter_replica_log_dirs", lambda to, replicas: [to.index] * len(replicas))
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
        process.answers("alter_replica_log_dirs", lambda to, replicas: [code] * len(replicas))
        assert self.ask(process, 2, a={"no": [3]}) == {("no", 3): code}
        assert len(process.calls("alter_replica_log_dirs")) == 2

    def test_alter_replica_log_dirs_without_its_owner_is_not_available_now(
        self, process: NetworkProcess
    ) -> None:
        def absent(to: Address, replicas: Any) -> Any:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        process.answers("alter_replica_log_dirs", absent)
        assert self.ask(process, 2, a={"t": [0]}) == {("t", 0): ErrorCode.REPLICA_NOT_AVAILABLE}


class TestPartitionReassignments:
    @staticmethod
    def ask(process: NetworkProcess, version: int, name: str, replicas: Any) -> Any:
        cls = AlterPartitionReassignmentsRequest
        partition = cls.ReassignablePartition(partition_index=1, replicas=replicas)
        request = cls(topics=[cls.ReassignableTopic(name=name, partitions=[partition])])
        response = process.ask(request, version)
        (topic,) = response.responses
        (answered,) = topic.partitions
        assert response.error_message is None  # as in Kafka, if there is no error
        assert (answered.error_message is None) == (answered.error_code == 0)
        assert (topic.name, answered.partition_index) == (name, 1)
        return answered.error_code

    @pytest.mark.parametrize("version", range(2))
    def test_reassignment_to_what_is_is_accepted_and_all_else_rejected(
        self, process: NetworkProcess, version: int
    ) -> None:
        replicas = list(process.image.topics["t"].partitions[1].replicas)
        assert self.ask(process, version, "t", replicas) == 0
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert self.ask(process, version, "t", [99]) == invalid
        assert self.ask(process, version, "t", []) == invalid
        assert self.ask(process, version, "t", None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert self.ask(process, version, "no", [0]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_no_reassignment_is_listed(self, process: NetworkProcess) -> None:
        answered = process.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        assert (answered.error_code, answered.error_message, answered.topics) == (0, None, [])


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
    def test_partition_that_exists_needs_no_election(
        self, process: NetworkProcess, version: int
    ) -> None:
        cls = ElectLeadersRequest.TopicPartitions
        listed = [cls(topic="t", partitions=[1, 99]), cls(topic="no", partitions=[0])]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        assert self.ask(process, version, listed) == (
            0,
            {("t", 1): ErrorCode.ELECTION_NOT_NEEDED, ("t", 99): unknown, ("no", 0): unknown},
        )

    @pytest.mark.parametrize("version", range(3))
    def test_without_a_list_no_partition_is_named(
        self, process: NetworkProcess, version: int
    ) -> None:
        """As in Kafka: kafka-leader-election would print the names of ten thousand partitions."""
        assert self.ask(process, version, None) == (0, {})

    def test_unknown_type_of_election_is_rejected(self, process: NetworkProcess) -> None:
        listed = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[1])]

        invalid = ErrorCode.INVALID_REQUEST
        assert self.ask(process, 2, listed, 5) == (invalid, {("t", 1): invalid})
