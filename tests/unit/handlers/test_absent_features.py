"""Features that are not supported: empty responses, and rejections that say so."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.messages.api_versions import ApiVersionsRequest

pytestmark = pytest.mark.unit

UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION


@pytest.fixture
def process() -> NetworkProcess:
    return NetworkProcess()


def request(key: ApiKey, **fields: Any) -> Any:
    return request_class(key)(**fields)


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ],
)
def test_delegation_tokens_are_not_for_plain_connections(
    process: NetworkProcess, key: ApiKey
) -> None:
    for version in range(key.versions[0], key.versions[1] + 1):
        answer = process.ask(request(key), version)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_quorum_is_this_node_alone(process: NetworkProcess, version: int) -> None:
    cls = request_class(ApiKey.DESCRIBE_QUORUM)
    asked = cls(
        topics=[
            cls.TopicData(topic_name=name, partitions=[cls.PartitionData(partition_index=0)])
            for name in ("__cluster_metadata", "t")
        ]
    )
    answer = process.ask(asked, version)
    quorum, other = (topic.partitions[0] for topic in answer.topics)
    assert (quorum.error_code, quorum.leader_id) == (0, 0)
    (voter,) = quorum.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (0, quorum.high_watermark)
    assert quorum.observers == []
    assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [node.node_id for node in answer.nodes] == ([0] if version >= 2 else [])


@pytest.mark.parametrize("key", [ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER])
def test_quorum_stays_as_it_is(process: NetworkProcess, key: ApiKey) -> None:
    answer = process.ask(request(key, voter_id=7), 0)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_broker_is_not_unregistered(process: NetworkProcess) -> None:
    for broker_id, code in (
        (0, ErrorCode.INVALID_REQUEST),
        (7, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        answer = process.ask(request(ApiKey.UNREGISTER_BROKER, broker_id=broker_id), 0)
        assert answer.error_code == code


ALONE = [
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
]


def test_a_cluster_does_not_answer_for_a_quorum_of_one() -> None:
    """Its quorum is ZooKeeper, of which these say nothing; Kafka had none of them beside it."""
    alone, cluster = NetworkProcess(), NetworkProcess(zookeeper_connect="h:2181")
    asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")

    keys = [{row.api_key for row in one.ask(asked, 4).api_keys} for one in (alone, cluster)]

    assert keys[0] - keys[1] == set(ALONE)
    for key in ALONE:
        assert cluster.ask(request(key), 0) is None
        assert "not served in a cluster" in cluster.connection.close_reason


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_stay_at_their_levels(process: NetworkProcess, version: int) -> None:
    cls = request_class(ApiKey.UPDATE_FEATURES)

    def ask(**levels: int) -> Any:
        updates = [
            cls.FeatureUpdateKey(feature=name.replace("_", "."), max_version_level=level)
            for name, level in levels.items()
        ]
        return process.ask(cls(feature_updates=updates), version)

    good = ask(group_version=1, transaction_version=2)
    assert (good.error_code, good.error_message) == (0, None)
    told = [(row.error_code, row.error_message) for row in good.results]
    assert told == ([] if version >= 2 else [(0, "NONE")] * 2)
    answer = ask(group_version=1, metadata_version=7, nosuch=1)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message.startswith("The update failed for all features since the following")
    assert "metadata.version" in answer.error_message and not answer.results


@pytest.mark.parametrize(("version", "kind"), [(0, 2), (1, 3), (2, 3)])
def test_features_of_a_cluster_are_finalized_by_its_controller(version: int, kind: int) -> None:
    process = NetworkProcess(zookeeper_connect="z:2181")
    asked: list[Any] = []
    codes = {"group.version": 0, "nosuch": int(ErrorCode.INVALID_UPDATE_VERSION)}

    def update(to: Any, updates: list[Any], **rest: Any) -> list[Any]:
        asked.append((updates, rest))
        return [[codes[name], "why" if codes[name] else None] for name, _, _ in updates]

    process.rpc.responses["update_features"] = update
    cls = request_class(ApiKey.UPDATE_FEATURES)
    how = {"upgrade_type": kind} if version else {"allow_downgrade": True}
    updates = [cls.FeatureUpdateKey(feature=name, max_version_level=0, **how) for name in codes]
    answer = process.ask(cls(feature_updates=updates, validate_only=version > 0), version)
    ((got, rest),) = asked
    assert got == [["group.version", 0, kind], ["nosuch", 0, kind]]
    assert rest == {"validate_only": version > 0}
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message.endswith("had an error: why")


def test_sasl_on_a_plaintext_listener_is_illegal_state(process: NetworkProcess) -> None:
    answer = process.ask(request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"x"), 2)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
