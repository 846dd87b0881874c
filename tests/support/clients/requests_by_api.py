"""A request of each API, about the resources that it can name: a topic, a group, a transaction."""

from __future__ import annotations

from typing import Any

from kbroker.config.resource_types import TOPIC
from kbroker.protocol.api import ApiKey, request_class

TOPIC_NAME, TOPIC_ID = "secret-topic", b"s" * 16
GROUP, TRANSACTION = "secret-group", "secret-transaction"


def request_of(key: ApiKey, version: int) -> Any:
    """The request in a version; with defaults for what is not listed here."""
    cls: Any = request_class(key)
    build = BUILDERS.get(key)
    return cls() if build is None else build(cls, version)


def by_name_or_id(made: Any, version: int, first_with_id: int) -> Any:
    """``made`` with the topic's name, or with its id."""
    if version >= first_with_id:
        made.topic_id = TOPIC_ID
    else:
        made.name = TOPIC_NAME
    return made


def metadata(cls: Any, version: int) -> Any:
    return cls(topics=[cls.MetadataRequestTopic(name=TOPIC_NAME)])


def offset_commit(cls: Any, version: int) -> Any:
    topic = cls.OffsetCommitRequestTopic(partitions=[cls.OffsetCommitRequestPartition()])
    return cls(group_id=GROUP, topics=[by_name_or_id(topic, version, 10)])


def offset_fetch(cls: Any, version: int) -> Any:
    if version < 8:
        topic = cls.OffsetFetchRequestTopic(name=TOPIC_NAME, partition_indexes=[0])
        return cls(group_id=GROUP, topics=[topic])
    topic = by_name_or_id(cls.OffsetFetchRequestTopics(partition_indexes=[0]), version, 10)
    return cls(groups=[cls.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])])


def find_coordinator(cls: Any, version: int) -> Any:
    return cls(key=GROUP) if version < 4 else cls(coordinator_keys=[GROUP])


def delete_topics(cls: Any, version: int) -> Any:
    if version < 6:
        return cls(topic_names=[TOPIC_NAME])
    return cls(topics=[cls.DeleteTopicState(name=TOPIC_NAME)])


def add_partitions(cls: Any, version: int) -> Any:
    topics = [cls.AddPartitionsToTxnTopic(name=TOPIC_NAME, partitions=[0])]
    if version < 4:
        return cls(v3_and_below_transactional_id=TRANSACTION, v3_and_below_topics=topics)
    made = cls.AddPartitionsToTxnTransaction(transactional_id=TRANSACTION, topics=topics)
    return cls(transactions=[made])


def write_markers(cls: Any, version: int) -> Any:
    topic = cls.WritableTxnMarkerTopic(name=TOPIC_NAME, partition_indexes=[0])
    return cls(markers=[cls.WritableTxnMarker(topics=[topic])])


def log_dirs(cls: Any, version: int) -> Any:
    topic = cls.AlterReplicaLogDirTopic(name=TOPIC_NAME, partitions=[0])
    return cls(dirs=[cls.AlterReplicaLogDir(path="/d", topics=[topic])])


def list_offsets(cls: Any, version: int) -> Any:
    partitions = [cls.ListOffsetsPartition(timestamp=-1)]
    return cls(topics=[cls.ListOffsetsTopic(name=TOPIC_NAME, partitions=partitions)])


def of_resource(name: str) -> Any:
    def build(cls: Any, version: int) -> Any:
        resource = getattr(cls, name)(resource_type=TOPIC, resource_name=TOPIC_NAME)
        return cls(resources=[resource])

    return build


def of_topic(struct: str, field: str, name: str = "name", **rest: Any) -> Any:
    """A request with one struct for the topic; ``rest`` are lists of structs in it, by name."""

    def build(cls: Any, version: int) -> Any:
        inner = {
            key: [getattr(cls, value)()] if isinstance(value, str) else value
            for key, value in rest.items()
        }
        made = getattr(cls, struct)(**{name: TOPIC_NAME}, **inner)
        return cls(**{field: [made]})

    return build


def of(**values: Any) -> Any:
    return lambda cls, version: cls(**values)


BUILDERS: dict[ApiKey, Any] = {
    ApiKey.METADATA: metadata,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: of(group_id=GROUP),
    ApiKey.HEARTBEAT: of(group_id=GROUP),
    ApiKey.LEAVE_GROUP: of(group_id=GROUP),
    ApiKey.SYNC_GROUP: of(group_id=GROUP),
    ApiKey.DESCRIBE_GROUPS: of(groups=[GROUP]),
    ApiKey.API_VERSIONS: of(client_software_name="a", client_software_version="1"),
    ApiKey.CREATE_TOPICS: of_topic("CreatableTopic", "topics"),
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: of_topic(
        "DeleteRecordsTopic", "topics", partitions="DeleteRecordsPartition"
    ),
    ApiKey.INIT_PRODUCER_ID: of(transactional_id=None),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: of_topic(
        "OffsetForLeaderTopic", "topics", "topic", partitions="OffsetForLeaderPartition"
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: of(transactional_id=TRANSACTION, group_id=GROUP),
    ApiKey.END_TXN: of(transactional_id=TRANSACTION),
    ApiKey.WRITE_TXN_MARKERS: write_markers,
    ApiKey.TXN_OFFSET_COMMIT: lambda cls, version: cls(
        transactional_id=TRANSACTION,
        group_id=GROUP,
        topics=[
            cls.TxnOffsetCommitRequestTopic(
                name=TOPIC_NAME, partitions=[cls.TxnOffsetCommitRequestPartition()]
            )
        ],
    ),
    ApiKey.CREATE_ACLS: lambda cls, version: cls(creations=[cls.AclCreation()]),
    ApiKey.DELETE_ACLS: lambda cls, version: cls(filters=[cls.DeleteAclsFilter()]),
    ApiKey.DESCRIBE_CONFIGS: of_resource("DescribeConfigsResource"),
    ApiKey.ALTER_CONFIGS: of_resource("AlterConfigsResource"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: of_resource("AlterConfigsResource"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs,
    ApiKey.CREATE_PARTITIONS: of_topic("CreatePartitionsTopic", "topics", count=5),
    ApiKey.DELETE_GROUPS: of(groups_names=[GROUP]),
    ApiKey.ELECT_LEADERS: of_topic("TopicPartitions", "topic_partitions", "topic", partitions=[0]),
    ApiKey.OFFSET_DELETE: lambda cls, version: cls(
        group_id=GROUP,
        topics=[
            cls.OffsetDeleteRequestTopic(
                name=TOPIC_NAME, partitions=[cls.OffsetDeleteRequestPartition()]
            )
        ],
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda cls, version: cls(
        entries=[cls.EntryData(entity=[cls.EntityData(entity_type="user", entity_name="u")])]
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda cls, version: cls(
        deletions=[cls.ScramCredentialDeletion(name="u")]
    ),
    ApiKey.DESCRIBE_PRODUCERS: of_topic("TopicRequest", "topics", partition_indexes=[0]),
    ApiKey.DESCRIBE_TRANSACTIONS: of(transactional_ids=[TRANSACTION]),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: of(group_id=GROUP, subscribed_topic_names=[TOPIC_NAME]),
    ApiKey.CONSUMER_GROUP_DESCRIBE: of(group_ids=[GROUP]),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: of_topic("TopicRequest", "topics"),
}
