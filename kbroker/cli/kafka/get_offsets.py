"""``kafka-get-offsets`` (GetOffsetShell): offsets of partitions by time."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, check_bootstrap, connected
from kbroker.cli.kafka.topic_filter import included

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster

_TIMES = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_WORDS = " / ".join(f"{number} or {word}" for word, number in _TIMES.items())
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_PARTITION_MAX = (1 << 31) - 1

OPTIONS = (
    BOOTSTRAP._replace(argument="HOST1:PORT1,...,HOST3:PORT3"),
    valued("broker-list", "HOST1:PORT1,...,HOST3:PORT3", "The same, as before Kafka 3."),
    valued(
        "topic-partitions",
        "topic1:1,topic2:0-3,topic3,topic4:5-,topic5:-3",
        "Topics, as regular expressions, and partitions of them: a number, or a range whose end "
        "is left out. Without a topic, all topics; without partitions, all of them.",
    ),
    valued("topic", "topic", "A regular expression for the topics; all topics without it."),
    valued("partitions", "partition ids", "Numbers with commas; all partitions without it."),
    valued("time", f"<timestamp> / {_WORDS}", "Which offsets.", default="latest"),
    valued("command-config", "config file", "A file with settings of a client."),
    flag("exclude-internal-topics", "Leave out the topics in which brokers keep their state."),
    valued("offsets", "count", "Has no effect; 0.8 has it, too.", kind=int),
    valued("max-wait-ms", "ms", "Has no effect; 0.8 has it, too.", kind=int),
)
Filter = Callable[[str, int], bool]


def _run(given: Given) -> int:
    bootstrap = given.one("bootstrap-server") or given.one("broker-list")
    if bootstrap is None:
        given.require("bootstrap-server")
    check_bootstrap(bootstrap)
    if "topic-partitions" in given and given.count(("topic", "partitions")):
        raise ToolFailed("--topic-partitions cannot be used with --topic or --partitions")
    time_ms = _time(given.one("time"))
    allowed = _filter(given)
    config = given.one("command-config")
    with connected(bootstrap, config, client_id="GetOffsetShell") as cluster:
        wanted = _wanted(cluster, allowed, "exclude-internal-topics" in given)
        if not wanted:
            raise ToolFailed("Could not match any topic-partitions with the specified filters")
        offsets = _offsets(cluster, wanted, time_ms)
    for topic, number in sorted(offsets, key=lambda key: f"{key[0]}-{key[1]}"):
        print(f"{topic}:{number}:{offsets[topic, number]}")
    return 0


def _time(text: str) -> int:
    if text in _TIMES:
        return _TIMES[text]
    if re.fullmatch(r"[+-]?\d{1,19}", text) and -(1 << 63) <= int(text) < 1 << 63:
        return int(text)
    raise ToolFailed(
        f"Malformed time argument {text}. Please use {_WORDS}, or a specified long format timestamp"
    )


def _filter(given: Given) -> Filter:
    rules = given.one("topic-partitions")
    if rules is not None:
        filters = [_rule(text) for text in rules.split(",")]
        return lambda topic, number: any(each(topic, number) for each in filters)
    names = included(given.one("topic"))
    text = given.one("partitions") or ""
    try:
        numbers = {int(part) for part in text.split(",")} if text else set()
    except ValueError:
        raise ToolFailed(
            "--partitions expects a comma separated list of numeric partition ids, but received: "
            f"{text}"
        ) from None
    return lambda topic, number: names(topic) and (not numbers or number in numbers)


def _rule(text: str) -> Filter:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ToolFailed(f"Invalid rule specification: {text}")
    name, one, first, last = match.groups()
    names = included(name or None)
    low, high = int(first or 0), int(last or _PARTITION_MAX)
    if one:
        low, high = int(one), int(one) + 1
    return lambda topic, number: names(topic) and low <= number < high


def _wanted(cluster: Cluster, allowed: Filter, leave_internal: bool) -> list[TopicPartition]:
    from kbroker.client.admin.topics import list_topics

    return [
        (topic.name, row.partition)
        for topic in list_topics(cluster)
        if not (leave_internal and topic.internal)
        for row in topic.partitions
        if allowed(topic.name, row.partition)
    ]


def _offsets(
    cluster: Cluster, wanted: list[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """Those that there are; partitions that have an error are named on stderr."""
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.client.batches.offsets import NO_OFFSET, list_offsets
    from kbroker.client.errors import ClientError

    try:
        offsets = dict(list_offsets(cluster, dict.fromkeys(wanted, time_ms)))
    except ClientError:
        offsets = {}
        for key in wanted:
            try:
                offsets.update(list_offsets(cluster, {key: time_ms}))
            except ClientError as error:
                print(
                    f"Skip getting offsets for topic-partition {key[0]}-{key[1]} due to error: "
                    f"{java_text(error)}",
                    file=sys.stderr,
                )
    return {key: row.offset for key, row in offsets.items() if row.offset != NO_OFFSET}


TOOL = Tool(
    "An interactive shell for getting topic-partition offsets.",
    OPTIONS,
    _run,
    prefix="Error occurred: ",
)
