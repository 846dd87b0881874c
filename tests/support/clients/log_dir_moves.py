"""A client's view of moves between log directories."""

from __future__ import annotations

from typing import Any

from support.clients.wire_client import WireClient

from kbroker.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def alter(client: WireClient, where: dict[str, dict[str, list[int]]], version: int = 2) -> Any:
    """Error code by (topic, partition)."""
    cls = AlterReplicaLogDirsRequest
    request = cls(
        dirs=[
            cls.AlterReplicaLogDir(
                path=path,
                topics=[
                    cls.AlterReplicaLogDirTopic(name=name, partitions=numbers)
                    for name, numbers in topics.items()
                ],
            )
            for path, topics in where.items()
        ]
    )
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in client.call(request, version).results
        for partition in topic.partitions
    }


def replicas(client: WireClient, future: bool = False) -> dict[tuple[str, int], str]:
    """The directory of each replica, current or future."""
    response = client.call(DescribeLogDirsRequest(topics=None), 4)
    return {
        (topic.name, entry.partition_index): directory.log_dir
        for directory in response.results
        for topic in directory.topics
        for entry in topic.partitions
        if entry.is_future_key == future
    }


def move_all(client: WireClient, dirs: list[str], version: int = 2) -> dict[tuple[str, int], str]:
    """Request a move of every replica to the other directory; returns the targets."""
    wanted = {key: dirs[1 - dirs.index(path)] for key, path in replicas(client).items()}
    where: dict[str, dict[str, list[int]]] = {path: {} for path in dirs}
    for (name, number), path in wanted.items():
        where[path].setdefault(name, []).append(number)
    assert set(alter(client, where, version).values()) == {0}
    return wanted


def set_rate(client: WireClient, rate: int) -> None:
    _set(client, "", RATE, str(rate))


def cordon(client: WireClient, broker_id: int, *paths: str) -> None:
    """Cordon these log directories, and no others."""
    _set(client, str(broker_id), "cordoned.log.dirs", ",".join(paths))


def _set(client: WireClient, broker: str, name: str, value: str) -> None:
    cls = IncrementalAlterConfigsRequest
    config = cls.AlterableConfig(name=name, config_operation=0, value=value)
    resource = cls.AlterConfigsResource(resource_type=4, resource_name=broker, configs=[config])
    response = client.call(cls(resources=[resource]), 1)
    assert response.responses[0].error_code == 0, response.responses[0].error_message
