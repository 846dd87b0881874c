"""``kafka-replica-verification``: whether all replicas of topics have the same batches."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cli.kafka.options import Given, valued
from kbroker.cli.kafka.running import Tool, ToolFailed, check_bootstrap, connected
from kbroker.cli.kafka.topic_filter import included

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.client.admin.replica_reads import ReplicaData
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster

OPTIONS = (
    valued("broker-list", "hostname:port,...,hostname:port", "Brokers to connect to; required."),
    valued("fetch-size", "bytes", "Bytes of a partition in one response.", kind=int,
           default=str(1 << 20)),
    valued("max-wait-ms", "ms", "The pause when there is nothing new.", kind=int, default="1000"),
    valued("topics-include", "Java regex (String)", "A regular expression for topics.",
           default=".*"),
    valued("topic-white-list", "Java regex (String)", "The same, as before Kafka 4."),
    valued("time", "timestamp/-1(latest)/-2(earliest)", "Where to begin.", kind=int, long=True,
           default="-1"),
    valued("report-interval-ms", "ms", "Milliseconds between lines.", kind=int, long=True,
           default="30000"),
    valued("command-config", "config file", "A file with settings of a client."),
)  # fmt: skip


def _run(given: Given) -> int:
    given.require("broker-list")
    check_bootstrap(given.one("broker-list"))
    is_meant = included(given.one("topic-white-list") or given.one("topics-include"))
    with connected(given.one("broker-list"), given.one("command-config")) as cluster:
        from kbroker.client.admin.topics import list_topics

        replicas = {
            (topic.name, row.partition): row.replicas
            for topic in list_topics(cluster)
            if is_meant(topic.name)
            for row in topic.partitions
        }
        if not replicas:
            raise ToolFailed(
                "No topics found. [topics-include] if specified, is either filtering out all "
                "topics or there is no topic."
            )
        verifying = _Verifying(cluster, replicas, given)
        _say("verification process is started")
        verifying.run()
    return 0


def _say(what: str) -> None:
    now = datetime.now()
    print(f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03}: {what}", flush=True)


class _Worst(NamedTuple):
    """The partition whose replicas are furthest behind what is committed."""

    lag: int
    key: TopicPartition
    offset: int


class _Verifying:
    """Reads from all replicas at the same offsets, without end."""

    def __init__(
        self, cluster: Cluster, replicas: dict[TopicPartition, list[int]], given: Given
    ) -> None:
        from kbroker.client.batches.offsets import LATEST, list_offsets

        self._cluster = cluster
        self._replicas = replicas
        self._fetch_bytes = given.one("fetch-size")
        self._pause_s = given.one("max-wait-ms") / 1000
        self._interval_s = given.one("report-interval-ms") / 1000
        at = given.one("time")
        offsets = list_offsets(cluster, dict.fromkeys(replicas, at))
        self._next = {key: row.offset for key, row in offsets.items() if row.offset >= 0}
        if later := [key for key in replicas if key not in self._next]:
            ends = list_offsets(cluster, dict.fromkeys(later, LATEST))
            self._next |= {key: row.offset for key, row in ends.items()}

    def run(self) -> None:
        """Raises ToolFailed where offsets of replicas differ."""
        printed_at = time.monotonic()
        while True:
            before = dict(self._next)
            worst = self.round()
            if time.monotonic() - printed_at > self._interval_s:
                printed_at = time.monotonic()
                topic, number = worst.key
                _say(
                    f"max lag is {worst.lag} for partition {topic}-{number} at offset "
                    f"{worst.offset} among {len(self._replicas)} partitions"
                )
            if self._next == before:
                time.sleep(self._pause_s)

    def round(self) -> _Worst:
        """Compare what one fetch from each replica returns."""
        from kbroker.client.admin.replica_reads import read_replicas

        partitions = read_replicas(self._cluster, self._replicas, self._next, self._fetch_bytes)
        worst = []
        for key, rows in partitions.items():
            committed = max(data.high_watermark for data in rows.values())
            self._compare(key, rows)
            worst.append(_Worst(committed - self._next[key], key, self._next[key]))
        return max(worst, key=lambda row: row.lag)

    def _compare(self, key: TopicPartition, rows: dict[int, ReplicaData]) -> None:
        """Up to the first batch that one of them does not have, or does not know as committed."""
        name = f"{key[0]}-{key[1]}"
        for batches in zip(*(_committed(data) for data in rows.values()), strict=False):
            (first, batch), *others = zip(rows, batches, strict=True)
            for node, other in others:
                if other.last_offset != batch.last_offset:
                    _say(
                        f"partition {name}: replica {first}'s offset {batch.last_offset} doesn't "
                        f"match replica {node}'s offset {other.last_offset}"
                    )
                    raise ToolFailed(f"the replicas of {name} differ")
                if other.checksum != batch.checksum:
                    _say(
                        f"partition {name} has unmatched checksum at offset {batch.last_offset}; "
                        f"replica {first}'s checksum {batch.checksum}; replica {node}'s checksum "
                        f"{other.checksum}"
                    )
            self._next[key] = batch.last_offset + 1


def _committed(data: ReplicaData) -> Iterable[Any]:
    for batch in data.batches:
        if batch.last_offset >= data.high_watermark:
            return
        yield batch


TOOL = Tool("Validate that all replicas for a set of topics have the same data.", OPTIONS, _run)
