"""The authorization of each API, and the response for an unauthorized client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.requests_by_api import GROUP, TOPIC_ID, TOPIC_NAME, TRANSACTION, request_of
from support.network.network_process import NetworkProcess, decode, encoded_request
from support.running.in_one import in_one
from support.security.authorizers import Rules, deny_all, deny_kind, deny_names

from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers import dispatch  # noqa: F401 - imports every handler
from kbroker.handlers.registry import HANDLERS, HOT_RANGES, HOT_REQUIREMENTS
from kbroker.ipc.calls import NOBODY
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.message import Struct
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

pytestmark = pytest.mark.unit

O, TOPIC, IN_GROUP, CLUSTER, TXN = (  # noqa: E741 - a table below
    AclOperation,
    Kind.TOPIC,
    Kind.GROUP,
    Kind.CLUSTER,
    Kind.TRANSACTIONAL_ID,
)
ANYBODY: frozenset[tuple[AclOperation, Kind]] = frozenset()

# Kafka's table of operations and resources, for the APIs served here.
EXPECTED: dict[ApiKey, Any] = {
    ApiKey.PRODUCE: {(O.WRITE, TXN), (O.WRITE, TOPIC)},
    ApiKey.FETCH: {(O.READ, TOPIC)},
    ApiKey.LIST_OFFSETS: {(O.DESCRIBE, TOPIC)},
    ApiKey.METADATA: {
        (O.DESCRIBE, TOPIC),
        (O.CREATE, CLUSTER),
        (O.CREATE, TOPIC),
        (O.DESCRIBE, CLUSTER),
    },
    ApiKey.LEADER_AND_ISR: {(O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.STOP_REPLICA: {(O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.UPDATE_METADATA: {(O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.CONTROLLED_SHUTDOWN: {(O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.ALTER_PARTITION: {(O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.PEER_STATUS: {(O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.OFFSET_COMMIT: {(O.READ, IN_GROUP), (O.READ, TOPIC)},
    ApiKey.OFFSET_FETCH: {(O.DESCRIBE, IN_GROUP), (O.DESCRIBE, TOPIC)},
    ApiKey.FIND_COORDINATOR: {(O.DESCRIBE, IN_GROUP), (O.DESCRIBE, TXN)},
    ApiKey.JOIN_GROUP: {(O.READ, IN_GROUP)},
    ApiKey.HEARTBEAT: {(O.READ, IN_GROUP)},
    ApiKey.LEAVE_GROUP: {(O.READ, IN_GROUP)},
    ApiKey.SYNC_GROUP: {(O.READ, IN_GROUP)},
    ApiKey.DESCRIBE_GROUPS: {(O.DESCRIBE, IN_GROUP)},
    ApiKey.LIST_GROUPS: {(O.DESCRIBE, CLUSTER), (O.DESCRIBE, IN_GROUP)},
    ApiKey.SASL_HANDSHAKE: ANYBODY,
    ApiKey.API_VERSIONS: ANYBODY,
    ApiKey.CREATE_TOPICS: {(O.CREATE, CLUSTER), (O.CREATE, TOPIC), (O.DESCRIBE_CONFIGS, TOPIC)},
    ApiKey.DELETE_TOPICS: {(O.DELETE, TOPIC), (O.DESCRIBE, TOPIC)},
    ApiKey.DELETE_RECORDS: {(O.DELETE, TOPIC)},
    ApiKey.INIT_PRODUCER_ID: {(O.WRITE, TXN), (O.IDEMPOTENT_WRITE, CLUSTER), (O.WRITE, TOPIC)},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {(O.CLUSTER_ACTION, CLUSTER), (O.DESCRIBE, TOPIC)},
    ApiKey.ADD_PARTITIONS_TO_TXN: {(O.WRITE, TXN), (O.WRITE, TOPIC), (O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.ADD_OFFSETS_TO_TXN: {(O.WRITE, TXN), (O.READ, IN_GROUP)},
    ApiKey.END_TXN: {(O.WRITE, TXN)},
    ApiKey.WRITE_TXN_MARKERS: {(O.ALTER, CLUSTER), (O.CLUSTER_ACTION, CLUSTER)},
    ApiKey.TXN_OFFSET_COMMIT: {(O.WRITE, TXN), (O.READ, IN_GROUP), (O.READ, TOPIC)},
    ApiKey.DESCRIBE_ACLS: {(O.DESCRIBE, CLUSTER)},
    ApiKey.CREATE_ACLS: {(O.ALTER, CLUSTER)},
    ApiKey.DELETE_ACLS: {(O.ALTER, CLUSTER)},
    ApiKey.DESCRIBE_CONFIGS: {
        (O.DESCRIBE_CONFIGS, TOPIC),
        (O.DESCRIBE_CONFIGS, IN_GROUP),
        (O.DESCRIBE_CONFIGS, CLUSTER),
    },
    ApiKey.ALTER_CONFIGS: {
        (O.ALTER_CONFIGS, TOPIC),
        (O.ALTER_CONFIGS, IN_GROUP),
        (O.ALTER_CONFIGS, CLUSTER),
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: {(O.ALTER, CLUSTER)},
    ApiKey.DESCRIBE_LOG_DIRS: {(O.DESCRIBE, CLUSTER)},
    ApiKey.SASL_AUTHENTICATE: ANYBODY,
    ApiKey.CREATE_PARTITIONS: {(O.ALTER, TOPIC)},
    ApiKey.CREATE_DELEGATION_TOKEN: {(O.CREATE_TOKENS, Kind.USER)},
    ApiKey.RENEW_DELEGATION_TOKEN: ANYBODY,
    ApiKey.EXPIRE_DELEGATION_TOKEN: ANYBODY,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {
        (O.DESCRIBE, Kind.DELEGATION_TOKEN),
        (O.DESCRIBE_TOKENS, Kind.USER),
    },
    ApiKey.DELETE_GROUPS: {(O.DELETE, IN_GROUP)},
    ApiKey.ELECT_LEADERS: {(O.ALTER, CLUSTER)},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        (O.ALTER_CONFIGS, TOPIC),
        (O.ALTER_CONFIGS, IN_GROUP),
        (O.ALTER_CONFIGS, CLUSTER),
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {(O.ALTER, CLUSTER)},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {(O.DESCRIBE, CLUSTER)},
    ApiKey.OFFSET_DELETE: {(O.DELETE, IN_GROUP), (O.READ, TOPIC)},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {(O.DESCRIBE_CONFIGS, CLUSTER)},
    ApiKey.ALTER_CLIENT_QUOTAS: {(O.ALTER_CONFIGS, CLUSTER)},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {(O.DESCRIBE, CLUSTER)},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {(O.ALTER, CLUSTER)},
    ApiKey.DESCRIBE_QUORUM: {(O.DESCRIBE, CLUSTER)},
    ApiKey.UPDATE_FEATURES: {(O.ALTER, CLUSTER)},
    # Of topics, the health of a broker names those with settings that endanger data.
    ApiKey.DESCRIBE_CLUSTER: {
        (O.DESCRIBE, CLUSTER),
        (O.DESCRIBE, TOPIC),
        (O.DESCRIBE_CONFIGS, TOPIC),
    },
    ApiKey.DESCRIBE_PRODUCERS: {(O.READ, TOPIC)},
    ApiKey.UNREGISTER_BROKER: {(O.ALTER, CLUSTER)},
    ApiKey.DESCRIBE_TRANSACTIONS: {(O.DESCRIBE, TXN), (O.DESCRIBE, TOPIC)},
    ApiKey.LIST_TRANSACTIONS: {(O.DESCRIBE, TXN)},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {(O.READ, IN_GROUP), (O.DESCRIBE, TOPIC)},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {(O.DESCRIBE, IN_GROUP), (O.DESCRIBE, TOPIC)},
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ANYBODY,
    ApiKey.PUSH_TELEMETRY: ANYBODY,
    ApiKey.LIST_CONFIG_RESOURCES: {(O.DESCRIBE_CONFIGS, CLUSTER)},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {(O.DESCRIBE, TOPIC)},
    ApiKey.ADD_RAFT_VOTER: {(O.ALTER, CLUSTER)},
    ApiKey.REMOVE_RAFT_VOTER: {(O.ALTER, CLUSTER)},
}
# With everything denied: the code of the response, if it is not that of its type of resource.
ANSWERED = {
    ApiKey.OFFSET_COMMIT: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FETCH: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_DELETE: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.FIND_COORDINATOR: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.CONSUMER_GROUP_DESCRIBE: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ApiKey.METADATA: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.CREATE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.TXN_OFFSET_COMMIT: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.ADD_OFFSETS_TO_TXN: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_TRANSACTIONS: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# Rejected without authentication, before anything is asked (see test_delegation_tokens).
FOR_USERS = {ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN}
# These have no error for it: unauthorized resources are left out.
LISTS = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER}
NEVER_TOLD = "hidden-topic"


@pytest.fixture
def process() -> NetworkProcess:
    return new_process()


def new_process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic(TOPIC_NAME, TOPIC_ID, [0, 1])
    process.add_topic(NEVER_TOLD, b"h" * 16, [2])
    process.add_topic(OFFSETS_TOPIC, b"o" * 16, [3], internal=True)
    process.add_topic(TRANSACTIONS_TOPIC, b"x" * 16, [4], internal=True)
    for slot in range(5):
        process.put_log(slot, 0, 10)
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        response_class(key)(), version
    )
    return process


def codes(found: Any) -> Iterator[int]:
    """Every error code in a response."""
    if isinstance(found, list):
        for each in found:
            yield from codes(each)
    elif isinstance(found, Struct):
        for name in found.__slots__:
            value = getattr(found, name)
            if name.endswith("error_code") and name != "topic_config_error_code":
                yield value
            else:
                yield from codes(value)


def restricted() -> list[tuple[ApiKey, int]]:
    """The versions of every API that needs authorization."""
    return [
        (ApiKey(key), version)
        for key, handler in HANDLERS.items()
        if handler.authorize and key not in FOR_USERS
        for version in range(handler.first_version, handler.last_version + 1)
    ]


def expected_code(key: ApiKey, version: int) -> ErrorCode:
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:
        return CLUSTER.error if version >= 4 else TXN.error
    found = ANSWERED.get(key)
    if found is not None:
        return found
    (kind,) = {kind for _, kind in EXPECTED[key]}
    return kind.error


def test_authorization_of_every_api_is_that_of_kafka() -> None:
    """An API missing in the table is new: it needs a row, and a line in the next test."""
    declared = {key: handler.authorize for key, handler in HANDLERS.items()} | HOT_REQUIREMENTS

    found = {
        ApiKey(key): {(operation, kind) for operation, kind, _ in requirements}
        for key, requirements in declared.items()
    }
    assert found == {key: set(rows) for key, rows in EXPECTED.items()}
    assert set(HOT_REQUIREMENTS) == set(HOT_RANGES)


@in_one("key version", restricted(), process=new_process)
def test_authorization_denied_is_the_apis_own_error_and_no_more(
    process: NetworkProcess, key: ApiKey, version: int
) -> None:
    """No other process is called, and nothing is revealed that the request did not name."""
    key = ApiKey(key)
    process.follow(deny_all())

    frame = encoded_request(request_of(key, version), version)
    outcome = process.send_bytes(frame).value

    response = decode(key, version, outcome)
    if key in LISTS or (key is ApiKey.DESCRIBE_LOG_DIRS and version < 3):
        assert set(codes(response)) <= {0}
        assert response == empty(process, key, version)
    else:
        told = set(codes(response)) - {0}
        assert told == {int(expected_code(key, version))}
    assert NEVER_TOLD.encode() not in outcome
    assert process.rpc.calls == []
    assert process.coordinators.calls == [] or key in LISTS


def empty(process: NetworkProcess, key: ApiKey, version: int) -> Any:
    """The response for a client that may see nothing."""
    response = response_class(key)()
    if key is ApiKey.DESCRIBE_CLUSTER:
        response = process.ask(request_of(key, version), version)
        assert [broker.broker_id for broker in response.brokers] == [0], "where to connect"
        return response
    return response


@in_one("key version", restricted(), process=new_process)
def test_authorization_asks_for_what_it_declares_and_names(
    process: NetworkProcess, key: ApiKey, version: int
) -> None:
    rules = deny_all()
    process.follow(rules)

    process.ask(request_of(ApiKey(key), version), version)

    declared = {(operation, kind) for operation, kind, _ in HANDLERS[key].authorize}
    asked = {(operation, kind) for _, _, operation, kind, _ in rules.asked}
    assert asked <= declared
    if ApiKey(key) not in LISTS:
        assert asked, "the authorizer is asked"
    named = {name for _, _, _, kind, name in rules.asked}
    assert named <= {TOPIC_NAME, GROUP, TRANSACTION, CLUSTER_NAME}
    assert {(who, host) for who, host, *_ in rules.asked} <= {(ANONYMOUS, "198.51.100.4")}


def test_authorization_of_one_who_may_do_everything_asks_nothing(process: NetworkProcess) -> None:
    rules = Rules(lambda operation, kind, name: False, super_users=[ANONYMOUS])
    process.follow(rules)

    response = process.ask(request_of(ApiKey.METADATA, 9), 9)

    assert [topic.error_code for topic in response.topics] == [0]
    assert rules.asked == []


def test_authorization_follows_a_change_of_the_rules(process: NetworkProcess) -> None:
    request = request_of(ApiKey.LIST_OFFSETS, 5)
    process.follow(deny_all())
    denied = process.ask(request, 5)
    process.follow(Rules(lambda operation, kind, name: True))
    allowed = process.ask(request, 5)

    found = [set(codes(response)) for response in (denied, allowed)]
    assert found == [{int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}, {0}]


# -- parts of a response ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 9, 12])
def test_metadata_of_all_topics_leaves_out_what_may_not_be_described(
    process: NetworkProcess, version: int
) -> None:
    process.follow(deny_names(NEVER_TOLD))

    response = process.ask(request_of_all_topics(version), version)

    names = {topic.name for topic in response.topics}
    assert names == {TOPIC_NAME, OFFSETS_TOPIC, TRANSACTIONS_TOPIC}
    assert set(codes(response)) == {0}


def request_of_all_topics(version: int) -> Any:
    request = request_of(ApiKey.METADATA, version)
    request.topics = None
    return request


def test_metadata_kept_for_one_client_is_not_shown_to_another(process: NetworkProcess) -> None:
    """Metadata of many partitions is cached in encoded form."""
    process.add_topic("wide", b"w" * 16, list(range(5, 16)) * 20)
    request = request_of_all_topics(9)
    request.include_topic_authorized_operations = True
    everything = process.ask(request, 9)

    process.follow(Rules(lambda operation, kind, name: operation is AclOperation.DESCRIBE))
    some = process.ask(request, 9)
    process.follow(deny_names(NEVER_TOLD))
    fewer = process.ask(request, 9)

    operations = [
        {topic.topic_authorized_operations for topic in response.topics}
        for response in (everything, some)
    ]
    assert operations == [{0x0DF8}, {1 << AclOperation.DESCRIBE}]
    assert NEVER_TOLD in {topic.name for topic in some.topics}
    assert NEVER_TOLD not in {topic.name for topic in fewer.topics}


def test_metadata_by_id_of_a_topic_that_may_not_be_described_has_no_name(
    process: NetworkProcess,
) -> None:
    request = request_of(ApiKey.METADATA, 12)
    request.topics[0].name, request.topics[0].topic_id = None, TOPIC_ID
    process.follow(deny_kind(TOPIC))

    (topic,) = process.ask(request, 12).topics

    assert (topic.error_code, topic.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


def test_metadata_creates_no_topic_that_its_client_may_not_create(process: NetworkProcess) -> None:
    request = request_of(ApiKey.METADATA, 9)
    request.topics[0].name = "new"
    process.follow(Rules(lambda operation, kind, name: operation is not AclOperation.CREATE))

    (topic,) = process.ask(request, 9).topics

    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert process.rpc.calls == []


def test_metadata_says_what_a_client_may_do(process: NetworkProcess) -> None:
    request = request_of(ApiKey.METADATA, 8)
    request.include_topic_authorized_operations = True
    request.include_cluster_authorized_operations = True
    may = {AclOperation.READ, AclOperation.DESCRIBE}
    process.follow(Rules(lambda operation, kind, name: operation in may))

    response = process.ask(request, 8)

    bits = 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
    assert response.topics[0].topic_authorized_operations == bits
    assert response.cluster_authorized_operations == 1 << AclOperation.DESCRIBE
    process.follow(deny_kind(CLUSTER))
    assert process.ask(request, 8).cluster_authorized_operations == 0, "not even that"


def test_create_topics_with_the_right_to_the_cluster_needs_none_to_the_topic(
    process: NetworkProcess,
) -> None:
    """But the configs of the created topic are only for clients that may describe them."""
    created = {"name": "new", "error": 0, "message": None, "topic_id": (b"n" * 16).hex()}
    answer = {**created, "partitions": 1, "replication_factor": 1}
    process.set_response("create_topics", lambda to, **args: [answer])
    process.follow(deny_kind(TOPIC))
    request = request_of(ApiKey.CREATE_TOPICS, 7)
    request.topics[0].name = "new"

    (topic,) = process.ask(request, 7).topics

    assert (topic.error_code, topic.configs) == (0, None)
    assert topic.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_init_producer_id_is_for_whoever_may_write_to_any_topic(process: NetworkProcess) -> None:
    process.set_response("allocate_producer_ids", lambda to: {"first": 7, "count": 10})
    process.follow(deny_kind(CLUSTER))

    assert process.ask(request_of(ApiKey.INIT_PRODUCER_ID, 4), 4).producer_id == 7


def test_delete_topics_by_an_id_whose_name_is_secret_does_not_reveal_it(
    process: NetworkProcess,
) -> None:
    request = request_of(ApiKey.DELETE_TOPICS, 6)
    request.topics[0].name, request.topics[0].topic_id = None, TOPIC_ID
    process.follow(deny_all())
    (secret,) = process.ask(request, 6).responses
    process.follow(Rules(lambda operation, kind, name: operation is AclOperation.DESCRIBE))
    (known,) = process.ask(request, 6).responses

    assert (secret.name, known.name) == (None, TOPIC_NAME)
    assert {secret.error_code, known.error_code} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert process.rpc.calls == []


# -- what is forwarded -------------------------------------------------------------------------


def two_topics(process: NetworkProcess, key: ApiKey, version: int) -> tuple[Any, list[Any]]:
    """The response to a request for an authorized and an unauthorized topic, and the requests to
    the coordinator, which succeed.
    """
    request = request_of(key, version)
    holder = request.groups[0] if key is ApiKey.OFFSET_FETCH and version >= 8 else request
    other = request_of(key, version)
    other_topic = (
        other.groups[0] if key is ApiKey.OFFSET_FETCH and version >= 8 else other
    ).topics[0]
    if version >= 10:
        other_topic.topic_id = b"h" * 16
    else:
        other_topic.name = NEVER_TOLD
    holder.topics.append(other_topic)
    asked: list[Any] = []

    def answer(slot: int, api_key: ApiKey, version: int, body: bytes) -> bytes:
        seen = codec.decode_exact(type(request), version, body)
        asked.append(seen)
        return codec.encode(success(api_key, version, seen), version)

    process.coordinators.answer = answer
    process.follow(deny_names(NEVER_TOLD))
    return process.ask(request, version), asked


def success(key: ApiKey, version: int, request: Any) -> Any:
    """A response with a row for each topic."""
    cls: Any = response_class(key)
    if key is ApiKey.OFFSET_FETCH and version >= 8:
        rows = [
            cls.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            for topic in request.groups[0].topics or ()
        ]
        return cls(groups=[cls.OffsetFetchResponseGroup(group_id=GROUP, topics=rows)])
    row = getattr(cls, f"{cls.__name__}Topic")
    if version >= 10:
        return cls(topics=[row(topic_id=topic.topic_id) for topic in request.topics])
    return cls(topics=[row(name=topic.name) for topic in request.topics or ()])


def by_topic(response: Any) -> dict[Any, set[int]]:
    """The codes of each topic, by name or id."""
    groups = getattr(response, "groups", None) or [response]
    return {
        topic.name or topic.topic_id: set(codes(topic))
        for group in groups
        for topic in group.topics
    }


COMMITS = [
    (ApiKey.OFFSET_COMMIT, 7),
    (ApiKey.OFFSET_COMMIT, 10),
    (ApiKey.TXN_OFFSET_COMMIT, 3),
    (ApiKey.OFFSET_DELETE, 0),
    (ApiKey.OFFSET_FETCH, 1),
    (ApiKey.OFFSET_FETCH, 7),
    (ApiKey.OFFSET_FETCH, 8),
    (ApiKey.OFFSET_FETCH, 10),
]


@pytest.mark.parametrize(("key", "version"), COMMITS)
def test_forwarded_request_goes_without_the_topics_that_are_denied(
    process: NetworkProcess, key: ApiKey, version: int
) -> None:
    response, asked = two_topics(process, key, version)

    assert by_topic(response) == {
        TOPIC_NAME if version < 10 else TOPIC_ID: set(),
        NEVER_TOLD if version < 10 else b"h" * 16: {int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)},
    }
    (seen,) = asked
    holder = seen.groups[0] if key is ApiKey.OFFSET_FETCH and version >= 8 else seen
    assert [topic.name or topic.topic_id for topic in holder.topics] == [
        TOPIC_NAME if version < 10 else TOPIC_ID
    ]


@pytest.mark.parametrize("version", [7, 9, 10])
def test_offset_fetch_of_all_topics_leaves_out_what_may_not_be_described(
    process: NetworkProcess, version: int
) -> None:
    request = request_of(ApiKey.OFFSET_FETCH, version)
    asked_for = request if version < 8 else request.groups[0]
    named, asked_for.topics = asked_for.topics, None

    def answer(slot: int, key: ApiKey, version: int, body: bytes) -> bytes:
        hidden = request_of(key, version)
        topics = [*named, *(hidden if version < 8 else hidden.groups[0]).topics]
        if version < 10:
            topics[1].name = NEVER_TOLD
        else:
            topics[1].topic_id = b"h" * 16
        answered = request_of(key, version)
        (answered if version < 8 else answered.groups[0]).topics = topics
        return codec.encode(success(key, version, answered), version)

    process.coordinators.answer = answer
    process.follow(deny_names(NEVER_TOLD))

    response = process.ask(request, version)

    assert list(by_topic(response)) == [TOPIC_NAME if version < 10 else TOPIC_ID]


def test_offset_fetch_of_several_groups_returns_separate_results(process: NetworkProcess) -> None:
    request = request_of(ApiKey.OFFSET_FETCH, 8)
    group = type(request).OffsetFetchRequestGroup
    request.groups.append(group(group_id="other", topics=[]))
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        success(key, version, codec.decode_exact(type(request), version, body)), version
    )
    process.follow(deny_names("other"))

    response = process.ask(request, 8)

    assert [(g.group_id, g.error_code) for g in response.groups] == [
        (GROUP, 0),
        ("other", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ]


def test_add_partitions_with_one_topic_denied_adds_none(process: NetworkProcess) -> None:
    request = request_of(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
    other = request_of(ApiKey.ADD_PARTITIONS_TO_TXN, 3).v3_and_below_topics[0]
    other.name = NEVER_TOLD
    request.v3_and_below_topics.append(other)
    process.follow(deny_names(NEVER_TOLD))

    response = process.ask(request, 3)

    assert [set(codes(row)) for row in response.results_by_topic_v3_and_below] == [
        {int(ErrorCode.OPERATION_NOT_ATTEMPTED)},
        {int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)},
    ]
    assert process.coordinators.calls == []


def test_describe_transactions_shows_only_topics_that_may_be_described(
    process: NetworkProcess,
) -> None:
    cls: Any = response_class(ApiKey.DESCRIBE_TRANSACTIONS)
    topics = [cls.TopicData(topic=name, partitions=[0]) for name in (TOPIC_NAME, NEVER_TOLD)]
    row = cls.TransactionState(transactional_id=TRANSACTION, topics=topics)
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        cls(transaction_states=[row]), version
    )
    process.follow(deny_names(NEVER_TOLD))

    (state,) = process.ask(request_of(ApiKey.DESCRIBE_TRANSACTIONS, 0), 0).transaction_states

    assert [topic.topic for topic in state.topics] == [TOPIC_NAME]


def test_consumer_group_of_a_topic_that_may_not_be_described_is_not_described(
    process: NetworkProcess,
) -> None:
    cls: Any = response_class(ApiKey.CONSUMER_GROUP_DESCRIBE)
    member = cls.Member(member_id="m", subscribed_topic_names=[TOPIC_NAME, NEVER_TOLD])
    row = cls.DescribedGroup(group_id=GROUP, members=[member])
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        cls(groups=[row]), version
    )
    request = request_of(ApiKey.CONSUMER_GROUP_DESCRIBE, 0)
    process.follow(deny_names(NEVER_TOLD))

    (group,) = process.ask(request, 0).groups

    assert (group.error_code, group.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
    process.follow(Rules(lambda operation, kind, name: True))
    (group,) = process.ask(request, 0).groups
    assert len(group.members) == 1


def test_lists_show_only_what_may_be_described(process: NetworkProcess) -> None:
    """With Describe on the cluster a client sees all groups."""
    cls: Any = response_class(ApiKey.LIST_GROUPS)
    rows = [cls.ListedGroup(group_id=name) for name in (GROUP, "other")]
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        cls(groups=rows), version
    )
    request = request_of(ApiKey.LIST_GROUPS, 3)

    process.follow(deny_names("other", CLUSTER_NAME))
    some = process.ask(request, 3)
    process.follow(deny_names("other"))
    all_groups = process.ask(request, 3)

    assert [group.group_id for group in some.groups] == [GROUP]
    assert [group.group_id for group in all_groups.groups] == [GROUP, "other"]


def test_describe_groups_says_what_the_client_may_do(process: NetworkProcess) -> None:
    """The coordinator does not know the authorized operations."""
    cls: Any = response_class(ApiKey.DESCRIBE_GROUPS)
    row = cls.DescribedGroup(group_id=GROUP, authorized_operations=0x7FF)
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        cls(groups=[row]), version
    )
    request = request_of(ApiKey.DESCRIBE_GROUPS, 3)
    request.include_authorized_operations = True
    process.follow(Rules(lambda operation, kind, name: operation is AclOperation.DESCRIBE))

    (group,) = process.ask(request, 3).groups

    assert group.authorized_operations == 1 << AclOperation.DESCRIBE


def test_coordinators_are_told_who_asks(process: NetworkProcess) -> None:
    process.ask(request_of(ApiKey.SYNC_GROUP, 3), 3)

    assert [call["principal"] for call in process.coordinators.calls] == [ANONYMOUS]


CHANGES = {
    ApiKey.CREATE_TOPICS: "create_topics",
    ApiKey.CREATE_PARTITIONS: "create_partitions",
    ApiKey.DELETE_TOPICS: "delete_topics",
    ApiKey.ALTER_CONFIGS: "alter_configs",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "incremental_alter_configs",
}


@pytest.mark.parametrize("key", CHANGES, ids=lambda key: key.name)
@pytest.mark.parametrize("principal", [ANONYMOUS, KafkaPrincipal("User", "alice")], ids=str)
def test_controller_is_told_who_asks_for_a_change(
    process: NetworkProcess, key: ApiKey, principal: KafkaPrincipal
) -> None:
    def answer(to: Any, **args: Any) -> Any:
        raise WireError(ErrorCode.NOT_CONTROLLER)

    process.set_response(CHANGES[key], answer)
    process.connection.access = process.accesses.of(principal, "192.0.2.1")

    process.ask(request_of(key, key.versions[1]), key.versions[1])

    (call,) = process.calls(CHANGES[key])
    assert call.get("asked_by", NOBODY) == str(principal)
