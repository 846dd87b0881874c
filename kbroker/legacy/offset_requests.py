"""Requests of 0.8 for offsets: those of logs by time, and those that groups have committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition
from kbroker.errors import ErrorCode
from kbroker.legacy.legacy_errors import raise_for
from kbroker.legacy.topic_metadata import Broker
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.list_offsets import EARLIEST, LATEST, ListOffsetsRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest as CommitMessage
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest as FetchMessage

LATEST_TIME = LATEST
EARLIEST_TIME = EARLIEST
# Versions of the requests for committed offsets: where they are.
IN_ZOOKEEPER, IN_BROKERS = 0, 1
NO_OFFSET = -1
_NOW = -1


class PartitionOffsetRequestInfo(NamedTuple):
    """time: ms since 1970, LATEST_TIME or EARLIEST_TIME."""

    time: int
    max_num_offsets: int = 1


class OffsetRequest:
    """The offsets of segments that were last written to before a time, by (topic, partition)."""

    LATEST_TIME = LATEST_TIME
    EARLIEST_TIME = EARLIEST_TIME

    def __init__(
        self,
        request_info: Mapping[TopicPartition, tuple[int, int]],
        version_id: int = 0,
        client_id: str = "",
    ) -> None:
        if version_id != 0:
            raise ValueError(f"version {version_id}: clients of 0.8 have version 0 alone")
        self.request_info = {
            key: PartitionOffsetRequestInfo(*info) for key, info in request_info.items()
        }
        self.version_id = version_id
        self.client_id = client_id

    def message(self) -> ListOffsetsRequest:
        """As it is sent."""
        return ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=partition,
                            timestamp=self.request_info[topic, partition].time,
                            max_num_offsets=self.request_info[topic, partition].max_num_offsets,
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in _by_topic(self.request_info).items()
            ],
        )


class PartitionOffsetsResponse(NamedTuple):
    """offsets: the largest first."""

    error: int
    offsets: list[int]


class OffsetResponse:
    """data: by (topic, partition)."""

    def __init__(self, data: Mapping[TopicPartition, PartitionOffsetsResponse]) -> None:
        self.data = dict(data)

    @classmethod
    def read(cls, response: Any) -> OffsetResponse:
        """From the decoded one."""
        return cls(
            {
                (topic.name, row.partition_index): PartitionOffsetsResponse(
                    row.error_code, list(row.old_style_offsets)
                )
                for topic in response.topics
                for row in topic.partitions
            }
        )

    @property
    def has_error(self) -> bool:
        return any(row.error for row in self.data.values())

    def error_code(self, topic: str, partition: int) -> int:
        """0 if there is none."""
        return self.data[topic, partition].error

    def offsets(self, topic: str, partition: int) -> list[int]:
        """The largest first."""
        return self.data[topic, partition].offsets

    def raise_for_error(self) -> None:
        """Raise RejectedError for the first partition that has an error."""
        for (topic, partition), row in self.data.items():
            raise_for(row.error, f"offsets of {topic}-{partition}")


class OffsetAndMetadata(NamedTuple):
    """A position of a group. timestamp: ms since 1970, -1: when the broker gets it."""

    offset: int
    metadata: str = ""
    timestamp: int = _NOW


class OffsetMetadataAndError(NamedTuple):
    """offset: -1 if there is none. error: 0, or of the protocol."""

    offset: int
    metadata: str
    error: int


class OffsetCommitRequest:
    """version_id: IN_BROKERS (1), which only the coordinator of the group serves, or IN_ZOOKEEPER
    (0), which any broker does. request_info: an offset, or an OffsetAndMetadata, by (topic,
    partition).
    """

    def __init__(
        self,
        group_id: str,
        request_info: Mapping[TopicPartition, int | tuple[Any, ...]],
        version_id: int = IN_BROKERS,
        client_id: str = "",
        group_generation_id: int = -1,
        consumer_id: str = "",
    ) -> None:
        _require_version(version_id)
        self.group_id = group_id
        self.request_info = {
            key: OffsetAndMetadata(info) if isinstance(info, int) else OffsetAndMetadata(*info)
            for key, info in request_info.items()
        }
        self.version_id = version_id
        self.client_id = client_id
        self.group_generation_id = group_generation_id
        self.consumer_id = consumer_id

    def message(self) -> CommitMessage:
        """As it is sent."""

        def row(key: TopicPartition) -> Any:
            info = self.request_info[key]
            return CommitMessage.OffsetCommitRequestPartition(
                partition_index=key[1],
                committed_offset=info.offset,
                commit_timestamp=info.timestamp if self.version_id == IN_BROKERS else _NOW,
                committed_metadata=info.metadata,
            )

        return CommitMessage(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.group_generation_id,
            member_id=self.consumer_id,
            topics=[
                CommitMessage.OffsetCommitRequestTopic(
                    name=topic, partitions=[row((topic, partition)) for partition in partitions]
                )
                for topic, partitions in _by_topic(self.request_info).items()
            ],
        )


class OffsetCommitResponse:
    """errors: codes by (topic, partition), 0 where the offset is committed."""

    def __init__(self, errors: Mapping[TopicPartition, int]) -> None:
        self.errors = dict(errors)

    @classmethod
    def read(cls, response: Any) -> OffsetCommitResponse:
        """From the decoded one."""
        return cls(
            {
                (topic.name, row.partition_index): row.error_code
                for topic in response.topics
                for row in topic.partitions
            }
        )

    @property
    def has_error(self) -> bool:
        return any(self.errors.values())

    def error_code(self, topic: str, partition: int) -> int:
        """0 if there is none."""
        return self.errors[topic, partition]

    def raise_for_error(self) -> None:
        """Raise RejectedError for the first partition that has an error."""
        for (topic, partition), code in self.errors.items():
            raise_for(code, f"commit of an offset of {topic}-{partition}")


class OffsetFetchRequest:
    """version_id: as that of OffsetCommitRequest."""

    def __init__(
        self,
        group_id: str,
        request_info: Iterable[TopicPartition],
        version_id: int = IN_BROKERS,
        client_id: str = "",
    ) -> None:
        _require_version(version_id)
        self.group_id = group_id
        self.request_info = list(request_info)
        self.version_id = version_id
        self.client_id = client_id

    def message(self) -> FetchMessage:
        """As it is sent."""
        return FetchMessage(
            group_id=self.group_id,
            topics=[
                FetchMessage.OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)
                for topic, partitions in _by_topic(self.request_info).items()
            ],
        )


class OffsetFetchResponse:
    """offsets: by (topic, partition)."""

    def __init__(self, offsets: Mapping[TopicPartition, OffsetMetadataAndError]) -> None:
        self.offsets = dict(offsets)

    @classmethod
    def read(cls, response: Any) -> OffsetFetchResponse:
        """From the decoded one."""
        return cls(
            {
                (topic.name, row.partition_index): OffsetMetadataAndError(
                    row.committed_offset, row.metadata or "", row.error_code
                )
                for topic in response.topics
                for row in topic.partitions
            }
        )

    def committed(self) -> dict[TopicPartition, OffsetMetadataAndError]:
        """Those that there are. Raises RejectedError for the first other error.

        COMPAT: of a partition without one, ZooKeeper's say UNKNOWN_TOPIC_OR_PARTITION.
        """
        offsets = {}
        for (topic, partition), row in self.offsets.items():
            if row.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise_for(row.error, f"committed offset of {topic}-{partition}")
            if row.offset != NO_OFFSET:
                offsets[topic, partition] = row
        return offsets


class ConsumerMetadataRequest:
    """Which broker coordinates a group."""

    def __init__(self, group: str, client_id: str = "") -> None:
        self.group = group
        self.client_id = client_id

    def message(self) -> FindCoordinatorRequest:
        """As it is sent."""
        return FindCoordinatorRequest(key=self.group)


class ConsumerMetadataResponse(NamedTuple):
    """coordinator: None if there is none yet."""

    coordinator: Broker | None
    error_code: int

    @classmethod
    def read(cls, response: Any) -> ConsumerMetadataResponse:
        """From the decoded one."""
        if response.error_code:
            return cls(None, response.error_code)
        return cls(Broker(response.node_id, response.host, response.port), 0)


def _require_version(version_id: int) -> None:
    if version_id not in (IN_ZOOKEEPER, IN_BROKERS):
        raise ValueError(f"version {version_id} is neither 0 (in ZooKeeper) nor 1 (in brokers)")


def _by_topic(keys: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for topic, partition in keys:
        numbers[topic].append(partition)
    return numbers
