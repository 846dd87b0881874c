"""Where ``kbroker consume`` reads, and where it ends."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cli.arguments import CommandFailed, Usage, nearest

if TYPE_CHECKING:
    from kbroker.client.batches.topic_reader import ReadRecord, TopicReader
    from kbroker.client.connections.cluster import Cluster

    TopicPartition = tuple[str, int]

BEGINNING, END = "beginning", "end"
# How long to wait for records before the brokers are asked again: short after some came.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5
# A member is asked for so many records at once, and so often whether it has reached the end.
_POLLED_MAX, _POLL_S = 500, 0.5
_WILD = frozenset("*?[")


class Limits(NamedTuple):
    """Where reading ends. most, per_partition: records. until: END, or the first offset that is not
    read. until_ms: the time of the first record that is not read. None: that is no end.
    """

    most: int | None
    per_partition: int | None
    until: str | int | None
    until_ms: int | None


def is_pattern(name: str) -> bool:
    return not _WILD.isdisjoint(name)


# -- without a group


class Reading:
    """The records of some partitions, until one of the limits is reached."""

    def __init__(self, reader: TopicReader, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self._counts: Counter[TopicPartition] = Counter()
        self._last: Mapping[TopicPartition, int] | None = None
        if isinstance(limits.until, int):
            self._last = dict.fromkeys(reader.positions, limits.until)

    def turns(self) -> Iterator[Iterable[ReadRecord]]:
        """What there is now; then, after a pause, what has come since."""
        pause_s = _PAUSE_MIN_S
        while True:
            before = sum(self._counts.values())
            self._find_last()
            ends = self._reader.ends()
            yield self._records(ends)
            if self._is_done(ends):
                return
            # BOUND: an idle topic is asked about twice a second.
            came = sum(self._counts.values()) > before
            pause_s = _PAUSE_MIN_S if came else min(2 * pause_s, _PAUSE_MAX_S)
            time.sleep(pause_s)

    def _find_last(self) -> None:
        """Where a time ends, once it has come."""
        until_ms = self._limits.until_ms
        if until_ms is not None and self._last is None and time.time() * 1000 >= until_ms:
            from kbroker.client.admin.groups import offsets_at

            self._last = offsets_at(self._reader.cluster, self._reader.positions, until_ms)

    def _records(self, ends: Mapping[TopicPartition, int]) -> Iterator[ReadRecord]:
        limits = self._limits
        for key, end in ends.items():
            if self._last is not None:
                end = min(end, self._last[key])
            if self._is_full(key):
                continue
            for record in self._reader.read({key: end}):
                self._counts[key] += 1
                yield record
                if limits.most is not None and sum(self._counts.values()) >= limits.most:
                    return
                if self._is_full(key):
                    break

    def _is_full(self, key: TopicPartition) -> bool:
        most = self._limits.per_partition
        return most is not None and self._counts[key] >= most

    def _is_done(self, ends: Mapping[TopicPartition, int]) -> bool:
        limits, last = self._limits, self._last
        if limits.until == END:
            return True
        if limits.most is not None and sum(self._counts.values()) >= limits.most:
            return True
        if limits.per_partition is not None and all(map(self._is_full, ends)):
            return True
        if last is None:
            return False
        positions = self._reader.positions
        return all(positions[key] >= last[key] or self._is_full(key) for key in ends)


def partitions(
    cluster: Cluster, names: Iterable[str], numbers: Iterable[int]
) -> list[TopicPartition]:
    """Those of the topics with these names or patterns. numbers: only these, of each. Raises
    Failed.
    """
    keys: dict[TopicPartition, None] = {}
    for name in _topics(cluster, list(dict.fromkeys(names))):
        topic: Any = cluster.topics([name]).get(name)
        if topic is None:
            meant = nearest(name, cluster.topics())
            instead = f"; did you mean {meant}?" if meant else ""
            raise CommandFailed(f"topic {name} does not exist{instead}")
        for number in numbers:
            if number not in topic.partitions:
                raise CommandFailed(f"topic {name} has no partition {number}")
        keys.update({(name, number): None for number in numbers or topic.partitions})
    return list(keys)


def _topics(cluster: Cluster, names: list[str]) -> list[str]:
    """Patterns match no internal topics, unless they begin as these do. Raises CommandFailed."""
    if not any(map(is_pattern, names)):
        return names
    from kbroker.client.admin.topics import list_topics

    known = list_topics(cluster)
    chosen: dict[str, None] = {}
    for name in names:
        matching = [
            topic.name
            for topic in known
            if fnmatchcase(topic.name, name) and (not topic.internal or name.startswith("__"))
        ]
        if is_pattern(name) and not matching:
            raise CommandFailed(f"no topic matches {name!r}")
        chosen.update(dict.fromkeys(matching if is_pattern(name) else [name]))
    return list(chosen)


# -- as a group


class GroupReading:
    """The records that a member of a group gets, which commits what has been printed."""

    def __init__(self, options: argparse.Namespace, settings: Mapping[str, Any]) -> None:
        from kbroker.client import KafkaConsumer

        self._most: int | None = options.max_messages
        self._ends_at_end = options.until == END
        self._consumer = KafkaConsumer(
            {
                **settings,
                "group.id": options.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest" if options.offset == END else "earliest",
                "isolation.level": (
                    "read_committed" if options.read_committed else "read_uncommitted"
                ),
            }
        )
        names = list(dict.fromkeys(options.topic))
        if any(map(is_pattern, names)):
            self._consumer.subscribe(pattern="|".join(map(translate, names)))
        else:
            self._consumer.subscribe(names)

    def turns(self) -> Iterator[Iterable[ReadRecord]]:
        """As ``Reading.turns``. What was printed is committed; the member leaves at the end."""
        count = 0
        ends: dict[tuple[str, int], int] = {}
        with self._consumer as consumer:
            while self._most is None or count < self._most:
                left = None if self._most is None else min(self._most - count, _POLLED_MAX)
                records = consumer.poll(_POLL_S, left)
                count += len(records)
                yield list(map(_read_record, records))
                if records:
                    consumer.commit_sync()
                if not self._ends_at_end:
                    continue
                assigned = consumer.assignment()
                if new := assigned - ends.keys():
                    ends |= {
                        (key.topic, key.partition): end
                        for key, end in consumer.end_offsets(new).items()
                    }
                if assigned and all(consumer.position(key) >= ends[key] for key in assigned):
                    return


def _read_record(record: Any) -> ReadRecord:
    from kbroker.client.batches.topic_reader import ReadRecord

    headers = tuple((name.encode(), value) for name, value in record.headers)
    return ReadRecord(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value,
        headers,
    )  # fmt: skip


def check_group(options: argparse.Namespace) -> None:
    """Raises Usage for what a member of a group cannot choose."""
    wrong = {
        "--partition": bool(options.partition),
        "--from-time": options.from_time is not None,
        "--since": options.since is not None,
        "--tail": options.tail is not None,
        "--offset": options.offset not in (BEGINNING, END),
        "--until": options.until not in (None, END),
        "--until-time": options.until_time is not None,
        "--per-partition": options.per_partition is not None,
    }
    for option, is_given in wrong.items():
        if is_given:
            raise Usage(f"{option} does not go with --group: the group decides what is read")
