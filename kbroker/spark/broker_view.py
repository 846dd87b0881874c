"""Answers the questions of ``offsets`` by asking the brokers of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.batches import offsets as client
from kbroker.client.connections.cluster import NO_TOPIC_ID, Cluster, Topic
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.spark.options.option_values import TopicPartition


class BrokerView:
    """A ``LogView``. read_committed: "latest" is the last stable offset."""

    def __init__(self, cluster: Cluster, *, read_committed: bool = False) -> None:
        self.cluster = cluster
        self.read_committed = read_committed
        self._topic_ids: dict[str, bytes] = {}

    def topics(self) -> dict[str, int]:
        return self._counts(t for t in self.cluster.topics().values() if not t.internal)

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        return self._counts(self.cluster.topics(topics).values())

    def _counts(self, topics: Iterable[Topic]) -> dict[str, int]:
        counts = {}
        for topic in topics:
            counts[topic.name] = len(topic.partitions)
            if topic.id != NO_TOPIC_ID:
                self._topic_ids[topic.name] = topic.id
        return counts

    def topic_ids(self) -> dict[str, bytes]:
        return dict(self._topic_ids)

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        try:
            return self._list(wanted)
        except RejectedError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        counts = self.partition_counts({topic for topic, _ in wanted})
        left = {key: at for key, at in wanted.items() if key[1] < counts.get(key[0], 0)}
        return self._list(left)

    def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        offsets = client.list_offsets(self.cluster, wanted, read_committed=self.read_committed)
        return {key: answer.offset for key, answer in offsets.items()}

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        offsets = client.committed(self.cluster, group_id, partitions)
        return {key: answer.offset for key, answer in offsets.items()}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        client.commit(self.cluster, group_id, {key: (at, "") for key, at in offsets.items()})

    def sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = set(partitions)
        sizes = client.log_dir_sizes(self.cluster, {topic for topic, _ in wanted})
        return {key: size for key, size in sizes.items() if key in wanted}
