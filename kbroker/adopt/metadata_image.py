"""Replays a cluster's metadata log, record by record: topics, settings, features, ids."""

from __future__ import annotations

from collections import Counter

from kbroker.adopt import metadata_records as records
from kbroker.adopt.record_codec import PASSED_OVER, UnknownRecord
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.message import Message

Entity = tuple[tuple[str, str | None], ...]


class AdoptedPartition:
    """A partition as KRaft's controller saw it last.

    eligible: replicas that left the ISR with every acknowledged record (KIP-966). Where Kafka keeps
    them, the last replica leaves the ISR when it stops, and is one of them.
    """

    __slots__ = ("directories", "eligible", "isr", "leader", "leader_epoch", "replicas")

    def __init__(self, record: records.PartitionRecord) -> None:
        self.replicas: list[int] = record.replicas
        self.isr: list[int] = record.isr
        self.eligible: list[int] = record.eligible_leader_replicas or []
        self.leader: int = record.leader
        self.leader_epoch: int = record.leader_epoch
        self.directories: list[bytes] = record.directories

    def change(self, record: records.PartitionChangeRecord) -> None:
        """A new leader has a new epoch, which the record does not contain."""
        if record.isr is not None:
            self.isr = record.isr
        if record.eligible_leader_replicas is not None:
            self.eligible = record.eligible_leader_replicas
        if record.replicas is not None:
            self.replicas = record.replicas
        if record.directories is not None:
            self.directories = record.directories
        if record.leader != records.LEADER_UNCHANGED:
            self.leader = record.leader
            self.leader_epoch += 1


class AdoptedTopic:
    """A topic and its partitions by number."""

    __slots__ = ("id_is_made_up", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        # From a ZooKeeper without topic ids: the directories' id is used, if they have one.
        self.id_is_made_up = False
        self.partitions: dict[int, AdoptedPartition] = {}


class MetadataImage:
    """Everything that matters here; ``apply`` takes the records in their order.

    Records between a begin and an end of a transaction (KIP-868) count when it ends; one that is
    aborted, or open at the end of the log, never happened.
    """

    def __init__(self) -> None:
        self.topics: dict[bytes, AdoptedTopic] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id: int | None = None
        self.acls: set[bytes] = set()
        self.scram: set[tuple[str, int]] = set()
        self.quotas: set[tuple[Entity, str]] = set()
        # Unknown kinds of records, with their number.
        self.unknown: Counter[int] = Counter()
        self.end_offset = 0
        self._waiting: list[Message] | None = None

    def apply(self, record: Message | UnknownRecord) -> None:
        """Raises DecodeError for one that contradicts those before it."""
        if isinstance(record, UnknownRecord):
            if record.kind not in PASSED_OVER:
                self.unknown[record.kind] += 1
        elif isinstance(record, records.BeginTransactionRecord):
            self._waiting = []
        elif isinstance(record, records.AbortTransactionRecord):
            self._waiting = None
        elif isinstance(record, records.EndTransactionRecord):
            waiting, self._waiting = self._waiting or [], None
            for held in waiting:
                self._take(held)
        elif self._waiting is not None:
            self._waiting.append(record)
        else:
            self._take(record)

    def _take(self, record: Message) -> None:
        getattr(self, f"_take_{type(record).__name__}")(record)

    def _take_TopicRecord(self, record: records.TopicRecord) -> None:
        self.topics[record.topic_id] = AdoptedTopic(record.name, record.topic_id)

    def _take_PartitionRecord(self, record: records.PartitionRecord) -> None:
        self._topic(record.topic_id).partitions[record.partition_id] = AdoptedPartition(record)

    def _take_PartitionChangeRecord(self, record: records.PartitionChangeRecord) -> None:
        partition = self._topic(record.topic_id).partitions.get(record.partition_id)
        if partition is None:
            raise DecodeError(f"a change of partition {record.partition_id}, which does not exist")
        partition.change(record)

    def _take_ClearElrRecord(self, record: records.ClearElrRecord) -> None:
        for topic in self.topics.values():
            if record.topic_name in ("", topic.name):
                for partition in topic.partitions.values():
                    partition.eligible = []

    def _take_RemoveTopicRecord(self, record: records.RemoveTopicRecord) -> None:
        name = self._topic(record.topic_id).name
        del self.topics[record.topic_id]
        self.configs.pop((records.TOPIC_RESOURCE, name), None)

    def _take_ConfigRecord(self, record: records.ConfigRecord) -> None:
        config = self.configs.setdefault((record.resource_type, record.resource_name), {})
        if record.value is None:
            config.pop(record.name, None)
        else:
            config[record.name] = record.value

    def _take_FeatureLevelRecord(self, record: records.FeatureLevelRecord) -> None:
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)

    def _take_ProducerIdsRecord(self, record: records.ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _take_UserScramCredentialRecord(self, record: records.UserScramCredentialRecord) -> None:
        self.scram.add((record.name, record.mechanism))

    def _take_RemoveUserScramCredentialRecord(
        self, record: records.RemoveUserScramCredentialRecord
    ) -> None:
        self.scram.discard((record.name, record.mechanism))

    def _take_ClientQuotaRecord(self, record: records.ClientQuotaRecord) -> None:
        entity = tuple((part.entity_type, part.entity_name) for part in record.entity)
        if record.remove:
            self.quotas.discard((entity, record.key))
        else:
            self.quotas.add((entity, record.key))

    def _take_AccessControlEntryRecord(self, record: records.AccessControlEntryRecord) -> None:
        self.acls.add(record.id)

    def _take_RemoveAccessControlEntryRecord(
        self, record: records.RemoveAccessControlEntryRecord
    ) -> None:
        self.acls.discard(record.id)

    def _topic(self, topic_id: bytes) -> AdoptedTopic:
        try:
            return self.topics[topic_id]
        except KeyError:
            raise DecodeError(f"a record of topic id {topic_id.hex()}, which does not exist") from (
                None
            )
