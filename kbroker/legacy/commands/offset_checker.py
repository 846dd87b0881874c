"""``kafka-consumer-offset-checker`` of Kafka 0.8: how far a group is, whose members and offsets are
in ZooKeeper, or whose offsets are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import Tool, connected

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster

_LINE = "{:<15} {:<30} {:<3} {:<15} {:<15} {:<15} {}"
_UNKNOWN = "unknown"

OPTIONS = (
    valued("zookeeper", "", "The ZooKeeper of the brokers.", default="localhost:2181"),
    valued("zkconnect", "", "The same, as documents of 0.8 call it."),
    valued("topic", "", "Topics with commas; without it, all that the group reads."),
    valued("group", "", "The group; required."),
    valued("socket.timeout.ms", "", "Has no effect.", kind=int, default="6000"),
    valued("retry.backoff.ms", "", "Has no effect.", kind=int, default="3000"),
    valued("command-config", "config file", "A file with settings of a client."),
    flag("broker-info", "Print the brokers that lead these partitions, too."),
)


def _run(given: Given) -> int:
    from kbroker.client.errors import ClientError

    given.require("group")
    connect = given.one("zkconnect") or given.one("zookeeper")
    group, topics = given.one("group"), given.one("topic")
    try:
        from kbroker.client.zookeeper.group_nodes import group_nodes
        from kbroker.client.zookeeper.registered_brokers import registered_brokers

        nodes = group_nodes(connect, group, None if topics is None else topics.split(","))
        bootstrap = ",".join(registered_brokers(connect))
        with connected(bootstrap, given.one("command-config")) as cluster:
            offsets = nodes.offsets | _committed(cluster, group)
            named = nodes.topics if topics is not None else {*nodes.topics, *_topics(offsets)}
            _print(cluster, group, nodes.owners, offsets, named)
            if "broker-info" in given:
                _print_brokers(cluster, named)
    except ClientError as error:
        print(f"Exiting due to: {error}.")
    return 0


def _print(
    cluster: Cluster,
    group: str,
    owners: dict[TopicPartition, str],
    offsets: dict[TopicPartition, int],
    named: Collection[str],
) -> None:
    leaders = _leaders(cluster, named)
    ends = _ends(cluster, [key for key, leader in leaders.items() if leader is not None])
    print(_LINE.format("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner"))
    for key in sorted(leaders):
        if leaders[key] is None:
            print(f"No broker for partition {key[0]} - {key[1]}")
            continue
        offset, end = offsets.get(key), ends[key]
        lag = _UNKNOWN if offset is None or offset == -1 else end - offset
        owner = owners.get(key, "none")
        at = _UNKNOWN if offset is None else offset
        print(_LINE.format(group, key[0], key[1], at, end, lag, owner))


def _print_brokers(cluster: Cluster, named: Collection[str]) -> None:
    print("BROKER INFO")
    leaders = _leaders(cluster, named).values()
    for node in sorted({leader for leader in leaders if leader is not None}):
        host, port = cluster.address(node) or ("", 0)
        print(f"{node} -> {host}:{port}")


def _leaders(cluster: Cluster, named: Collection[str]) -> dict[TopicPartition, int | None]:
    from kbroker.client.admin.topics import list_topics

    return {
        (topic.name, row.partition): row.leader
        for topic in list_topics(cluster)
        if topic.name in named
        for row in topic.partitions
    }


def _committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Offsets that the group has with the brokers: they count more."""
    from kbroker.client.batches.offsets import committed

    return {key: row.offset for key, row in committed(cluster, group).items()}


def _topics(offsets: dict[TopicPartition, int]) -> set[str]:
    return {topic for topic, _ in offsets}


def _ends(cluster: Cluster, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    from kbroker.client.batches.offsets import LATEST, list_offsets

    offsets = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return {key: row.offset for key, row in offsets.items()}


TOOL = Tool("Check the offset of your consumers.", OPTIONS, _run)
