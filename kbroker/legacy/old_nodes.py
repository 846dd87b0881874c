"""What Kafka 0.7 has in ZooKeeper: brokers, the partitions of topics at each of them, and offsets
of groups. Nodes of brokers and topics are there only while a broker runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.zookeeper.znodes import ZnodeError, Znodes

# BOUND: partitions of a topic at one broker, in a node of anyone.
_PARTITIONS_MAX = 100_000
_CREATOR = re.compile(r".*-[0-9]{10,}")
_PLACE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


class Layout(NamedTuple):
    """brokers: ``host:port`` by id. topics: how many partitions each broker has of a topic."""

    brokers: dict[int, str]
    topics: dict[str, dict[int, int]]

    def with_found(self, partitions: Iterable[tuple[str, int, int]]) -> Layout:
        """With partitions (topic, broker, number) that exist in directories, too."""
        topics = {topic: dict(counts) for topic, counts in self.topics.items()}
        for topic, broker, number in partitions:
            counts = topics.setdefault(topic, {})
            counts[broker] = max(counts.get(broker, 0), number + 1)
        return self._replace(topics=topics)

    def count(self, topic: str) -> int:
        """Partitions of a topic, over all brokers."""
        return sum(self.topics.get(topic, {}).values())

    def number(self, topic: str, broker: int, partition: int) -> int:
        """The number of a partition in the list that is sorted by broker and partition, as clients
        of 0.7 have it.
        """
        before = sum(n for each, n in self.topics.get(topic, {}).items() if each < broker)
        return before + partition

    def to_json(self) -> str:
        return json.dumps({"brokers": self.brokers, "topics": self.topics}, indent=1)


def layout_of_json(text: str) -> Layout:
    """Raises ValueError for anything but what ``Layout.to_json`` gives."""
    try:
        row: Any = json.loads(text)
        brokers = {int(each): str(address) for each, address in row["brokers"].items()}
        topics = {
            str(topic): {int(broker): int(count) for broker, count in counts.items()}
            for topic, counts in row["topics"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the layout of a cluster: {error!r}") from error
    if any(not 0 <= n <= _PARTITIONS_MAX for counts in topics.values() for n in counts.values()):
        raise ValueError(f"a number of partitions is not 0 to {_PARTITIONS_MAX}")
    return Layout(brokers, topics)


class GroupOffset(NamedTuple):
    """position: of the next message that the group reads."""

    group: str
    topic: str
    broker: int
    partition: int
    position: int


def address_of(text: str) -> str | None:
    """``host:port`` of a broker's node: ``host:creator:port``, ``creator:host:port`` if the first
    ends in the time of a start, as creators do, or ``host:port``.
    """
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[-1].isdecimal():
        return None
    host = parts[1] if len(parts) == 3 and _CREATOR.fullmatch(parts[0]) else parts[0]
    return f"{host}:{parts[-1]}" if host else None


def read_layout(nodes: Znodes) -> Layout:
    """Nodes that are not those of 0.7 are left out. Raises ZnodeError, UnreachableError."""
    brokers = {}
    for name in _children(nodes, "/brokers/ids"):
        address = address_of(_text(nodes, f"/brokers/ids/{name}"))
        if name.isdecimal() and address is not None:
            brokers[int(name)] = address
    topics: dict[str, dict[int, int]] = {}
    for topic in _children(nodes, "/brokers/topics"):
        for name in _children(nodes, f"/brokers/topics/{topic}"):
            text = _text(nodes, f"/brokers/topics/{topic}/{name}")
            if name.isdecimal() and text.isdecimal() and int(text) <= _PARTITIONS_MAX:
                topics.setdefault(topic, {})[int(name)] = int(text)
    return Layout(brokers, topics)


def read_group_offsets(nodes: Znodes) -> list[GroupOffset]:
    """Of all groups. Raises ZnodeError, UnreachableError."""
    offsets = []
    for group in _children(nodes, "/consumers"):
        home = f"/consumers/{group}/offsets"
        for topic in _children(nodes, home):
            for name in _children(nodes, f"{home}/{topic}"):
                place = _PLACE.fullmatch(name)
                text = _text(nodes, f"{home}/{topic}/{name}")
                if place is not None and text.isdecimal() and len(text) < 20:
                    key = int(place[1]), int(place[2])
                    offsets.append(GroupOffset(group, topic, *key, int(text)))
    return offsets


def _children(nodes: Znodes, path: str) -> list[str]:
    try:
        return nodes.children(path)[0]
    except ZnodeError:  # there is none, or no longer
        return []


def _text(nodes: Znodes, path: str) -> str:
    try:
        return nodes.get(path)[0].decode("utf-8", "replace").strip()
    except ZnodeError:
        return ""
