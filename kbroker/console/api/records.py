"""Records that are deleted from the start of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.client.admin.groups import offsets_at
from kbroker.client.admin.partitions import delete_records
from kbroker.client.admin.topics import describe_topics
from kbroker.client.batches.offsets import EARLIEST, LATEST, TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.console.answers import TrimmedTopic
from kbroker.console.operation import (
    FLAG,
    INTEGER,
    INTEGERS,
    TIME,
    CheckedRequest,
    Operation,
    Parameter,
)
from kbroker.console.problems import BadRequest, check_partition

_WHICH = ("before_offset", "before_time", "keep")


def existing_partitions(cluster: Cluster, topic: str, numbers: list[int] | None) -> list[int]:
    """Those of a topic, or these. Raises BadRequest, RejectedError."""
    (state,) = describe_topics(cluster, [topic])
    there = [row.partition for row in state.partitions]
    for number in numbers or ():
        check_partition(number, there, f"topic {topic}")
    return there if numbers is None else list(dict.fromkeys(numbers))


def _trim(asked: CheckedRequest) -> TrimmedTopic:
    values, cluster = asked.values, asked.cluster
    given = [name for name in _WHICH if values[name] is not None] + ["all"] * values["all"]
    if len(given) != 1:
        raise BadRequest("up to where? Give one of before_offset, before_time, keep and all")
    topic = values["topic"]
    keys = [(topic, n) for n in existing_partitions(cluster, topic, values["partitions"])]
    starts, ends = offsets_at(cluster, keys, EARLIEST), offsets_at(cluster, keys, LATEST)
    wanted = _wanted(cluster, values, starts, ends)
    new_starts = dict(wanted)
    if not values["dry_run"]:
        moved = {key: at for key, at in wanted.items() if at > starts[key]}
        for key, result in delete_records(cluster, moved).items():
            if isinstance(result, ClientError):
                raise result
            new_starts[key] = result
    return {
        "topic": topic,
        "dry_run": values["dry_run"],
        "partitions": [
            {
                "partition": key[1],
                "start": starts[key],
                "new_start": new_starts[key],
                "end": ends[key],
                "deleted": wanted[key] - starts[key],
            }
            for key in keys
        ],
    }


def _wanted(
    cluster: Cluster,
    values: Mapping[str, Any],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The first offset that stays, within the log."""
    if values["before_time"] is not None:
        at = offsets_at(cluster, starts, values["before_time"])
    elif values["before_offset"] is not None:
        at = dict.fromkeys(starts, values["before_offset"])
    elif values["keep"] is not None:
        at = {key: end - values["keep"] for key, end in ends.items()}
    else:
        at = dict(ends)
    return {key: min(max(at[key], starts[key]), ends[key]) for key in starts}


OPERATIONS = (
    Operation(
        "POST",
        "/topics/{topic}/trim",
        "Delete the first records of a topic",
        _trim,
        TrimmedTopic,
        body=(
            Parameter("partitions", INTEGERS, "Only of these; all, if left out."),
            Parameter("before_offset", INTEGER, "Those before this offset."),
            Parameter("before_time", TIME, "Those before the first one from this time on (UTC)."),
            Parameter("keep", INTEGER, "All but the last so many of each partition."),
            Parameter("all", FLAG, "All.", False),
            Parameter("dry_run", FLAG, "Only say what would be deleted.", True),
        ),
        needs="DELETE on the topic, DESCRIBE on the topic",
        verb="topic trim",
        positional=("topic",),
    ),
)
