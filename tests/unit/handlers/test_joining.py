"""A broker that has registered and has not heard of the controller says nothing of the cluster."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.requests_by_api import request_of
from support.network.network_process import CORRELATION_ID, NetworkProcess, decode
from support.running.in_one import in_one

from kbroker.errors import ErrorCode
from kbroker.handlers import registry
from kbroker.handlers.support.joining import JOINS_WITHIN_MS
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import encode_request_header
from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.unit

BROKER = {"endpoints": [["PLAINTEXT", "h", 9092, "PLAINTEXT"]], "rack": None}
WAITING = {key for key, handler in registry.HANDLERS.items() if handler.unjoined is not None}
# Those that say nothing of what there is: who asks, what the broker can do, and what it is told by
# other brokers; what the controller decides, who says NOT_CONTROLLER; what a coordinator knows, for
# which NOT_COORDINATOR has clients look for it; what only this broker has; and what a broker serves
# that is alone.
AT_ONCE = {
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY,
    ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION, ApiKey.WRITE_TXN_MARKERS, ApiKey.PEER_STATUS,
    ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UPDATE_FEATURES,
    ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS,
    ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
    ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS, ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE,
    ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_QUORUM, ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
}  # fmt: skip


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.image.brokers.clear()
    return process


def ask(process: NetworkProcess, request: Any, version: int) -> Any:
    """Its Pending."""
    header = encode_request_header(request.API_KEY, version, CORRELATION_ID, "a-client")
    return process.dispatcher.handle(process.connection, header + codec.encode(request, version))


def brokers_of(answer: Any, key: ApiKey, version: int) -> list[Any]:
    assert answer.value is not None
    return list(decode(key, version, answer.value).brokers)


def expire(process: NetworkProcess) -> None:
    for delay_ms, timer in process.rpc.timers:
        assert delay_ms == JOINS_WITHIN_MS
        timer.resolve()


def test_every_request_is_known_to_wait_or_to_say_nothing_of_the_cluster() -> None:
    """A new one must be put where it belongs: by ``unjoined`` of its handler, or here."""
    assert {ApiKey(key) for key in registry.HANDLERS} == WAITING | AT_ONCE
    assert not WAITING & AT_ONCE


@pytest.mark.parametrize("topics", [[], None, ["t"]])
def test_metadata_waits_for_the_brokers(process: NetworkProcess, topics: Any) -> None:
    """librdkafka, told of no broker, drops the connection by which it found the cluster, and asks
    nobody for five minutes.
    """
    entry = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=topics and [entry(name=name) for name in topics])

    answer = ask(process, request, 12)
    assert not answer.done
    process.apply(brokers={"0": BROKER})

    assert [row.node_id for row in brokers_of(answer, ApiKey.METADATA, 12)] == [0]


@in_one("key", sorted(WAITING))
def test_a_request_waits_until_the_controller_has_said_what_there_is(key: int) -> None:
    process = NetworkProcess()
    process.image.brokers.clear()
    handler = registry.HANDLERS[key]

    for version in range(handler.first_version, handler.last_version + 1):
        answer = ask(process, request_of(ApiKey(key), version), version)
        assert not answer.done, version
        expire(process)
        assert answer.done and not process.joining._waiting, version
    assert not process.rpc.calls


@pytest.mark.parametrize("version", range(14))
def test_metadata_closes_the_connection_before_it_names_no_broker(
    process: NetworkProcess, version: int
) -> None:
    answer = ask(process, request_of(ApiKey.METADATA, version), version)
    expire(process)

    assert answer.done and answer.value is None
    assert "has not heard of the controller" in process.connection.close_reason


def test_describe_cluster_names_no_empty_cluster(process: NetworkProcess) -> None:
    joined, late = [ask(process, DescribeClusterRequest(), 1) for _ in range(2)]
    process.rpc.timers[1][1].resolve()
    assert late.done and late.value is None and not joined.done
    process.apply(brokers={"0": BROKER})

    assert [row.broker_id for row in brokers_of(joined, ApiKey.DESCRIBE_CLUSTER, 1)] == [0]


def test_find_coordinator_creates_no_topic_that_may_be_there(process: NetworkProcess) -> None:
    answer = ask(process, FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    assert not process.rpc.calls
    expire(process)

    (row,) = decode(ApiKey.FIND_COORDINATOR, 4, answer.value).coordinators
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not process.rpc.calls


def test_a_client_that_leaves_meanwhile_is_not_served(process: NetworkProcess) -> None:
    answer = ask(process, MetadataRequest(topics=[]), 12)
    process.connection.turn.is_gone = True
    process.apply(brokers={"0": BROKER})

    assert answer.done and answer.value is None
