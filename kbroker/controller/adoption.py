"""Topics that are on disk although the metadata store is new: data of a Kafka, or metadata lost.

Names, numbers of partitions, topic ids and leader epochs are found in the log directories; settings
of topics are not, they were in the store that is missing. A broker that has metadata adopts
nothing: what it does not know it leaves alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kbroker.controller.topics import PARTITIONS_MAX, NewTopic, check_name
from kbroker.errors import WireError
from kbroker.storage.formats import LOG_SUFFIX
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_dir import scan_partitions
from kbroker.storage.partition_metadata import CorruptMetadataError, read_partition_metadata

log = logging.getLogger(__name__)

KRAFT_TOPIC = "__cluster_metadata"  # a KRaft controller's own log, no topic
SEGMENT_NAME_LENGTH = 20 + len(LOG_SUFFIX)


class Adopted(NamedTuple):
    """A topic found on disk. ``leader_epochs``: of partitions whose logs have any."""

    topic: NewTopic
    leader_epochs: dict[int, int]


def find_topics(
    log_dirs: Sequence[str], broker_id: int, new_topic_id: Callable[[], bytes]
) -> list[Adopted]:
    """What the log directories hold. ``new_topic_id()`` makes an id for a topic that has none."""
    found: dict[str, dict[int, str]] = {}
    for log_dir in log_dirs:
        for name, number in scan(log_dir):
            path = os.path.join(log_dir, f"{name}-{number}")
            if is_adoptable(name, number, path):
                found.setdefault(name, {})[number] = path
    return [adopt(name, paths, broker_id, new_topic_id) for name, paths in sorted(found.items())]


def scan(log_dir: str) -> list[tuple[str, int]]:
    """Partition directories; none of a directory that cannot be read, which will be offline."""
    try:
        return scan_partitions(log_dir)
    except FileNotFoundError:
        return []  # made when the first partition is
    except OSError as error:
        log.error("%s cannot be searched for topics: %s", log_dir, error)
        return []


def is_adoptable(name: str, number: int, path: str) -> bool:
    """Whether a directory is a partition's: by its name, and by having a segment."""
    try:
        check_name(name)
    except WireError:
        return False
    if name == KRAFT_TOPIC or number >= PARTITIONS_MAX:
        return False
    return any(
        entry.endswith(LOG_SUFFIX) and len(entry) == SEGMENT_NAME_LENGTH
        for entry in os.listdir(path)
    )


def adopt(
    name: str, paths: dict[int, str], broker_id: int, new_topic_id: Callable[[], bytes]
) -> Adopted:
    """A topic from its partitions' directories."""
    topic_id: bytes | None = None
    leader_epochs = {}
    for number, path in sorted(paths.items()):
        try:
            topic_id = topic_id or read_partition_metadata(path)
        except CorruptMetadataError as error:
            log.warning("%s", error)
        latest = LeaderEpochs(path).latest
        if latest is not None:
            # A new leader has a new epoch; it must be above all that wrote to the log.
            leader_epochs[number] = latest + 1
    count = max(paths) + 1
    if len(paths) < count:
        missing = [number for number in range(count) if number not in paths]
        log.warning("topic %s: partitions %s are not on disk, they begin empty", name, missing)
    log.warning(
        "topic %s with %d partitions was found on disk and is served again, with the broker's"
        " default settings; set those it had with kafka-configs",
        name,
        count,
    )
    assignment = {number: [broker_id] for number in range(count)}
    return Adopted(NewTopic(name, topic_id or new_topic_id(), assignment, {}), leader_epochs)
