"""The files of ``kafka-reassign-partitions``: which partitions go where."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker.cli.kafka.running import ToolFailed

if TYPE_CHECKING:
    from kbroker.client.admin.reassignments import PartitionReplica
    from kbroker.client.batches.offsets import TopicPartition

T = TypeVar("T")
_ANY_DIR = "any"
_VERSION = 1


class ReassignmentFile(NamedTuple):
    """partitions: as the file has them, which may be twice. dirs: the replicas that shall be in
    certain log directories.
    """

    partitions: list[tuple[TopicPartition, list[int]]]
    dirs: dict[PartitionReplica, str]

    def replicas(self) -> dict[TopicPartition, list[int]]:
        """What ``--execute`` accepts: each partition once, each with several brokers. Raises
        Failed.
        """
        if not self.partitions:
            raise ToolFailed("Partition reassignment list cannot be empty")
        if not all(nodes for _, nodes in self.partitions):
            raise ToolFailed("Partition replica list cannot be empty")
        if twice := duplicates(key for key, _ in self.partitions):
            listed = ",".join(f"{topic}-{number}" for topic, number in twice)
            raise ToolFailed(
                f"Partition reassignment contains duplicate topic partitions: {listed}"
            )
        wrong = [
            f"{key[0]}-{key[1]} contains multiple entries for {','.join(map(str, again))}"
            for key, nodes in self.partitions
            if (again := duplicates(nodes))
        ]
        if wrong:
            listed = ". ".join(wrong)
            raise ToolFailed(f"Partition replica lists may not contain duplicate entries: {listed}")
        return dict(self.partitions)


def duplicates(values: Iterable[T]) -> list[T]:
    """Those that are there more than once."""
    listed = list(values)
    return [value for value in dict.fromkeys(listed) if listed.count(value) > 1]


def read_wanted(path: str) -> ReassignmentFile:
    """A file of ``--reassignment-json-file``. Raises ToolFailed."""
    from kbroker.client.admin.reassignments import PartitionReplica

    partitions: list[tuple[TopicPartition, list[int]]] = []
    dirs: dict[PartitionReplica, str] = {}
    document = _document(path)
    try:
        for row in document.get("partitions", ()):
            topic, number = str(row["topic"]), int(row["partition"])
            nodes = [int(node) for node in row["replicas"]]
            paths = [str(each) for each in row.get("log_dirs", [_ANY_DIR] * len(nodes))]
            if len(paths) != len(nodes):
                raise ToolFailed(
                    f"Size of replicas list [{', '.join(map(str, nodes))}] is different from size "
                    f"of log dirs list [{', '.join(paths)}] for partition {topic}-{number}"
                )
            partitions.append(((topic, number), nodes))
            for node, each in zip(nodes, paths, strict=True):
                if each != _ANY_DIR:
                    dirs[PartitionReplica(topic, number, node)] = each
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ToolFailed(
            f"{path}: expected topic, partition and replicas of each: {error!r}"
        ) from error
    return ReassignmentFile(partitions, dirs)


def read_topics(path: str) -> list[str]:
    """A file of ``--topics-to-move-json-file``. Raises ToolFailed."""
    try:
        topics = [str(row["topic"]) for row in _document(path).get("topics", ())]
    except (KeyError, TypeError, AttributeError) as error:
        raise ToolFailed(f"{path}: expected the topic of each: {error!r}") from error
    if twice := duplicates(topics):
        raise ToolFailed(
            f"List of topics to reassign contains duplicate entries: [{', '.join(twice)}]"
        )
    return topics


def _document(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ToolFailed(f"{path}: The input string is not a valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ToolFailed(f"{path}: expected a JSON object")
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise ToolFailed(f"Not supported version field value {version}")
    return document


def as_json(
    replicas: Mapping[TopicPartition, Sequence[int]], dirs: Mapping[PartitionReplica, str] | None
) -> str:
    """Such a file. dirs: where replicas are, others may be in any; None: without that, as before
    Kafka 1.1.
    """
    from kbroker.client.admin.reassignments import PartitionReplica

    rows: list[dict[str, Any]] = []
    for topic, number in sorted(replicas):
        nodes = list(replicas[topic, number])
        row: dict[str, Any] = {"topic": topic, "partition": number, "replicas": nodes}
        if dirs is not None:
            keys = [PartitionReplica(topic, number, node) for node in nodes]
            row["log_dirs"] = [dirs.get(key, _ANY_DIR) for key in keys]
        rows.append(row)
    document = {"version": _VERSION, "partitions": rows}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
