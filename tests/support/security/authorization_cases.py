"""A request of each API that a client may send, for each resource that it can be about.

Requests are such that asking again, or another client's asking, changes nothing: what would change
something is only validated, names resources of its own, or fails once it is authorized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from support.clients.wire_client import batch_of

from kbroker.config.resource_types import BROKER, GROUP, TOPIC
from kbroker.protocol.api import ApiKey, request_class
from kbroker.security.operations import AclOperation, Kind

# ACLs are about names that begin so.
PREFIX = "m-"
EXISTING, ABSENT = "m-topic", "m-absent"
UNNAMED = "other-topic"  # exists, and no ACL with the prefix is about it
OPEN = "open-topic"  # that everybody may read
GROUP_NAME, TRANSACTION = "m-group", "m-transaction"
NO_PRODUCER = {"producer_id": 4_000_000, "producer_epoch": 0}


class Names(NamedTuple):
    """What a request is about. own: a suffix that no other request has. topic_id, own_topic_id: of
    ``EXISTING``, and of a topic of the client's own, which it may delete.
    """

    own: str
    topic_id: bytes
    own_topic_id: bytes
    node_id: int


Build = Callable[[Any, int, Names], Any]


class Case(NamedTuple):
    """versions: of those that both brokers have, the ones to ask. is_list: of all that there is."""

    name: str
    key: ApiKey
    build: Build
    versions: range = range(100)
    is_list: bool = False

    def request(self, version: int, names: Names) -> Any:
        return self.build(request_class(self.key), version, names)


def fixed(**values: Any) -> Build:
    """The same request for all."""
    return lambda cls, version, names: cls(**values)


# -- records --------------------------------------------------------------------------------------


def produce(topic: str, *, transaction: bool = False) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        options: dict[str, Any] = {}
        if transaction:
            options = {**NO_PRODUCER, "base_sequence": 0, "transactional": True}
        part = cls.PartitionProduceData(index=0, records=batch_of([b"v"], **options))
        made = cls(acks=1, timeout_ms=30_000)
        made.topic_data = [cls.TopicProduceData(name=topic, partition_data=[part])]
        if transaction:
            made.transactional_id = TRANSACTION
        return made

    return build


def fetch(topic: str, replica_id: int = -1) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        part = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        row = cls.FetchTopic(partitions=[part])
        if version >= 13:
            row.topic_id = names.topic_id if topic == EXISTING else b"?" * 16
        else:
            row.topic = topic
        made = cls(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[row])
        if version >= 15:
            made.replica_state = cls.ReplicaState(replica_id=replica_id)
        else:
            made.replica_id = replica_id
        return made

    return build


def list_offsets(topic: str, replica_id: int = -1) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        row = cls.ListOffsetsTopic(name=topic, partitions=[cls.ListOffsetsPartition(timestamp=-1)])
        return cls(replica_id=replica_id, topics=[row])

    return build


def leader_epoch(topic: str, replica_id: int = -1) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        part = cls.OffsetForLeaderPartition(leader_epoch=0)
        made = cls(topics=[cls.OffsetForLeaderTopic(topic=topic, partitions=[part])])
        made.replica_id = replica_id if version >= 3 else -2
        return made

    return build


def delete_records(topic: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        part = cls.DeleteRecordsPartition(partition_index=0, offset=0)
        return cls(topics=[cls.DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=9000)

    return build


# -- topics ---------------------------------------------------------------------------------------


def metadata(*topics: str, creates: bool = False, by_id: bool = False) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        rows = [cls.MetadataRequestTopic(name=topic.format(names.own)) for topic in topics]
        if by_id:
            rows = [cls.MetadataRequestTopic(name=None, topic_id=names.topic_id)]
        made = cls(topics=rows)
        if not rows:
            made.topics = None if version >= 1 else []
        if version >= 4:
            made.allow_auto_topic_creation = creates
        if version >= 8:
            made.include_topic_authorized_operations = True
        if 8 <= version <= 10:
            made.include_cluster_authorized_operations = True
        return made

    return build


def create_topic(topic: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        row = cls.CreatableTopic(
            name=topic.format(names.own), num_partitions=1, replication_factor=1
        )
        return cls(topics=[row], timeout_ms=30_000, validate_only=True)

    return build


def delete_topic(topic: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        if version < 6:
            return cls(topic_names=[topic], timeout_ms=30_000)
        return cls(topics=[cls.DeleteTopicState(name=topic)], timeout_ms=30_000)

    return build


def delete_own_topic(cls: Any, version: int, names: Names) -> Any:
    row = cls.DeleteTopicState(name=None, topic_id=names.own_topic_id)
    return cls(topics=[row], timeout_ms=30_000)


def create_partitions(topic: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        row = cls.CreatePartitionsTopic(name=topic, count=5, assignments=None)
        return cls(topics=[row], timeout_ms=30_000, validate_only=True)

    return build


def elect(cls: Any, version: int, names: Names) -> Any:
    row = cls.TopicPartitions(topic=EXISTING, partitions=[0])
    return cls(topic_partitions=[row], timeout_ms=30_000)


def cancel_reassignment(cls: Any, version: int, names: Names) -> Any:
    row = cls.ReassignablePartition(partition_index=0, replicas=None)
    topic = cls.ReassignableTopic(name=EXISTING, partitions=[row])
    return cls(topics=[topic], timeout_ms=30_000)


def list_reassignments(cls: Any, version: int, names: Names) -> Any:
    row = cls.ListPartitionReassignmentsTopics(name=EXISTING, partition_indexes=[0])
    return cls(topics=[row], timeout_ms=30_000)


def move_log_dir(cls: Any, version: int, names: Names) -> Any:
    topic = cls.AlterReplicaLogDirTopic(name=EXISTING, partitions=[0])
    return cls(dirs=[cls.AlterReplicaLogDir(path="/nowhere", topics=[topic])])


def log_dirs(cls: Any, version: int, names: Names) -> Any:
    return cls(topics=[cls.DescribableLogDirTopic(topic=EXISTING, partitions=[0])])


def topic_rows(cls: Any, version: int, names: Names) -> Any:
    rows = [cls.TopicRequest(name=name) for name in (EXISTING, ABSENT, UNNAMED)]
    return cls(topics=rows, response_partition_limit=10)


def producers(topic: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        return cls(topics=[cls.TopicRequest(name=topic, partition_indexes=[0])])

    return build


# -- groups ---------------------------------------------------------------------------------------


def join(cls: Any, version: int, names: Names) -> Any:
    made = cls(
        group_id=f"{GROUP_NAME}-{names.own}", session_timeout_ms=10_000, protocol_type="consumer"
    )
    made.rebalance_timeout_ms = 10_000
    made.protocols = [cls.JoinGroupRequestProtocol(name="range", metadata=b"")]
    return made


def of_member(**values: Any) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        return cls(group_id=f"{GROUP_NAME}-{names.own}", **values)

    return build


def leave(cls: Any, version: int, names: Names) -> Any:
    made = cls(group_id=f"{GROUP_NAME}-{names.own}")
    if version < 3:
        made.member_id = "nobody"
    else:
        made.members = [cls.MemberIdentity(member_id="nobody")]
    return made


def commit(*topics: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        part = cls.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        rows = [cls.OffsetCommitRequestTopic(name=name, partitions=[part]) for name in topics]
        return cls(group_id=f"{GROUP_NAME}-commits", topics=rows)

    return build


def committed(*topics: str) -> Build:
    """No topics: all."""

    def build(cls: Any, version: int, names: Names) -> Any:
        group = f"{GROUP_NAME}-commits"
        if version < 8:
            rows = [cls.OffsetFetchRequestTopic(name=t, partition_indexes=[0]) for t in topics]
            return cls(group_id=group, topics=rows or None)
        rows = [cls.OffsetFetchRequestTopics(name=t, partition_indexes=[0]) for t in topics]
        one = cls.OffsetFetchRequestGroup(group_id=group, topics=rows or None)
        other = cls.OffsetFetchRequestGroup(group_id="other-group", topics=rows or None)
        return cls(groups=[one, other])

    return build


def find(key: str, kind: int) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        if version < 4:
            return cls(key=key, key_type=kind)
        return cls(coordinator_keys=[key, f"other-{key}"], key_type=kind)

    return build


def describe_groups(cls: Any, version: int, names: Names) -> Any:
    made = cls(groups=[f"{GROUP_NAME}-commits", "other-group"])
    made.include_authorized_operations = version >= 3
    return made


def delete_offsets(cls: Any, version: int, names: Names) -> Any:
    part = cls.OffsetDeleteRequestPartition(partition_index=1)
    rows = [
        cls.OffsetDeleteRequestTopic(name=name, partitions=[part]) for name in (EXISTING, UNNAMED)
    ]
    return cls(group_id=f"{GROUP_NAME}-commits", topics=rows)


def consumer_heartbeat(cls: Any, version: int, names: Names) -> Any:
    return cls(
        group_id=f"{GROUP_NAME}-{names.own}",
        member_id="bWVtYmVyLW1lbWJlci1tZQ" if version >= 1 else "",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[EXISTING],
        topic_partitions=[],
    )


# -- transactions ---------------------------------------------------------------------------------


def add_partitions(*topics: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        rows = [cls.AddPartitionsToTxnTopic(name=topic, partitions=[0]) for topic in topics]
        if version < 4:
            return cls(
                v3_and_below_transactional_id=TRANSACTION,
                v3_and_below_producer_id=4_000_000,
                v3_and_below_topics=rows,
            )
        one = cls.AddPartitionsToTxnTransaction(
            transactional_id=TRANSACTION, topics=rows, verify_only=True, **NO_PRODUCER
        )
        return cls(transactions=[one])

    return build


def commit_in_transaction(*topics: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        part = cls.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        rows = [cls.TxnOffsetCommitRequestTopic(name=name, partitions=[part]) for name in topics]
        return cls(
            transactional_id=TRANSACTION, group_id=f"{GROUP_NAME}-t", topics=rows, **NO_PRODUCER
        )

    return build


def markers(topic: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        row = cls.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])
        one = cls.WritableTxnMarker(topics=[row], coordinator_epoch=1, **NO_PRODUCER)
        return cls(markers=[one])

    return build


def init_transaction(cls: Any, version: int, names: Names) -> Any:
    return cls(transactional_id=f"{TRANSACTION}-{names.own}", transaction_timeout_ms=60_000)


# -- the cluster ----------------------------------------------------------------------------------


def configs(kind: int, name: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        resource = cls.DescribeConfigsResource(
            resource_type=kind, resource_name=name.format(names.node_id), configuration_keys=["x"]
        )
        return cls(resources=[resource])

    return build


def alter(kind: int, name: str, key: str, value: str) -> Build:
    def build(cls: Any, version: int, names: Names) -> Any:
        made = cls(validate_only=True)
        made.resources = [
            cls.AlterConfigsResource(
                resource_type=kind,
                resource_name=name.format(names.node_id),
                configs=[cls.AlterableConfig(name=key, value=value)],
            )
        ]
        return made

    return build


def acl_fields(**others: Any) -> dict[str, Any]:
    return {
        "principal": "User:stranger",
        "host": "192.0.2.9",
        "operation": AclOperation.READ,
        "permission_type": 3,
        **others,
    }


def create_acl(cls: Any, version: int, names: Names) -> Any:
    row = cls.AclCreation(resource_type=Kind.TOPIC, resource_name="strange", **acl_fields())
    return cls(creations=[row])


def delete_acls(cls: Any, version: int, names: Names) -> Any:
    row = cls.DeleteAclsFilter(
        resource_type_filter=Kind.TOPIC, resource_name_filter="stranger", principal_filter=None,
        host_filter=None, operation=AclOperation.READ, permission_type=3,
    )  # fmt: skip
    return cls(filters=[row])


def describe_acls(cls: Any, version: int, names: Names) -> Any:
    return cls(
        resource_type_filter=Kind.TOPIC, resource_name_filter="nothing", principal_filter=None,
        host_filter=None, operation=AclOperation.READ, permission_type=3,
    )  # fmt: skip


def alter_quota(cls: Any, version: int, names: Names) -> Any:
    entity = cls.EntityData(entity_type="user", entity_name="stranger")
    op = cls.OpData(key="producer_byte_rate", value=1000.0)
    return cls(entries=[cls.EntryData(entity=[entity], ops=[op])], validate_only=True)


def delete_scram(cls: Any, version: int, names: Names) -> Any:
    return cls(deletions=[cls.ScramCredentialDeletion(name="stranger", mechanism=1)])


def describe_scram(cls: Any, version: int, names: Names) -> Any:
    return cls(users=[cls.UserName(name="stranger")])


def quorum(cls: Any, version: int, names: Names) -> Any:
    part = cls.PartitionData(partition_index=0)
    return cls(topics=[cls.TopicData(topic_name="__cluster_metadata", partitions=[part])])


def update_features(cls: Any, version: int, names: Names) -> Any:
    row = cls.FeatureUpdateKey(feature="no.such.feature", max_version_level=1)
    return cls(feature_updates=[row], timeout_ms=30_000)


def describe_cluster(cls: Any, version: int, names: Names) -> Any:
    return cls(include_cluster_authorized_operations=True)


def another_token(cls: Any, version: int, names: Names) -> Any:
    owner = cls.DescribeDelegationTokenOwner(principal_type="User", principal_name="stranger")
    return cls(owners=[owner])


def all_cases() -> Iterator[Case]:
    """A name of a group or transactional id in lists: ``m-listed`` is there before."""
    yield Case("all topics", ApiKey.METADATA, metadata(), is_list=True)
    yield Case("list groups", ApiKey.LIST_GROUPS, fixed(), is_list=True)
    yield Case("list transactions", ApiKey.LIST_TRANSACTIONS, fixed(), is_list=True)
    yield from _of_records()
    yield from _of_topics()
    yield from _of_groups()
    yield from _of_transactions()
    yield from _of_cluster()


def _of_records() -> Iterator[Case]:
    for name in (EXISTING, ABSENT, UNNAMED):
        yield Case(f"produce to {name}", ApiKey.PRODUCE, produce(name), range(3, 13))
        yield Case(f"fetch {name}", ApiKey.FETCH, fetch(name), range(4, 100))
        yield Case(f"list offsets of {name}", ApiKey.LIST_OFFSETS, list_offsets(name))
        yield Case(f"epochs of {name}", ApiKey.OFFSET_FOR_LEADER_EPOCH, leader_epoch(name))
        yield Case(f"delete records of {name}", ApiKey.DELETE_RECORDS, delete_records(name))
        yield Case(f"producers of {name}", ApiKey.DESCRIBE_PRODUCERS, producers(name))
    in_transaction = produce(EXISTING, transaction=True)
    yield Case("produce in a transaction", ApiKey.PRODUCE, in_transaction, range(3, 13))
    yield Case("fetch as a follower", ApiKey.FETCH, fetch(EXISTING, 7), range(4, 100))
    yield Case("offsets as a follower", ApiKey.LIST_OFFSETS, list_offsets(EXISTING, 7))
    yield Case("epochs as a follower", ApiKey.OFFSET_FOR_LEADER_EPOCH, leader_epoch(EXISTING, 7))
    yield Case("fetch what everybody may", ApiKey.FETCH, fetch(OPEN), range(4, 13))


def _of_topics() -> Iterator[Case]:
    named = metadata(EXISTING, ABSENT, UNNAMED)
    yield Case("topics by name", ApiKey.METADATA, named, range(4, 100))
    yield Case("topics by id", ApiKey.METADATA, metadata(by_id=True), range(12, 100))
    creating = metadata("m-made-{}", creates=True)
    yield Case("create automatically", ApiKey.METADATA, creating, range(4, 100))
    yield Case("create a topic", ApiKey.CREATE_TOPICS, create_topic(ABSENT), range(1, 100))
    yield Case("create what exists", ApiKey.CREATE_TOPICS, create_topic(EXISTING), range(1, 100))
    yield Case("create with another name", ApiKey.CREATE_TOPICS, create_topic("other"),
               range(1, 100))  # fmt: skip
    yield Case("delete an absent topic", ApiKey.DELETE_TOPICS, delete_topic(ABSENT))
    yield Case("delete a topic by id", ApiKey.DELETE_TOPICS, delete_own_topic, range(6, 100))
    yield Case("create partitions", ApiKey.CREATE_PARTITIONS, create_partitions(EXISTING))
    yield Case("create absent partitions", ApiKey.CREATE_PARTITIONS, create_partitions(ABSENT))
    yield Case("elect leaders", ApiKey.ELECT_LEADERS, elect)
    yield Case("cancel reassignments", ApiKey.ALTER_PARTITION_REASSIGNMENTS, cancel_reassignment)
    yield Case("list reassignments", ApiKey.LIST_PARTITION_REASSIGNMENTS, list_reassignments)
    yield Case("move between log dirs", ApiKey.ALTER_REPLICA_LOG_DIRS, move_log_dir)
    yield Case("describe log dirs", ApiKey.DESCRIBE_LOG_DIRS, log_dirs)
    yield Case("describe partitions", ApiKey.DESCRIBE_TOPIC_PARTITIONS, topic_rows)


def _of_groups() -> Iterator[Case]:
    yield Case("find a group", ApiKey.FIND_COORDINATOR, find(GROUP_NAME, 0))
    yield Case("join", ApiKey.JOIN_GROUP, join)
    yield Case("heartbeat", ApiKey.HEARTBEAT, of_member(member_id="nobody"))
    of_protocol = of_member(member_id="nobody", protocol_type="consumer", protocol_name="range")
    yield Case("synchronize", ApiKey.SYNC_GROUP, of_protocol)
    yield Case("leave", ApiKey.LEAVE_GROUP, leave)
    both = (EXISTING, UNNAMED)
    yield Case("commit", ApiKey.OFFSET_COMMIT, commit(*both), range(1, 10))
    yield Case("committed offsets", ApiKey.OFFSET_FETCH, committed(*both), range(1, 10))
    yield Case("all committed offsets", ApiKey.OFFSET_FETCH, committed(), range(2, 10))
    yield Case("describe groups", ApiKey.DESCRIBE_GROUPS, describe_groups)
    yield Case("delete groups", ApiKey.DELETE_GROUPS, fixed(groups_names=["m-absent", "other"]))
    yield Case("delete offsets", ApiKey.OFFSET_DELETE, delete_offsets)
    yield Case("join a consumer group", ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_heartbeat)
    yield Case("describe consumer groups", ApiKey.CONSUMER_GROUP_DESCRIBE,
               fixed(group_ids=["m-absent", "other"]))  # fmt: skip


def _of_transactions() -> Iterator[Case]:
    yield Case("find a transaction", ApiKey.FIND_COORDINATOR, find(TRANSACTION, 1), range(1, 100))
    without = fixed(transactional_id=None, transaction_timeout_ms=60_000)
    yield Case("idempotent producer", ApiKey.INIT_PRODUCER_ID, without)
    yield Case("transactional producer", ApiKey.INIT_PRODUCER_ID, init_transaction)
    both = (EXISTING, UNNAMED)
    yield Case("add partitions", ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions(EXISTING))
    yield Case("add several", ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions(*both, ABSENT))
    of_group = {"transactional_id": TRANSACTION, "group_id": GROUP_NAME, **NO_PRODUCER}
    yield Case("add offsets", ApiKey.ADD_OFFSETS_TO_TXN, fixed(**of_group))
    yield Case("end a transaction", ApiKey.END_TXN,
               fixed(transactional_id=TRANSACTION, **NO_PRODUCER))  # fmt: skip
    in_transaction = commit_in_transaction(*both)
    yield Case("commit in a transaction", ApiKey.TXN_OFFSET_COMMIT, in_transaction)
    yield Case("write markers", ApiKey.WRITE_TXN_MARKERS, markers(EXISTING))
    yield Case("write absent markers", ApiKey.WRITE_TXN_MARKERS, markers(ABSENT))
    ids = fixed(transactional_ids=[TRANSACTION, "other"])
    yield Case("describe transactions", ApiKey.DESCRIBE_TRANSACTIONS, ids)


def _of_cluster() -> Iterator[Case]:
    for name, kind, resource, key, value in (
        ("a topic", TOPIC, EXISTING, "retention.ms", "1000"),
        ("an absent topic", TOPIC, ABSENT, "retention.ms", "1000"),
        ("the broker", BROKER, "{}", "log.cleaner.threads", "1"),
        ("a group", GROUP, GROUP_NAME, "consumer.session.timeout.ms", "45000"),
    ):
        yield Case(f"configs of {name}", ApiKey.DESCRIBE_CONFIGS, configs(kind, resource))
        changed = alter(kind, resource, key, value)
        yield Case(f"set configs of {name}", ApiKey.ALTER_CONFIGS, changed)
        yield Case(f"change configs of {name}", ApiKey.INCREMENTAL_ALTER_CONFIGS, changed)
    yield Case("list configs", ApiKey.LIST_CONFIG_RESOURCES, fixed())
    yield Case("describe ACLs", ApiKey.DESCRIBE_ACLS, describe_acls)
    yield Case("create an ACL", ApiKey.CREATE_ACLS, create_acl)
    yield Case("delete ACLs", ApiKey.DELETE_ACLS, delete_acls)
    yield Case("describe quotas", ApiKey.DESCRIBE_CLIENT_QUOTAS, fixed())
    yield Case("set a quota", ApiKey.ALTER_CLIENT_QUOTAS, alter_quota)
    yield Case("describe a user", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, describe_scram)
    yield Case("delete a user", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, delete_scram)
    yield Case("describe the quorum", ApiKey.DESCRIBE_QUORUM, quorum)
    yield Case("set features", ApiKey.UPDATE_FEATURES, update_features)
    yield Case("describe the cluster", ApiKey.DESCRIBE_CLUSTER, describe_cluster)
    yield Case("unregister a broker", ApiKey.UNREGISTER_BROKER, fixed(broker_id=99))
    yield Case(
        "add a voter", ApiKey.ADD_RAFT_VOTER, fixed(cluster_id=None, voter_id=99, timeout_ms=1000)
    )
    yield Case("remove a voter", ApiKey.REMOVE_RAFT_VOTER, fixed(cluster_id=None, voter_id=99))
    yield Case("versions", ApiKey.API_VERSIONS,
               fixed(client_software_name="a", client_software_version="1"))  # fmt: skip
    yield Case("create a token", ApiKey.CREATE_DELEGATION_TOKEN, fixed(max_lifetime_ms=60_000))
    yield Case("create another's token", ApiKey.CREATE_DELEGATION_TOKEN,
               fixed(max_lifetime_ms=60_000, owner_principal_type="User",
                     owner_principal_name="stranger"), range(3, 100))  # fmt: skip
    yield Case("renew a token", ApiKey.RENEW_DELEGATION_TOKEN, fixed(hmac=b"x" * 64))
    yield Case("expire a token", ApiKey.EXPIRE_DELEGATION_TOKEN, fixed(hmac=b"x" * 64))
    yield Case(
        "describe tokens", ApiKey.DESCRIBE_DELEGATION_TOKEN, fixed(owners=None), is_list=True
    )
    yield Case("describe another's tokens", ApiKey.DESCRIBE_DELEGATION_TOKEN, another_token)
    yield Case("begin another login", ApiKey.SASL_HANDSHAKE, fixed(mechanism="PLAIN"))
