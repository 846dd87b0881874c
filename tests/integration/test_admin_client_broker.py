"""``KafkaAdminClient``: each call against a real broker whose users log in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kbroker.client.admin import configs as config_admin
from kbroker.client.admin import features as feature_admin
from kbroker.client.admin import quotas as quota_admin
from kbroker.client.admin.acls import CLUSTER_NAME, Acl
from kbroker.client.admin.reassignments import PartitionReplica
from kbroker.client.admin.tokens import Principal
from kbroker.client.admin.topics import NewTopic
from kbroker.client.admin.users import Credential
from kbroker.client.batches.offsets import EARLIEST, LATEST
from kbroker.client.errors import ClientClosed, RejectedError
from kbroker.errors import ErrorCode
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} user_alice="a";',
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:alice",
    "delegation.token.master.key": "key",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


def login(broker: Broker, user: str = "alice", password: str = "a") -> dict[str, str]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN" if user == "alice" else "SCRAM-SHA-512",
        "sasl_username": user,
        "sasl_password": password,
    }


@pytest.fixture
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(login(broker), default_api_timeout_ms=30_000) as made:
        yield made


def code_of(error: object) -> int:
    assert isinstance(error, RejectedError), error
    return error.code


def test_topics_partitions_and_configs(admin):
    configs = {"retention.ms": "60000"}
    made = admin.create_topics([NewTopic("shop", 2, 1, configs=configs), NewTopic("bad name")])
    assert made["shop"].partitions == 2
    assert code_of(made["bad name"]) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(admin.create_topics([NewTopic("shop")])["shop"]) == (
        ErrorCode.TOPIC_ALREADY_EXISTS
    )
    assert "shop" in [topic.name for topic in admin.list_topics()]
    assert admin.create_partitions({"shop": 3}) == {"shop": None}
    (topic,) = admin.describe_topics(["shop"])
    assert [row.partition for row in topic.partitions] == [0, 1, 2]
    with pytest.raises(RejectedError):
        admin.describe_topics(["none"])

    key = "retention.ms"
    admin.alter_configs(config_admin.TOPIC, "shop", {key: "70000"})
    (setting,) = admin.describe_configs(config_admin.TOPIC, ["shop"], [key], synonyms=True)["shop"]
    assert (setting.value, setting.own) == ("70000", True) and setting.synonyms
    admin.alter_configs(config_admin.CLIENT_METRICS, "sub", {"interval.ms": "1000"})
    assert admin.list_config_resources(config_admin.CLIENT_METRICS) == ["sub"]
    gone = admin.delete_topics(["shop", "none"])
    assert gone["shop"] is None
    assert code_of(gone["none"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_and_replicas(admin, broker):
    admin.create_topics([NewTopic("log", 1)])
    with KafkaProducer(login(broker)) as producer:
        producer.send_many("log", [b"v"] * 10, timestamp_ms=5).result(30)
    key = "log", 0
    found = {time: admin.list_offsets({key: time})[key].offset for time in (EARLIEST, LATEST, 6)}
    assert found == {EARLIEST: 0, LATEST: 10, 6: -1}
    assert admin.delete_records({key: 4, ("none", 0): 1})[key] == 4
    (node,) = [row.node for row in admin.describe_brokers()]
    (dirs,) = admin.describe_log_dirs([node])[node]
    assert dirs.error is None and dirs.replicas[key][0].size > 0
    replica = PartitionReplica("log", 0, node)
    assert admin.describe_replica_log_dirs([replica])[replica].current == dirs.path
    assert admin.alter_replica_log_dirs({replica: dirs.path}) == {replica: None}
    assert code_of(admin.elect_leaders([key])[key]) == ErrorCode.ELECTION_NOT_NEEDED
    assert admin.list_partition_reassignments() == {}
    assert code_of(admin.alter_partition_reassignments({key: [99]})[key]) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT
    )


def test_groups_and_their_offsets(admin, broker):
    admin.create_topics([NewTopic("read", 2)])
    with KafkaProducer(login(broker)) as producer:
        producer.send_many("read", [b"v"] * 10, partition=0).result(30)
    settings = {"group_id": "readers", "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(login(broker), **settings)
    consumer.subscribe(["read"])
    while not consumer.poll(1.0):
        pass
    consumer.commit_sync()
    states = admin.describe_groups(["readers", "nobody"])
    assert code_of(states["nobody"]) == ErrorCode.GROUP_ID_NOT_FOUND
    assert states["readers"].state == "Stable"
    (member,) = states["readers"].members
    assert [row.group for row in admin.list_groups(states=["stable"])] == ["readers"]
    assert admin.list_groups(kinds=["share"]) == []
    admin.remove_group_members("readers", [member.member])
    consumer.close()

    admin.alter_group_offsets("readers", {("read", 0): 3, ("read", 1): (0, "note")})
    offsets = admin.list_group_offsets("readers")
    assert {key: (row.offset, row.metadata) for key, row in offsets.items()} == {
        ("read", 0): (3, ""),
        ("read", 1): (0, "note"),
    }
    lags = {row.partition: row.lag for row in admin.group_progress("readers")}
    assert lags == {0: 7, 1: 0}
    assert admin.delete_group_offsets("readers", [("read", 1)]) == {("read", 1): None}
    assert list(admin.list_group_offsets("readers")) == [("read", 0)]
    found = admin.delete_groups(["readers", "nobody"])
    assert found["readers"] is None and code_of(found["nobody"]) == ErrorCode.GROUP_ID_NOT_FOUND


def test_acls_users_and_tokens(admin, broker):
    acl = Acl("TOPIC", "log", "LITERAL", "User:bob", "*", "READ", "ALLOW")
    other = Acl("CLUSTER", CLUSTER_NAME, "LITERAL", "User:bob", "*", "ALTER", "DENY")
    admin.create_acls([acl, other])
    assert admin.describe_acls() == sorted([acl, other])
    assert admin.describe_acls(Acl("TOPIC")) == [acl]
    assert admin.delete_acls([Acl(principal="User:bob")]) == sorted([acl, other])

    admin.set_password("bob", "secret", iterations=4096)
    assert admin.describe_user_scram_credentials() == [Credential("bob", "SCRAM-SHA-512", 4096)]
    with KafkaAdminClient(login(broker, "bob", "secret")) as bob:
        assert bob.list_topics() == []
        with pytest.raises(RejectedError) as caught:
            bob.describe_acls()
        assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    admin.delete_user_scram_credentials([Credential("bob", "SCRAM-SHA-512", 0)])
    assert admin.describe_user_scram_credentials() == []

    token = admin.create_delegation_token([Principal("User", "bob")], life_ms=600_000)
    assert [row.token_id for row in admin.describe_delegation_tokens()] == [token.token_id]
    assert token.issued < admin.renew_delegation_token(token.hmac, 60_000) <= token.ends
    admin.expire_delegation_token(token.hmac)
    assert admin.describe_delegation_tokens([token.owner]) == []


def test_quotas_features_and_the_cluster(admin):
    entity = (("user", "bob"),)
    admin.alter_client_quotas(entity, {"producer_byte_rate": 1000.0})
    wanted = [("user", quota_admin.EVERY)]
    assert admin.describe_client_quotas(wanted) == {entity: {"producer_byte_rate": 1000.0}}
    admin.alter_client_quotas(entity, {"producer_byte_rate": None})
    assert admin.describe_client_quotas(wanted) == {}

    features = admin.describe_features()
    assert features.finalized["group.version"] >= 1
    refused = admin.update_features({"group.version": 99}, feature_admin.UPGRADE)
    assert refused["group.version"] is not None

    state = admin.describe_cluster()
    assert len(state.brokers) == 1 and not state.offline()
    with pytest.raises(RejectedError):
        admin.unregister_broker(77)


def test_transactions_and_producers(admin, broker):
    admin.create_topics([NewTopic("tx", 1)])
    producer = KafkaProducer(login(broker), transactional_id="mover")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("tx", b"v").result(30)
    (row,) = admin.list_transactions(states=["ongoing"])
    assert row.transactional_id == "mover"
    states = admin.describe_transactions(["mover", "nobody"])
    assert states["mover"].partitions == [("tx", 0)]
    assert code_of(states["nobody"]) == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    ((active,),) = admin.describe_producers([("tx", 0)]).values()
    assert active.open_from == 0
    assert admin.fence_producers(["mover"]) == {"mover": None}
    with pytest.raises(RejectedError):
        producer.commit_transaction()
    producer.close(0)
    assert admin.list_transactions(states=["ongoing"]) == []


def test_transaction_that_hangs_is_aborted_in_its_partition(admin, broker):
    admin.create_topics([NewTopic("hangs", 1)])
    with KafkaProducer(login(broker), transactional_id="hanging") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("hangs", b"v").result(30)
        ((active,),) = admin.describe_producers([("hangs", 0)]).values()
        admin.abort_transaction(("hangs", 0), active)
        ((after,),) = admin.describe_producers([("hangs", 0)]).values()
        assert after.open_from is None


def test_closed_client_and_views_of_it_say_so(admin):
    view = admin.within(5)
    assert view.list_topics() is not None
    admin.close()
    for client in (admin, view):
        with pytest.raises(ClientClosed):
            client.list_topics()
