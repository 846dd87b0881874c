"""Stray replicas: logs on disk that the cluster has assigned to other brokers, or to nobody.

A replica that is removed while its broker is away (its partition is reassigned, its topic deleted)
stays on that broker's disk, and no controller speaks of it again. A broker looks for such replicas
once, when it starts, between its registration and its first image:

- The topics are read in the session that has registered: whichever server of ZooKeeper responds,
  they are as of the registration or later.
- No process has an image yet, so no log is open, and no controller can tell this broker to host
  anything. Whoever assigns a partition to it meanwhile tells it afterwards, and the partition is
  copied from its leader: a replica that was removed is not in sync.

Strays are renamed, never deleted, and so are unfinished moves of such partitions. So are logs that
say they belong to an earlier topic of the name (``storage.dirs.creation_note``). Whatever cannot be
read with certainty stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.adopt.directories import is_topic_name
from kbroker.adopt.holdings import METADATA_TOPIC
from kbroker.cluster.topic_ids import NO_TOPIC_ID
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import in_window
from kbroker.logcontext import Whole
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import NoNode, StoreError, StoreFailed
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, TopicPartition
from kbroker.storage.dirs.creation_note import NO_CREATION, creation_of
from kbroker.storage.dirs.log_dir import (
    holds_segments,
    rename_to_stray,
    scan_futures,
    scan_partitions,
)
from kbroker.storage.dirs.ownership import ByCreation, DirOwner
from kbroker.storage.formats import SUSPECT_PARTITIONS

logger = logging.getLogger(__name__)

# BOUND: reads of topics that are under way.
READS_AT_ONCE = 100
_SHOWN_MAX = 10


class LogDirContents(NamedTuple):
    """The partitions in a log directory: their paths, and those of future replicas."""

    log_dir: str
    replicas: dict[TopicPartition, str]
    futures: dict[TopicPartition, list[str]]


class NotSure(Exception):
    """It cannot be said which replicas are strays."""


async def set_strays_aside(
    store: SettledStore,
    broker_id: int,
    log_dirs: Sequence[str],
    is_certain: Callable[[], bool],
    is_hosted: Callable[[TopicPartition], bool],
) -> None:
    """Rename the logs that are not assigned to this broker. Raises Fenced.

    is_certain: whether every log directory is online, and this broker is registered; asked again
    after the last read.
    """
    try:
        if not is_certain():
            raise NotSure("a log directory is offline")
        held = [_look_into(path) for path in log_dirs]
        on_disk = {key for holdings in held for key in (*holdings.replicas, *holdings.futures)}
        strays, creations = await look_up(store, broker_id, on_disk)
        if not is_certain():
            raise NotSure("a log directory or the session was lost")
    except (NotSure, OSError, StoreError, StoreFailed) as error:
        text = "not looking for replicas that were removed while this broker was away: %s"
        logger.warning(text, error)
        return
    # Nothing is awaited from here on.
    kept = [
        stray
        for holdings in held
        for stray in _rename(
            holdings,
            {key for key in strays | _outlived(holdings, creations) if not is_hosted(key)},
        )
    ]
    if kept:
        logger.warning(
            "%s not assigned to this broker any more: the topic was deleted (and perhaps created "
            "again) or the partition reassigned while it was away. The records are kept in %s%s; "
            "remove what nobody needs, and move the rest away before Kafka 2.7 starts here",
            "1 replica on disk is" if len(kept) == 1 else f"{len(kept):,} replicas on disk are",
            Whole(", ".join(kept[:_SHOWN_MAX])),
            f" and {len(kept) - _SHOWN_MAX:,} more" if len(kept) > _SHOWN_MAX else "",
        )


def _look_into(log_dir: str) -> LogDirContents:
    """Raises OSError."""
    replicas = {
        key: f"{log_dir}/{key[0]}-{key[1]}" for key in scan_partitions(log_dir) if _is_of_topic(key)
    }
    futures = {key: places for key, places in scan_futures(log_dir).items() if _is_of_topic(key)}
    return LogDirContents(log_dir, replicas, futures)


def _is_of_topic(key: TopicPartition) -> bool:
    return key[0] != METADATA_TOPIC and is_topic_name(key[0])


class LookedUp(NamedTuple):
    """What the store says of partitions on disk: those without a replica on the broker, and the
    creations of the topics that exist.
    """

    strays: set[TopicPartition]
    creations: dict[str, bytes]


async def look_up(
    store: SettledStore, broker_id: int, on_disk: Collection[TopicPartition]
) -> LookedUp:
    """Raises NotSure, StoreError."""
    if await store.exists(paths.BROKER_TOPICS) is None:
        raise NotSure(f"there is no {paths.BROKER_TOPICS}")
    cluster = await store.exists(paths.CLUSTER_ID)
    creations: dict[str, bytes] = {}
    by_topic: dict[str, list[int]] = {}
    for name, number in sorted(on_disk):
        by_topic.setdefault(name, []).append(number)

    async def strays_of(name: str) -> set[int]:
        try:
            node = await store.get(paths.topic(name))
            assigned = _assigned(node.data, broker_id)
        except NoNode:
            return set(by_topic[name])
        except DAMAGED as error:
            logger.error("cannot tell which replicas of topic %s are here: %r", name, error)
            return set()
        if cluster is not None:
            creations[name] = creation_of(cluster.created_id, node.stat.created_id)
        return set(by_topic[name]) - assigned

    numbers_of = await in_window(map(strays_of, by_topic), READS_AT_ONCE)
    strays = {
        (name, number)
        for name, numbers in zip(by_topic, numbers_of, strict=True)
        for number in numbers
    }
    return LookedUp(strays, creations)


async def not_assigned(
    store: SettledStore, broker_id: int, on_disk: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Those of the partitions that have no replica on the broker. Raises NotSure, StoreError."""
    return (await look_up(store, broker_id, on_disk)).strays


def _outlived(holdings: LogDirContents, creations: Mapping[str, bytes]) -> set[TopicPartition]:
    """The replicas in a log directory that belong to earlier topics of their names."""
    ownership = ByCreation()
    return {
        key
        for key, path in holdings.replicas.items()
        if ownership.is_anothers(path, DirOwner(NO_TOPIC_ID, creations.get(key[0], NO_CREATION)))
    }


def _assigned(document: bytes, broker_id: int) -> set[int]:
    """The topic's partitions that have, get or lose a replica on the broker. Raises DAMAGED."""
    replicas = paths.decode_topic(document)[1]
    if sorted(replicas) != list(range(len(replicas))) or not all(replicas.values()):
        raise ValueError(f"partitions {replicas}")
    added, removed = paths.reassigned_of_topic(paths.rest_of_topic(document))
    return {
        number
        for assignment in (replicas, added, removed)
        for number, brokers in assignment.items()
        if broker_id in [int(broker) for broker in brokers]
    }


def _rename(holdings: LogDirContents, strays: Collection[TopicPartition]) -> Iterable[str]:
    """Set the strays of one log directory aside; their new paths. Raises nothing."""
    renamed = []
    for key in sorted(strays):
        path = holdings.replicas.get(key)
        try:
            # Any other directory that is called like a partition is none of ours.
            if path is not None and holds_segments(path):
                yield rename_to_stray(path, key)
                renamed.append(key)
            # A move would continue from it when the partition is here again.
            for future in holdings.futures.get(key, ()):
                yield rename_to_stray(future, key)
        except OSError as error:
            logger.error("cannot set aside %s, which is not assigned here: %s", path, error)
    _forget_suspects(holdings.log_dir, renamed)


def _forget_suspects(log_dir: str, gone: Collection[TopicPartition]) -> None:
    """Nobody will repair their tails."""
    suspects = OffsetCheckpoint(log_dir, SUSPECT_PARTITIONS)
    try:
        listed = set(suspects.read() or ()) & set(gone)
        if listed:
            suspects.merge({}, listed)
    except (OSError, CorruptCheckpointError) as error:
        logger.warning("%s: cannot update %s: %s", log_dir, SUSPECT_PARTITIONS, error)
