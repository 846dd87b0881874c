"""Which consumer of a group reads which partitions: the same answer in each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

from kbroker.client.batches.offsets import TopicPartition
from kbroker.legacy.zookeeper_consumer.consumer_errors import GroupDisagrees
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import RANGE, ROUNDROBIN

# consumer -> topic -> number of its streams
Members = Mapping[str, Mapping[str, int]]
Partitions = Mapping[str, Sequence[int]]


def thread_id(consumer: str, stream: int) -> str:
    """The name of a stream, which owns partitions."""
    return f"{consumer}-{stream}"


def order(text: str) -> bytes:
    """COMPAT: Java orders text by units of UTF-16."""
    return text.encode("utf-16-be", "surrogatepass")


def threads_by_topic(members: Members) -> dict[str, list[tuple[str, int]]]:
    """Topic -> (consumer, stream) of all that read it, in the group's order."""
    threads_of: dict[str, list[tuple[str, int]]] = {}
    for consumer, topics in members.items():
        for topic, count in topics.items():
            threads_of.setdefault(topic, []).extend((consumer, stream) for stream in range(count))
    for threads in threads_of.values():
        threads.sort(key=lambda thread: order(thread_id(*thread)))
    return threads_of


def range_assignment(
    members: Members, partitions: Partitions, me: str
) -> dict[TopicPartition, int]:
    """Partition -> my stream. Of each topic consecutive partitions; the first few streams get one
    more if they do not divide evenly.
    """
    mine: dict[TopicPartition, int] = {}
    for topic, threads in threads_by_topic(members).items():
        numbers = sorted(partitions.get(topic, ()))
        each, more = divmod(len(numbers), len(threads)) if threads else (0, 0)
        for place, (consumer, stream) in enumerate(threads):
            if consumer == me:
                start = each * place + min(place, more)
                for number in numbers[start : start + each + (place < more)]:
                    mine[topic, number] = stream
    return mine


def roundrobin_assignment(
    members: Members, partitions: Partitions, me: str
) -> dict[TopicPartition, int]:
    """Partition -> my stream. The partitions of all topics in turn.

    Raises GroupDisagrees unless all consumers have the same topics, with as many streams for each.
    """
    by_topic = threads_by_topic(members)
    if not by_topic:
        return {}
    first, threads = next(iter(by_topic.items()))
    for topic, others in by_topic.items():
        if others != threads:
            raise GroupDisagrees(
                "partition.assignment.strategy=roundrobin needs the same topics in all consumers "
                "of the group, and in each of them as many streams for every topic: "
                f"{topic} has {_named(others)}, {first} has {_named(threads)}"
            )
    if not threads:
        return {}
    # COMPAT: the order of 0.8.2, by which a topic's partitions do not all go to one consumer.
    keys = [(topic, number) for topic in by_topic for number in partitions.get(topic, ())]
    keys.sort(key=lambda key: (java_hash(f"[{key[0]},{key[1]}]"), key))
    turns = cycle(threads)
    mine: dict[TopicPartition, int] = {}
    for key in keys:
        consumer, stream = next(turns)
        if consumer == me:
            mine[key] = stream
    return mine


def _named(threads: list[tuple[str, int]]) -> str:
    return ", ".join(thread_id(*thread) for thread in threads) or "none"


def java_hash(text: str) -> int:
    """The hash code of a text in Java."""
    value = 0
    units = order(text)
    for n in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[n : n + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


ASSIGNORS: dict[str, Callable[[Members, Partitions, str], dict[TopicPartition, int]]] = {
    RANGE: range_assignment,
    ROUNDROBIN: roundrobin_assignment,
}
