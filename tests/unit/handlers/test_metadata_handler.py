from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess, topic_document

from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.unit

T_ID, U_ID, NO_ID = b"t" * 16, b"u" * 16, bytes(16)
NO_OPERATIONS = -0x80000000


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic("t", T_ID, [0, 1])
    process.add_topic("__consumer_offsets", U_ID, [2], internal=True)
    return process


def by_name(*names: str | None, **options: Any) -> MetadataRequest:
    entry = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=[entry(name=name) for name in names], **options)


def names(response: Any) -> list[str]:
    return [topic.name for topic in response.topics]


@pytest.mark.parametrize("version", range(14))
def test_metadata_all_topics_in_every_version(process: NetworkProcess, version: int) -> None:
    response = process.ask(MetadataRequest(topics=None if version else []), version)
    assert names(response) == ["t", "__consumer_offsets"]
    topic = response.topics[0]
    assert topic.error_code == 0
    assert topic.topic_id == (T_ID if version >= 10 else NO_ID)
    assert [p.partition_index for p in topic.partitions] == [0, 1]
    partition = topic.partitions[0]
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, [0], [0])
    assert partition.leader_epoch == (0 if version >= 7 else -1)
    assert response.topics[1].is_internal == (version >= 1)
    assert response.cluster_id == ("cluster-1" if version >= 2 else None)
    assert response.controller_id == (0 if version >= 1 else -1)
    broker = response.brokers[0]
    assert (broker.node_id, broker.host, broker.port) == (0, "192.0.2.7", 9092)
    assert broker.rack == ("r1" if version >= 1 else None)


@pytest.mark.parametrize("version", [1, 4, 9, 13])
def test_metadata_empty_list_asks_for_no_topics(process: NetworkProcess, version: int) -> None:
    assert process.ask(MetadataRequest(topics=[]), version).topics == []


def test_metadata_advertises_the_address_of_the_listener_the_client_used(
    process: NetworkProcess,
) -> None:
    process.connection.listener = 1
    broker = process.ask(by_name("t"), 12).brokers[0]
    assert (broker.host, broker.port) == ("broker.example.org", 19093)


def test_metadata_leader_without_this_listener_is_listener_not_found(
    process: NetworkProcess,
) -> None:
    process.apply(brokers={"0": {"endpoints": [["OTHER", "h", 1, "PLAINTEXT"]], "rack": None}})
    response = process.ask(by_name("t"), 12)
    assert response.brokers == []
    found = [(p.error_code, p.leader_id) for p in response.topics[0].partitions]
    assert found == [(ErrorCode.LISTENER_NOT_FOUND, -1)] * 2
    old = process.ask(by_name("t"), 5).topics[0].partitions[0]
    assert old.error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_metadata_partition_without_leader_is_leader_not_available(process: NetworkProcess) -> None:
    process.add_topic("lost", b"l" * 16, [3], leader=-1)
    process.add_topic("gone", b"g" * 16, [4], leader=7)
    response = process.ask(by_name("lost", "gone"), 12)
    for topic in response.topics:
        assert topic.error_code == 0
        assert topic.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        # A broker that is not in the response: kafka-python's producer fails with it for good.
        assert topic.partitions[0].leader_id == -1


def test_metadata_offline_replicas_are_on_dead_brokers_and_in_failed_directories(
    process: NetworkProcess,
) -> None:
    """Broker 0 lives, but the controller knows that its log directory has failed."""
    document = topic_document(b"o" * 16, [5, 6])
    first, second = (one._replace(replicas=[0, 9]) for one in document["partitions"])
    document["partitions"] = [first, second._replace(offline=[0, 9])]
    process.apply(topics={"off": document})
    partitions = process.ask(by_name("off"), 12).topics[0].partitions
    assert [partition.offline_replicas for partition in partitions] == [[9], [0, 9]]


def test_metadata_operations_only_when_asked(process: NetworkProcess) -> None:
    silent = process.ask(by_name("t"), 10)
    assert silent.topics[0].topic_authorized_operations == NO_OPERATIONS
    assert silent.cluster_authorized_operations == NO_OPERATIONS
    request = by_name(
        "t", include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    told = process.ask(request, 10)
    assert told.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert told.cluster_authorized_operations == 0b1_1111_1010_0000


class TestAutoCreation:
    @staticmethod
    def create(process: NetworkProcess) -> None:
        def create_topics(to: Any, topics: list[Any], auto: bool, **args: Any) -> list[Any]:
            assert auto
            for number, topic in enumerate(topics):
                process.apply(
                    topics={topic["name"]: topic_document(b"n" * 15 + bytes([number]), [5])}
                )
            return [{"name": topic["name"], "error": 0, "message": None} for topic in topics]

        process.set_response("create_topics", create_topics)

    @pytest.mark.parametrize("version", range(14))
    def test_metadata_missing_topic_is_created_and_returned_finished(
        self, process: NetworkProcess, version: int
    ) -> None:
        self.create(process)
        topic = process.ask(by_name("new"), version).topics[0]
        assert (topic.name, topic.error_code, len(topic.partitions)) == ("new", 0, 1)
        assert process.calls("create_topics") == [
            {"topics": [{"name": "new"}], "auto": True, "within_ms": 10_000}
        ]

    def test_metadata_topic_that_is_created_and_not_known_here_yet_has_no_leader(
        self, process: NetworkProcess
    ) -> None:
        """Another broker is the controller, which will elect leaders soon."""
        process.set_response("create_topics", lambda to, topics, **args: [{"name": "new"}])
        topic = process.ask(by_name("new"), 9).topics[0]
        assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE

    def test_metadata_topic_that_was_just_deleted_is_gone_and_recreated_later(
        self, process: NetworkProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """kafka-go's tests delete a topic and request it at once; it existed again."""
        process.set_response("create_topics", lambda to, topics, **args: [])
        process.apply(topics={"t": None})
        assert process.ask(by_name("t"), 9).topics[0].error_code == 3
        assert [call["topics"] for call in process.calls("create_topics")] == [[{"name": "t"}]]
        self.create(process)
        monkeypatch.setattr("kbroker.handlers.metadata.JUST_DELETED_S", 0.0)
        assert process.ask(by_name("t"), 9).topics[0].error_code == 0

    @pytest.mark.parametrize("version", [4, 13])
    def test_metadata_request_that_forbids_creation_gets_unknown_topic(
        self, process: NetworkProcess, version: int
    ) -> None:
        request = by_name("new", allow_auto_topic_creation=False)
        topic = process.ask(request, version).topics[0]
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert process.rpc.calls == []

    def test_metadata_broker_that_forbids_creation_says_unknown_topic(self) -> None:
        process = NetworkProcess(auto_create_topics_enable="false")
        topic = process.ask(by_name("new"), 1).topics[0]
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert process.rpc.calls == []

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b"])
    def test_metadata_illegal_name_is_invalid_topic_and_never_created(
        self, process: NetworkProcess, name: str
    ) -> None:
        topic = process.ask(by_name(name), 4).topics[0]
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert process.rpc.calls == []

    def test_metadata_controller_away_is_leader_not_available(
        self, process: NetworkProcess
    ) -> None:
        def away(to: Any, **args: Any) -> Any:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        process.set_response("create_topics", away)
        codes = [t.error_code for t in process.ask(by_name("new", "t"), 9).topics]
        assert codes == [ErrorCode.LEADER_NOT_AVAILABLE, 0]

    def test_metadata_rejected_creation_has_the_controllers_code(
        self, process: NetworkProcess
    ) -> None:
        rejection = {"name": "t_", "error": int(ErrorCode.INVALID_TOPIC_EXCEPTION), "message": "."}
        process.set_response("create_topics", lambda to, **args: [rejection])
        topic = process.ask(by_name("t_"), 9).topics[0]
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


class TestTopicIds:
    @staticmethod
    def by_id(*ids: bytes) -> MetadataRequest:
        entry = MetadataRequest.MetadataRequestTopic
        return MetadataRequest(topics=[entry(name=None, topic_id=i) for i in ids])

    @pytest.mark.parametrize("version", [12, 13])
    def test_metadata_by_id_finds_the_topic(self, process: NetworkProcess, version: int) -> None:
        topic = process.ask(self.by_id(T_ID), version).topics[0]
        assert (topic.name, topic.topic_id, topic.error_code) == ("t", T_ID, 0)

    def test_metadata_unknown_id_is_unknown_topic_id_without_a_name(
        self, process: NetworkProcess
    ) -> None:
        topic = process.ask(self.by_id(b"?" * 16), 12).topics[0]
        assert (topic.name, topic.topic_id) == (None, b"?" * 16)
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    @pytest.mark.parametrize("version", [10, 11])
    def test_metadata_by_id_before_version_12_is_invalid_request(
        self, process: NetworkProcess, version: int
    ) -> None:
        topic = process.ask(self.by_id(T_ID), version).topics[0]
        assert topic.name == ""
        assert topic.error_code == ErrorCode.INVALID_REQUEST


def test_metadata_topic_named_twice_is_in_the_response_once(process: NetworkProcess) -> None:
    assert names(process.ask(by_name("t", "t"), 9)) == ["t"]


def test_metadata_failure_in_version_13_is_told_at_the_top(
    process: NetworkProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.image, "topics", None)
    response = process.ask(MetadataRequest(topics=None), 13)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert process.ask(MetadataRequest(topics=None), 12) is None


def test_metadata_of_many_partitions_is_encoded_once_until_the_image_changes(
    process: NetworkProcess,
) -> None:
    process.add_topic("big", b"b" * 16, list(range(10, 510)))
    first = process.ask(by_name("big"), 12)
    kept = dict(process.image.derived)
    assert len(kept) == 1

    again = process.ask(by_name("big"), 12)
    other_version = process.ask(by_name("big"), 9)
    with_t = process.ask(by_name("big", "t"), 12)

    assert again == first
    assert names(with_t) == ["big", "t"]
    assert len(other_version.topics[0].partitions) == 500
    assert [p.partition_index for p in again.topics[0].partitions] == list(range(500))
    process.add_topic("big", b"b" * 16, list(range(10, 511)))
    assert len(process.ask(by_name("big"), 12).topics[0].partitions) == 501


def test_metadata_responses_that_are_kept_are_bounded(process: NetworkProcess) -> None:
    for number in range(20):
        process.add_topic(f"big-{number}", bytes([number]) * 16, list(range(10, 310)))
    for number in range(20):
        assert process.ask(by_name(f"big-{number}"), 12).topics[0].name == f"big-{number}"
    assert 0 < len(process.image.derived) <= 8
