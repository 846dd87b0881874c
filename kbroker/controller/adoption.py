"""Topics that are on disk although the metadata store is new: data of a Kafka, or metadata lost.

Names, numbers of partitions, topic ids and leader epochs are found in the log directories; settings
of topics are not, they were in the store that is missing: nothing is deleted until they are given
again. A broker that has metadata adopts nothing: what it does not know it leaves alone. Directories
of a Kafka in KRaft mode have the settings in them; ``kbroker-adopt`` reads those.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from kbroker._ext.producer_state import CorruptSnapshotError, ProducerState
from kbroker.cluster.found_topics import settings_when_found
from kbroker.controller.topics import PARTITIONS_MAX, NewTopic, check_name
from kbroker.errors import WireError
from kbroker.metastore.embedded import FILE_NAME as STORE_NAME
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, TopicPartition
from kbroker.storage.formats import CLEANER_CHECKPOINT, LOG_SUFFIX
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_dir import scan_partitions
from kbroker.storage.partition_metadata import CorruptMetadataError, read_partition_metadata
from kbroker.storage.producer_snapshots import list_snapshots, snapshot_path

log = logging.getLogger(__name__)

KRAFT_TOPIC = "__cluster_metadata"  # a KRaft controller's own log, no topic
SEGMENT_NAME_LENGTH = 20 + len(LOG_SUFFIX)
PRODUCER_ID_MARGIN = 1_000_000
# What kbroker-adopt --back-to makes of a store's name.
RELEASED_SUFFIX = ".released"


class Adopted(NamedTuple):
    """A topic found on disk. ``leader_epochs``: of partitions whose logs have any."""

    topic: NewTopic
    leader_epochs: dict[int, int]


class NotAdopted(Exception):
    """The directories are of a Kafka whose metadata is there to be read."""


def refuse_kafkas(log_dirs: Sequence[str]) -> None:
    """Raises NotAdopted if there is a metadata log, or if Kafka was told of what is here."""
    for log_dir in log_dirs:
        released = os.path.join(log_dir, f"{STORE_NAME}{RELEASED_SUFFIX}")
        if os.path.exists(released):
            raise NotAdopted(
                f"{log_dir} was given back to Apache Kafka; if Kafka has run since, take it over"
                f" with kbroker-adopt, else rename {released} to {STORE_NAME}"
            )
        if os.path.isdir(os.path.join(log_dir, f"{KRAFT_TOPIC}-0")):
            raise NotAdopted(
                f"{log_dir} was written by Apache Kafka and holds its metadata; take it over with"
                f" kbroker-adopt --log-dirs {','.join(log_dirs)}"
            )


def first_producer_id(log_dirs: Sequence[str]) -> int:
    """An id that no producer in these directories has, 0 when none has any.

    A broker that gave one away again would take new records for duplicates of old ones. Ids that
    only logs know, or that were given and not used yet, lie within the margin.
    """
    newest = -1
    for log_dir in log_dirs:
        for name, number in scan(log_dir):
            newest = max(newest, newest_producer_id(os.path.join(log_dir, f"{name}-{number}")))
    return newest + 1 + PRODUCER_ID_MARGIN if newest >= 0 else 0


def find_topics(
    log_dirs: Sequence[str], broker_id: int, new_topic_id: Callable[[], bytes]
) -> list[Adopted]:
    """What the log directories hold. ``new_topic_id()`` makes an id for a topic that has none."""
    found: dict[str, dict[int, str]] = {}
    cleaned: set[str] = set()
    for log_dir in log_dirs:
        cleaned |= {name for name, _ in cleaned_partitions(log_dir)}
        for name, number in scan(log_dir):
            path = os.path.join(log_dir, f"{name}-{number}")
            if is_adoptable(name, number, path):
                found.setdefault(name, {})[number] = path
    return [
        adopt(name, paths, broker_id, new_topic_id, name in cleaned)
        for name, paths in sorted(found.items())
    ]


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


def cleaned_partitions(log_dir: str) -> Collection[TopicPartition]:
    """Partitions that were compacted in a directory; none of one that does not say."""
    try:
        return OffsetCheckpoint(log_dir, CLEANER_CHECKPOINT).read() or ()
    except (OSError, CorruptCheckpointError) as error:
        log.warning("%s", error)
        return ()


def newest_producer_id(path: str) -> int:
    """The largest id in the newest snapshot of producers of a partition; -1 without any."""
    for offset in reversed(list_snapshots(path)):
        try:
            with open(snapshot_path(path, offset), "rb") as file:
                return max(ProducerState.from_snapshot(file.read(), offset).entries, default=-1)
        except (OSError, CorruptSnapshotError) as error:
            log.warning("%s: %s", path, error)
    return -1


def adopt(
    name: str,
    paths: dict[int, str],
    broker_id: int,
    new_topic_id: Callable[[], bytes],
    was_compacted: bool,
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
        "topic %s with %d partitions was found on disk and is served again; its settings are not"
        " known, so nothing of it is deleted: set those it had with kafka-configs",
        name,
        count,
    )
    assignment = {number: [broker_id] for number in range(count)}
    config = settings_when_found(name, was_compacted)
    return Adopted(NewTopic(name, topic_id or new_topic_id(), assignment, config), leader_epochs)
