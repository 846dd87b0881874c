"""Topics, their partitions, records, configs and replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kbroker.client.admin import configs as config_admin
from kbroker.client.admin import partitions as partition_admin
from kbroker.client.admin import reassignments as reassignment_admin
from kbroker.client.admin import topics as topic_admin
from kbroker.client.admin.calls import AdminCalls
from kbroker.client.admin.configs import Setting
from kbroker.client.admin.partitions import LogDir, Reassignment
from kbroker.client.admin.reassignments import PartitionReplica, ReplicaDirs
from kbroker.client.admin.topics import CreatedTopic, NewTopic, TopicState
from kbroker.client.batches import offsets
from kbroker.client.batches.offsets import Offset, TopicPartition
from kbroker.client.errors import ClientError, RejectedError


class TopicCalls(AdminCalls):
    """Results of several topics or partitions have an error in the place of each that is rejected,
    and None where a call has nothing to tell.
    """

    # -- topics (KIP-4)

    def list_topics(self) -> list[TopicState]:
        """All topics that this user may describe, with their partitions, sorted by name."""
        return self._do(topic_admin.list_topics)

    def describe_topics(self, names: Iterable[str]) -> list[TopicState]:
        """These topics, in this order; creates none. Raises RejectedError,
        UNKNOWN_TOPIC_OR_PARTITION for the first that does not exist.
        """
        return self._do(topic_admin.describe_topics, names)

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | RejectedError]:
        """Create topics; returns when their partitions have leaders. The brokers' defaults take the
        place of what is not given from Kafka 2.4 on (KIP-464).

        validate_only: only check whether they could be created. An attempt that is repeated after
        a lost connection may report TOPIC_ALREADY_EXISTS.
        """
        return self._do(topic_admin.create_topics, topics, validate_only=validate_only)

    def delete_topics(self, names: Iterable[str]) -> dict[str, RejectedError | None]:
        """Delete topics with their records."""
        return self._do(topic_admin.delete_topics, names)

    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, list[list[int]]] | None = None,
        validate_only: bool = False,
    ) -> dict[str, RejectedError | None]:
        """Give topics more partitions (KIP-195). Keys may then have another partition than before.

        counts: of all partitions then, more than now. assignments: by topic, the node ids of each
        new partition, the preferred leader first.
        """
        return self._do(
            topic_admin.add_partitions,
            counts,
            validate_only=validate_only,
            assignments=assignments,
        )

    # -- configs (KIP-133, KIP-339)

    def describe_configs(
        self,
        kind: int,
        names: Iterable[str],
        keys: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[str, list[Setting] | RejectedError]:
        """Settings of resources, sorted.

        kind: ``configs.TOPIC``, BROKER, BROKER_LOGGER, CLIENT_METRICS (KIP-714) or GROUP
        (KIP-848). names: of topics or groups, or ids of brokers; the empty one is the default of
        all brokers. keys: only these settings. documentation: with their texts (KIP-569, from Kafka
        2.6). synonyms: with all places that a value may come from (KIP-226).
        """
        return self._do(
            config_admin.describe_configs,
            kind,
            names,
            keys,
            documentation=documentation,
            synonyms=synonyms,
        )

    def alter_configs(
        self,
        kind: int,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set or unset (None) settings of one resource, all or none of them; others stay (KIP-339,
        from Kafka 2.3). Raises RejectedError.
        """
        self._do(config_admin.alter_configs, kind, name, changes, validate_only=validate_only)

    def list_config_resources(self, kind: int) -> list[str]:
        """Names of the resources of a kind that have settings (KIP-1142, from Kafka 4.1; client
        metrics from 3.7). Raises RejectedError.
        """
        return self._do(config_admin.list_resources, kind)

    # -- records

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, Offset]:
        """The first offset at or after a time of each partition (KIP-396).

        wanted: ms since 1970, or ``offsets.EARLIEST`` or LATEST: the offset that the next record
        gets, with read_committed that of the first undecided one. Raises RejectedError for a
        partition that does not exist.
        """
        return self._do(offsets.list_offsets, wanted, read_committed=read_committed)

    def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | ClientError]:
        """Delete the records below these offsets, -1: all (KIP-107); the first offset that is left
        in each partition.
        """
        return self._do(partition_admin.delete_records, before)

    # -- replicas

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, RejectedError | None]:
        """Let the preferred replica of each partition lead (KIP-460), None: of all where it does
        not. unclean: any live replica where there is no leader, which may lose records.
        """
        return self._do(partition_admin.elect_leaders, partitions, unclean=unclean)

    def alter_partition_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        factor_may_change: bool = True,
    ) -> dict[TopicPartition, RejectedError | None]:
        """Begin to move partitions to these nodes, the preferred leader first; None cancels what is
        in progress (KIP-455). factor_may_change: False rejects another number of replicas than now
        (KIP-860, from Kafka 4.1).
        """
        return self._do(
            reassignment_admin.alter_reassignments, replicas, factor_may_change=factor_may_change
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments in progress, None: all (KIP-455)."""
        return self._do(partition_admin.list_reassignments, partitions)

    def describe_log_dirs(self, nodes: Iterable[int]) -> dict[int, list[LogDir]]:
        """The log directories of these brokers, with the bytes of each replica (KIP-113)."""
        return self._do(partition_admin.log_dirs, nodes)

    def describe_replica_log_dirs(
        self, replicas: Iterable[PartitionReplica]
    ) -> dict[PartitionReplica, ReplicaDirs]:
        """In which log directories replicas are, and to which they move (KIP-113)."""
        return self._do(reassignment_admin.replica_dirs, replicas)

    def alter_replica_log_dirs(
        self, paths: Mapping[PartitionReplica, str]
    ) -> dict[PartitionReplica, RejectedError | None]:
        """Begin to move replicas to these log directories of their brokers (KIP-113)."""
        return self._do(reassignment_admin.alter_replica_log_dirs, paths)
