"""Which brokers have what: the topic metadata request of 0.8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.protocol.messages.metadata import MetadataRequest


class Broker(NamedTuple):
    """A broker and where it is."""

    id: int
    host: str
    port: int


class PartitionMetadata(NamedTuple):
    """leader: None if there is none. error_code: 0, or of the protocol."""

    partition_id: int
    leader: Broker | None
    replicas: list[Broker]
    isr: list[Broker]
    error_code: int


class TopicMetadata(NamedTuple):
    """partitions_metadata: by number."""

    topic: str
    partitions_metadata: list[PartitionMetadata]
    error_code: int


class TopicMetadataRequest:
    """topics: none asks for all. Brokers with auto.create.topics.enable create missing ones."""

    def __init__(
        self, topics: Sequence[str] = (), version_id: int = 0, client_id: str = ""
    ) -> None:
        if isinstance(topics, str):
            raise TypeError(f"a list of topics, and not {topics!r}")
        if version_id != 0:
            raise ValueError(f"version {version_id}: clients of 0.8 have version 0 alone")
        self.topics = list(topics)
        self.version_id = version_id
        self.client_id = client_id

    def message(self) -> MetadataRequest:
        """As it is sent."""
        return MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in self.topics]
        )


class TopicMetadataResponse(NamedTuple):
    """brokers: all of the cluster."""

    topics_metadata: list[TopicMetadata]
    brokers: list[Broker]

    @classmethod
    def read(cls, response: Any) -> TopicMetadataResponse:
        """From the decoded one."""
        known = {row.node_id: Broker(row.node_id, row.host, row.port) for row in response.brokers}

        def brokers(ids: list[int]) -> list[Broker]:
            return [known[number] for number in ids if number in known]

        topics = [
            TopicMetadata(
                topic.name,
                [
                    PartitionMetadata(
                        row.partition_index,
                        known.get(row.leader_id),
                        brokers(row.replica_nodes),
                        brokers(row.isr_nodes),
                        row.error_code,
                    )
                    for row in sorted(topic.partitions, key=lambda row: int(row.partition_index))
                ],
                topic.error_code,
            )
            for topic in response.topics
        ]
        return cls(topics, list(known.values()))
