"""CreateTopics, DeleteTopics, CreatePartitions: between the wire and the controller's calls."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.config.describe import describe_topic
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers import create_topics
from kbroker.ipc.process_table import CONTROLLER
from kbroker.protocol.messages.create_partitions import CreatePartitionsRequest
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest

pytestmark = pytest.mark.unit

T_ID, NO_ID = b"t" * 16, bytes(16)


@pytest.fixture
def process() -> NetworkProcess:
    return NetworkProcess()


def result(name: str | None, **values: Any) -> dict[str, Any]:
    """A result of the controller."""
    return {
        "name": name,
        "error": 0,
        "message": None,
        "topic_id": T_ID.hex(),
        "partitions": 3,
        "replication_factor": 1,
        **values,
    }


def time_out(to: Any, **args: Any) -> Any:
    raise WireError(ErrorCode.REQUEST_TIMED_OUT, "controller-0 did not respond in time")


class TestCreateTopics:
    @staticmethod
    def request(*names: str, **values: Any) -> CreateTopicsRequest:
        topic = CreateTopicsRequest.CreatableTopic
        config = CreateTopicsRequest.CreatableTopicConfig
        assignment = CreateTopicsRequest.CreatableReplicaAssignment
        return CreateTopicsRequest(
            topics=[
                topic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[assignment(partition_index=0, broker_ids=[0])],
                    configs=[config(name="retention.ms", value="1000")],
                )
                for name in names
            ],
            **values,
        )

    def test_create_topics_looks_once_at_settings_that_topics_share(
        self, process: NetworkProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request for thousands of topics blocked all other clients of the process."""
        looks = []
        monkeypatch.setattr(
            create_topics,
            "describe_topic",
            lambda *args: looks.append(args) or describe_topic(*args),
        )
        names = [f"t{number}" for number in range(20)]
        process.set_response("create_topics", lambda to, **args: [result(name) for name in names])
        request = self.request(*names)
        request.topics[7].configs[0].value = "7"
        topics = process.ask(request, 5).topics
        assert len(looks) == 2
        found = [{c.name: c.value for c in topic.configs}["retention.ms"] for topic in topics]
        assert found == ["1000"] * 7 + ["7"] + ["1000"] * 12

    @pytest.mark.parametrize("version", range(8))
    def test_create_topics_is_told_to_the_controller_and_completed(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("create_topics", lambda to, **args: [result("t")])
        request = self.request("t", timeout_ms=5000, validate_only=version >= 1)
        (topic,) = process.ask(request, version).topics
        assert (topic.name, topic.error_code) == ("t", 0)
        to, _, timeout_ms, args = process.rpc.calls[0]
        assert to == CONTROLLER
        assert timeout_ms > 5000
        assert args == {
            "topics": [
                {
                    "name": "t",
                    "assignments": [[0, [0]]],
                    "configs": [["retention.ms", "1000"]],
                }
            ],
            **({"validate_only": True} if version >= 1 else {}),
            "within_ms": 5000,
        }
        assert topic.topic_id == (T_ID if version >= 7 else NO_ID)

    @pytest.mark.parametrize("version", [5, 6, 7])
    def test_create_topics_describes_the_new_topic(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("create_topics", lambda to, **args: [result("t")])
        (topic,) = process.ask(self.request("t"), version).topics
        assert (topic.num_partitions, topic.replication_factor) == (3, 1)
        configs = {c.name: c for c in topic.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert configs["segment.bytes"].value == "1073741824"
        assert configs["segment.bytes"].config_source == 5

    @pytest.mark.parametrize("version", range(8))
    def test_create_topics_rejected_topic_has_code_and_message(
        self, process: NetworkProcess, version: int
    ) -> None:
        rejected = result("t", error=36, message="Topic 't' already exists.", topic_id=None)
        process.set_response("create_topics", lambda to, **args: [rejected])
        (topic,) = process.ask(self.request("t"), version).topics
        assert topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert topic.topic_id == NO_ID
        if version >= 1:
            assert topic.error_message == "Topic 't' already exists."

    def test_create_topics_named_twice_is_in_the_response_once(
        self, process: NetworkProcess
    ) -> None:
        rejected = result("t", error=42, message="twice", topic_id=None)
        process.set_response("create_topics", lambda to, **args: [rejected, rejected])
        assert [t.name for t in process.ask(self.request("t", "t"), 4).topics] == ["t"]

    @pytest.mark.parametrize("version", range(8))
    def test_create_topics_controller_late_times_every_topic_out(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("create_topics", time_out)
        topics = process.ask(self.request("a", "b"), version).topics
        assert [(t.name, t.error_code) for t in topics] == [("a", 7), ("b", 7)]

    @pytest.mark.parametrize("timeout_ms", [0, -1, 0x7FFFFFFF])
    def test_create_topics_any_timeout_leaves_time_to_respond(
        self, process: NetworkProcess, timeout_ms: int
    ) -> None:
        process.set_response("create_topics", lambda to, **args: [result("t")])
        process.ask(self.request("t", timeout_ms=timeout_ms), 4)
        _, _, call_timeout_ms, args = process.rpc.calls[0]
        assert args["within_ms"] == max(timeout_ms, 1000)
        assert call_timeout_ms > args["within_ms"]


class TestDeleteTopics:
    @pytest.mark.parametrize("version", range(6))
    def test_delete_topics_by_name(self, process: NetworkProcess, version: int) -> None:
        rejected = result("b", error=3, message="unknown", topic_id=None)
        process.set_response("delete_topics", lambda to, **args: [result("a"), rejected])
        request = DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1000)
        responses = process.ask(request, version).responses
        assert [(r.name, r.error_code) for r in responses] == [("a", 0), ("b", 3)]
        assert process.calls("delete_topics") == [
            {"topics": [{"name": "a"}, {"name": "b"}], "within_ms": 1000}
        ]
        assert responses[1].error_message == ("unknown" if version >= 5 else None)

    def test_delete_topics_by_name_and_by_id(self, process: NetworkProcess) -> None:
        unknown = result(None, error=100, message="no such id", topic_id=(b"?" * 16).hex())
        process.set_response("delete_topics", lambda to, **args: [result("a"), unknown])
        topic = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(
            topics=[topic(name="a"), topic(name=None, topic_id=b"?" * 16)], timeout_ms=1000
        )
        responses = process.ask(request, 6).responses
        assert [(r.name, r.topic_id, r.error_code) for r in responses] == [
            ("a", T_ID, 0),
            (None, b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        (args,) = process.calls("delete_topics")
        assert args["topics"] == [{"name": "a"}, {"topic_id": (b"?" * 16).hex()}]

    @pytest.mark.parametrize("values", [{}, {"name": "a", "topic_id": T_ID}])
    def test_delete_topics_neither_or_both_is_invalid_request(
        self, process: NetworkProcess, values: dict[str, Any]
    ) -> None:
        topic = DeleteTopicsRequest.DeleteTopicState
        (response,) = process.ask(DeleteTopicsRequest(topics=[topic(**values)]), 6).responses
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert process.rpc.calls == []

    @pytest.mark.parametrize("values", [{}, {"name": "a", "topic_id": T_ID}])
    def test_delete_topics_rejects_the_wrong_entry_alone(
        self, process: NetworkProcess, values: dict[str, Any]
    ) -> None:
        process.set_response("delete_topics", lambda to, **args: [result("b")])
        topic = DeleteTopicsRequest.DeleteTopicState
        request = DeleteTopicsRequest(topics=[topic(**values), topic(name="b")])
        responses = process.ask(request, 6).responses
        assert {r.name: r.error_code for r in responses} == {
            values.get("name"): ErrorCode.INVALID_REQUEST,
            "b": 0,
        }
        (args,) = process.calls("delete_topics")
        assert args["topics"] == [{"name": "b"}]

    @pytest.mark.parametrize("version", [0, 5, 6])
    def test_delete_topics_that_come_twice_are_not_deleted(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("delete_topics", lambda to, **args: [result("b")])
        names = ["a", "b", "a"]
        topic = DeleteTopicsRequest.DeleteTopicState
        request = (
            DeleteTopicsRequest(topics=[topic(name=name) for name in names])
            if version >= 6
            else DeleteTopicsRequest(topic_names=names)
        )
        responses = process.ask(request, version).responses
        assert [(r.name, r.error_code) for r in responses] == [
            ("a", ErrorCode.INVALID_REQUEST),
            ("b", 0),
        ]
        (args,) = process.calls("delete_topics")
        assert args["topics"] == [{"name": "b"}]

    @pytest.mark.parametrize("version", range(6))
    def test_delete_topics_switched_off_is_mapped_for_old_versions(
        self, process: NetworkProcess, version: int
    ) -> None:
        off = result("a", error=73, message="off", topic_id=None)
        process.set_response("delete_topics", lambda to, **args: [off])
        (response,) = process.ask(DeleteTopicsRequest(topic_names=["a"]), version).responses
        expected = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert response.error_code == expected

    @pytest.mark.parametrize("version", range(6))
    def test_delete_topics_controller_late_times_out(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("delete_topics", time_out)
        (response,) = process.ask(DeleteTopicsRequest(topic_names=["a"]), version).responses
        assert (response.name, response.error_code) == ("a", ErrorCode.REQUEST_TIMED_OUT)


class TestCreatePartitions:
    @staticmethod
    def request(*names: str, **values: Any) -> CreatePartitionsRequest:
        topic = CreatePartitionsRequest.CreatePartitionsTopic
        return CreatePartitionsRequest(
            topics=[topic(name=name, count=4, assignments=None) for name in names],
            timeout_ms=1000,
            **values,
        )

    @pytest.mark.parametrize("version", range(4))
    def test_create_partitions_is_told_to_the_controller_and_completed(
        self, process: NetworkProcess, version: int
    ) -> None:
        rejected = result("b", error=37, message="too few")
        process.set_response("create_partitions", lambda to, **args: [result("a"), rejected])
        results = process.ask(self.request("a", "b", validate_only=True), version).results
        assert [(r.name, r.error_code, r.error_message) for r in results] == [
            ("a", 0, None),
            ("b", 37, "too few"),
        ]
        (args,) = process.calls("create_partitions")
        assert args["topics"][0] == {"name": "a", "count": 4}
        assert args["validate_only"] is True

    def test_create_partitions_assignments_go_along(self, process: NetworkProcess) -> None:
        process.set_response("create_partitions", lambda to, **args: [result("a")])
        request = self.request("a")
        assignment = CreatePartitionsRequest.CreatePartitionsAssignment
        request.topics[0].assignments = [assignment(broker_ids=[0]), assignment(broker_ids=[1])]
        process.ask(request, 1)
        assert process.calls("create_partitions")[0]["topics"][0]["assignments"] == [[0], [1]]

    @pytest.mark.parametrize("version", range(4))
    def test_create_partitions_controller_late_times_out(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("create_partitions", time_out)
        results = process.ask(self.request("a", "a"), version).results
        assert [(r.name, r.error_code) for r in results] == [("a", 7)]
