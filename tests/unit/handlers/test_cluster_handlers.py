"""DescribeCluster, DescribeTopicPartitions, and what is rejected without security."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.network.network_process import NetworkProcess
from support.security.authorizers import deny_names

from kbroker.errors import ErrorCode
from kbroker.handlers.support import partition_totals
from kbroker.protocol.messages.create_acls import CreateAclsRequest
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest
from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest
from kbroker.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.security.acl_authorizer import AclAuthorizer
from kbroker.security.acl_index import AclIndex
from kbroker.security.acls import AccessControlEntry, PatternType, Permission, ResourcePattern
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind
from kbroker.security.principal import ANONYMOUS

pytestmark = pytest.mark.unit


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic("b", b"b" * 16, [2, 3])
    process.add_topic("a", b"a" * 16, [0, 1, 4])
    return process


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_in_every_version(process: NetworkProcess, version: int) -> None:
    response = process.ask(DescribeClusterRequest(), version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "cluster-1", 0)
    (broker,) = response.brokers
    assert (broker.broker_id, broker.host, broker.port) == (0, "192.0.2.7", 9092)
    assert broker.rack == "r1"
    assert response.cluster_authorized_operations == -0x80000000


def test_describe_cluster_operations_when_asked(process: NetworkProcess) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert process.ask(request, 0).cluster_authorized_operations == 0b1_1111_1010_0000


def test_health_is_for_those_who_may_describe_the_cluster(process: NetworkProcess) -> None:
    """It names directories, and clients that have to wait."""
    asked = DescribeClusterRequest(include_health=True)
    assert json.loads(process.ask(asked, 2).health)["broker"] == 0
    assert process.ask(DescribeClusterRequest(), 2).health == ""
    process.follow(AclAuthorizer(AclIndex(), [], allows_if_none=False))
    process.connection.access = process.accesses.of(ANONYMOUS, "192.0.2.9")
    assert process.ask(asked, 2).health == ""


def totals(process: NetworkProcess) -> Any:
    asked = DescribeClusterRequest(include_fenced_brokers=True, include_partitions=True)
    return process.ask(asked, 2)


def test_partitions_are_counted_by_broker_and_those_in_trouble_are_told(
    process: NetworkProcess,
) -> None:
    """A client that counts would decode a row of Metadata for each of ten thousand topics."""
    process.add_topic("gone", b"g" * 16, [5], leader=7, replicas=[7, 0])
    process.add_topic("__o", b"o" * 16, [6], internal=True, replicas=[0, 7])

    response = totals(process)

    assert (response.topics, response.internal_topics, response.partitions) == (4, 1, 7)
    rows = {row.broker_id: (row.leads, row.replicas, row.is_fenced) for row in response.brokers}
    assert rows == {0: (6, 7, False), 7: (0, 2, True)}
    assert sorted(
        (row.topic, row.partition, row.leader, row.replicas, row.isr) for row in response.troubled
    ) == [("__o", 0, 0, [0, 7], [0]), ("gone", 0, -1, [7, 0], [0])]
    assert process.ask(DescribeClusterRequest(), 2).topics == -1, "not unless asked"


def test_partitions_are_counted_once_until_something_changes(
    process: NetworkProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    count = partition_totals._count

    def counts(ctx: Any, topics: Any, reachable: Any) -> Any:
        counted.append(len(topics))
        return count(ctx, topics, reachable)

    monkeypatch.setattr(partition_totals, "_count", counts)

    assert [totals(process).topics for _ in range(3)] == [2, 2, 2]
    process.add_topic("c", b"c" * 16, [6])
    assert totals(process).topics == 3
    assert counted == [2, 3]


def test_partitions_of_topics_that_may_not_be_seen_are_not_counted(process: NetworkProcess) -> None:
    process.add_topic("hidden", b"h" * 16, [5], leader=7)
    everything = totals(process)
    process.follow(deny_names("hidden"))

    shown = totals(process)

    assert (everything.topics, len(everything.troubled)) == (3, 1)
    assert (shown.topics, shown.partitions, shown.troubled) == (2, 5, [])


def test_health_names_topics_with_settings_that_endanger_data(process: NetworkProcess) -> None:
    """Of those whose configs the client may describe; and of now."""
    asked = DescribeClusterRequest(include_health=True)
    impossible = {"min.insync.replicas": "2"}
    for name in ("c", "d"):
        process.add_topic(name, name.encode() * 16, [5], replicas=[0, 1, 2], config=impossible)
    assert json.loads(process.ask(asked, 2).health)["dangers"] == {}
    one_copy = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    for name in ("e", "f"):
        process.add_topic(name, name.encode() * 16, [6], replicas=[0, 1, 2], config=one_copy)
    process.add_topic("g", b"g" * 16, [7], config=impossible)

    found = json.loads(process.ask(asked, 2).health)["dangers"]
    acls = AclIndex()
    for kind, name, operation in (
        (Kind.CLUSTER, CLUSTER_NAME, AclOperation.DESCRIBE),
        (Kind.TOPIC, "f", AclOperation.DESCRIBE_CONFIGS),
    ):
        entry = AccessControlEntry("User:ANONYMOUS", "*", operation, Permission.ALLOW)
        acls.put(ResourcePattern(kind, PatternType.LITERAL, name), [entry])
    process.follow(AclAuthorizer(acls, [], allows_if_none=False))
    process.connection.access = process.accesses.of(ANONYMOUS, "192.0.2.9")

    assert found == {
        "one-copy": [2, ["e", "f"]], "unclean-leader": [2, ["e", "f"]], "impossible": [1, ["g"]]
    }  # fmt: skip
    assert json.loads(process.ask(asked, 2).health)["dangers"] == {
        "one-copy": [1, ["f"]],
        "unclean-leader": [1, ["f"]],
    }


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_describe_cluster_of_other_endpoints_is_rejected(
    process: NetworkProcess, endpoint_type: int, code: int
) -> None:
    response = process.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert response.error_code == code
    assert response.error_message


def test_broker_that_is_not_registered_is_fenced_with_its_last_address(
    process: NetworkProcess,
) -> None:
    """Brokers 2 and 3 have replicas; of 3 nobody here has seen anything."""
    process.add_topic("c", b"c" * 16, [5], replicas=[0, 2, 3])
    document = {"endpoints": [["PLAINTEXT", "10.0.0.2", 9093, "PLAINTEXT"]], "rack": "r2"}
    process.apply(brokers={"2": document})
    before_ms = int(time.time() * 1000)
    process.apply(brokers={"2": None})

    plain = process.ask(DescribeClusterRequest(), 2)
    asked = process.ask(DescribeClusterRequest(include_fenced_brokers=True), 2)

    assert [row.broker_id for row in plain.brokers] == [0]
    found = {row.broker_id: row for row in asked.brokers}
    assert {number: row.is_fenced for number, row in found.items()} == {
        0: False, 2: True, 3: True,
    }  # fmt: skip
    assert (found[2].host, found[2].port, found[2].rack) == ("10.0.0.2", 9093, "r2")
    assert found[2].fenced_since_ms >= before_ms
    assert (found[3].host, found[3].port, found[3].fenced_since_ms) == ("", -1, -1)


class TestDescribeTopicPartitions:
    @staticmethod
    def request(
        *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> DescribeTopicPartitionsRequest:
        entry = DescribeTopicPartitionsRequest.TopicRequest
        request = DescribeTopicPartitionsRequest(
            topics=[entry(name=name) for name in names], response_partition_limit=limit
        )
        if cursor is not None:
            request.cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=cursor[0], partition_index=cursor[1]
            )
        return request

    @staticmethod
    def pages(response: Any) -> list[tuple[str, list[int]]]:
        return [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics]

    def test_describe_topic_partitions_all_in_order_of_name(self, process: NetworkProcess) -> None:
        response = process.ask(self.request(), 0)
        assert self.pages(response) == [("a", [0, 1, 2]), ("b", [0, 1])]
        assert response.next_cursor is None
        topic = response.topics[0]
        assert topic.topic_id == b"a" * 16
        assert topic.topic_authorized_operations == 0b1101_1111_1000
        partition = topic.partitions[0]
        assert (partition.leader_id, partition.isr_nodes, partition.error_code) == (0, [0], 0)

    def test_describe_topic_partitions_pages_join_to_everything(
        self, process: NetworkProcess
    ) -> None:
        seen = []
        cursor = None
        for _ in range(10):
            response = process.ask(self.request(limit=2, cursor=cursor), 0)
            assert sum(len(numbers) for _, numbers in self.pages(response)) <= 2
            seen += [(name, n) for name, numbers in self.pages(response) for n in numbers]
            if response.next_cursor is None:
                break
            cursor = response.next_cursor.topic_name, response.next_cursor.partition_index
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]

    def searched(self, process: NetworkProcess, **asked: Any) -> tuple[list[str], int]:
        response = process.ask(DescribeTopicPartitionsRequest(**asked), 0)
        return [topic.name for topic in response.topics], response.total

    def test_page_of_topics_is_told_with_how_many_there_are(self, process: NetworkProcess) -> None:
        """A client that shows a hundred topics would decode a row for each of ten thousand."""
        for name in ("ab", "bc", "cab"):
            process.add_topic(name, name.encode().ljust(16), [5])
        process.add_topic("__ab", b"i" * 16, [6], internal=True)

        assert self.searched(process, topic_limit=2) == (["a", "ab"], 5)
        assert self.searched(process, topic_limit=2, skip=3) == (["bc", "cab"], 5)
        assert self.searched(process, topic_limit=9, skip=5) == ([], 5)
        assert self.searched(process, topic_limit=0) == ([], 5)
        assert self.searched(process, topic_limit=9, search="ab") == (["ab", "cab"], 2)
        internal = self.searched(process, topic_limit=9, search="ab", with_internal=True)
        assert internal == (["__ab", "ab", "cab"], 3)
        assert self.searched(process)[1] == -1, "not unless asked"

    def test_page_of_topics_has_none_that_may_not_be_seen(self, process: NetworkProcess) -> None:
        process.follow(deny_names("a"))

        assert self.searched(process, topic_limit=9) == (["b"], 1)

    def test_page_of_topics_with_many_partitions_is_continued(
        self, process: NetworkProcess
    ) -> None:
        process.add_topic("c", b"c" * 16, [5])
        request = DescribeTopicPartitionsRequest(
            response_partition_limit=2, topic_limit=2, skip=0, search=""
        )
        seen = []
        for _ in range(4):
            response = process.ask(request, 0)
            seen += [(name, n) for name, numbers in self.pages(response) for n in numbers]
            request.cursor = response.next_cursor
            if response.next_cursor is None:
                break
            request.cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=response.next_cursor.topic_name,
                partition_index=response.next_cursor.partition_index,
            )
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]

    def test_describe_topic_partitions_limit_of_the_broker_counts(self) -> None:
        process = NetworkProcess(max_request_partition_size_limit="1")
        process.add_topic("a", b"a" * 16, [0, 1])
        response = process.ask(self.request(), 0)
        assert self.pages(response) == [("a", [0])]
        assert response.next_cursor.partition_index == 1

    @pytest.mark.parametrize("limit", [0, -5])
    def test_describe_topic_partitions_gives_one_at_least(
        self, process: NetworkProcess, limit: int
    ) -> None:
        assert self.pages(process.ask(self.request(limit=limit), 0)) == [("a", [0])]

    def test_describe_topic_partitions_unknown_names_are_told(
        self, process: NetworkProcess
    ) -> None:
        response = process.ask(self.request("b", "no", "a b"), 0)
        assert [(t.name, t.error_code) for t in response.topics] == [
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("b", 0),
            ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]

    def test_describe_topic_partitions_cursor_at_a_deleted_topic_continues_behind_it(
        self, process: NetworkProcess
    ) -> None:
        response = process.ask(self.request(cursor=("aa", 5)), 0)
        assert self.pages(response) == [("b", [0, 1])]

    def test_describe_topic_partitions_leader_that_is_gone_is_none(
        self, process: NetworkProcess
    ) -> None:
        process.add_topic("gone", b"g" * 16, [9], leader=7)
        partition = process.ask(self.request("gone"), 0).topics[0].partitions[0]
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert partition.leader_id == -1

    def test_describe_topic_partitions_negative_cursor_is_invalid_request(
        self, process: NetworkProcess
    ) -> None:
        (topic,) = process.ask(self.request("a", cursor=("a", -1)), 0).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST
        assert process.ask(self.request(cursor=("a", -1)), 0) is None

    def test_describe_topic_partitions_cursor_behind_the_last_partition_is_empty(
        self, process: NetworkProcess
    ) -> None:
        response = process.ask(self.request("a", cursor=("a", 3)), 0)
        assert self.pages(response) == [("a", [])]
        assert response.next_cursor is None


@pytest.mark.parametrize("version", range(4))
def test_acl_requests_are_security_disabled(process: NetworkProcess, version: int) -> None:
    described = process.ask(
        DescribeAclsRequest(resource_name_filter=None, principal_filter=None, host_filter=None),
        version,
    )
    assert described.error_code == ErrorCode.SECURITY_DISABLED
    creations = [CreateAclsRequest.AclCreation() for _ in range(2)]
    created = process.ask(CreateAclsRequest(creations=creations), version)
    assert [r.error_code for r in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deleted = process.ask(
        DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter()]), version
    )
    assert [r.error_code for r in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]


@pytest.mark.parametrize("version", range(2))
def test_sasl_handshake_on_a_plaintext_listener_is_illegal_state(
    process: NetworkProcess, version: int
) -> None:
    response = process.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
