"""A ``LogView`` of the Spark source over logs that consist of two numbers."""

from __future__ import annotations

from kbroker.spark.offsets import NO_MATCH
from kbroker.spark.options.option_values import EARLIEST, LATEST


class FakeLogs:
    """logs: (topic, partition) -> (start, end). There is a record at each offset, and its time is
    the offset times 10. groups: group -> committed offsets.
    """

    def __init__(self, **topics: list[tuple[int, int]]) -> None:
        self.logs = {
            (topic, index): edges
            for topic, partitions in topics.items()
            for index, edges in enumerate(partitions)
        }
        self.groups: dict[str, dict[tuple[str, int], int]] = {}
        self.log_bytes: dict[tuple[str, int], int] = {}
        self.ids: dict[str, bytes] = {}

    def topics(self):
        return {t: sum(k[0] == t for k in self.logs) for t, _ in self.logs}

    def partition_counts(self, topics):
        return {t: n for t, n in self.topics().items() if t in set(topics)}

    def list_offsets(self, wanted):
        return {key: self._offset(key, at) for key, at in wanted.items() if key in self.logs}

    def _offset(self, key, at):
        start, end = self.logs[key]
        if at in (EARLIEST, LATEST):
            return start if at == EARLIEST else end
        first = max(start, -(-at // 10))
        return first if first < end else NO_MATCH

    def committed(self, group_id, partitions):
        kept = self.groups.get(group_id, {})
        return {key: at for key, at in kept.items() if key in set(partitions)}

    def commit(self, group_id, offsets):
        self.groups.setdefault(group_id, {}).update(offsets)

    def topic_ids(self):
        return dict(self.ids)

    def sizes(self, partitions):
        return {key: size for key, size in self.log_bytes.items() if key in set(partitions)}
