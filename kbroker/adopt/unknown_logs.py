"""Directories that name topics which the metadata store lacks.

They show that the store lost something: a damaged file was mended, or an older one taken from a
backup. As at a start without a store, what is found is served, with settings that delete nothing.
Left alone are directories of topics that were deleted while they could not be reached, which the
store remembers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.adopt.at_start import topics_to_serve
from kbroker.adopt.directories import is_topic_name, read_directories
from kbroker.adopt.errors import Refusal
from kbroker.adopt.holdings import METADATA_TOPIC
from kbroker.adopt.plan import plan_without_metadata
from kbroker.controller.store.completion import Adopted
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import holds_segments, scan_partitions
from kbroker.storage.dirs.partition_metadata import CorruptMetadataError, read_partition_metadata
from kbroker.storage.formats import partition_dir_name
from kbroker.wording import counted

logger = logging.getLogger(__name__)

_SHOWN_MAX = 5


class UnknownLogs(NamedTuple):
    """The topics to add to the metadata store.

    grown: partitions that known topics lack, with the leader epochs that are in their logs.
    """

    adopted: list[Adopted]
    grown: dict[str, dict[int, int]]


def look_at_unknown(
    store: NodeFile, log_dirs: Sequence[str], was_clean: Mapping[str, bool], *, all_usable: bool
) -> UnknownLogs | None:
    """Returns None if the store knows every topic in the directories. Changes only what the store
    remembers of deleted topics.

    all_usable: none of the broker's directories is missing. Raises Refusal for what kbroker-adopt
    would refuse, OSError.
    """
    counts = _partition_counts(store)
    unknown = _unknown(store, log_dirs, counts)
    if all_usable:
        _forget_gone(store, log_dirs)
    if not unknown:
        return None
    shown = ", ".join(partition_dir_name(*key) for key in sorted(unknown)[:_SHOWN_MAX])
    logger.error(
        "%s on disk %s missing from the metadata store, which must have lost them: %s%s",
        counted(len(unknown), "partition"),
        "is" if len(unknown) == 1 else "are",
        shown,
        ", ..." * (len(unknown) > _SHOWN_MAX),
    )
    holding = [path for path in log_dirs if not unknown.isdisjoint(scan_partitions(path))]
    try:
        plan = plan_without_metadata(
            read_directories(holding, logs_only=True, was_clean=was_clean, only=unknown),
            known=counts,
            missing_begin_empty=all_usable,
        )
    except Refusal as refusal:
        raise Refusal(
            f"{refusal}. (This topic is not in the metadata store: it was lost there, or the "
            "directory was put here by mistake; in that case move it away)"
        ) from refusal
    grown = {
        topic.name: {number: topic.leader_epochs.get(number, 0)
                     for number in range(counts[topic.name], topic.partition_count)}
        for topic in plan.topics
        if topic.name in counts
    }  # fmt: skip
    for name, partitions in grown.items():
        logger.warning("topic %s is back to %d partitions", name, counts[name] + len(partitions))
    plan.topics = [topic for topic in plan.topics if topic.name not in counts]
    return UnknownLogs(topics_to_serve(plan), grown)


def _partition_counts(store: NodeFile) -> dict[str, int]:
    counts = {}
    for node in store.subtree(paths.BROKER_TOPICS):
        parts = node.path.split("/")
        if len(parts) == 4:
            counts[parts[3]] = max(paths.decode_topic(node.data)[1], default=-1) + 1
    return counts


def _unknown(
    store: NodeFile, log_dirs: Sequence[str], counts: Mapping[str, int]
) -> set[TopicPartition]:
    """Partitions on disk that the store lacks. Raises OSError."""
    unknown = set()
    for log_dir in log_dirs:
        for key in scan_partitions(log_dir):
            name, number = key
            if number < counts.get(name, 0) or name == METADATA_TOPIC or not is_topic_name(name):
                continue
            path = os.path.join(log_dir, partition_dir_name(*key))
            if holds_segments(path) and not _is_gone(store, name, path):
                unknown.add(key)
    return unknown


def _is_gone(store: NodeFile, name: str, path: str) -> bool:
    """Whether a partition's directory belongs to a deleted topic, or to an even earlier one."""
    try:
        topic_id = read_partition_metadata(path)
    except CorruptMetadataError:
        topic_id = None
    known = paths.topic(name)
    if store.exists(known) is not None:
        return topic_id != paths.decode_topic(store.get(known).data)[0]
    gone = paths.gone_topic(name)
    if store.exists(gone) is None:
        return False
    return topic_id is None or topic_id in paths.decode_gone_topic(store.get(gone).data)


def _forget_gone(store: NodeFile, log_dirs: Sequence[str]) -> None:
    """Drop the notes of topics that no directory names."""
    if store.exists(paths.GONE_TOPICS) is None:
        return
    on_disk = {key[0] for log_dir in log_dirs for key in scan_partitions(log_dir)}
    for name in set(store.children(paths.GONE_TOPICS)) - on_disk:
        store.delete(paths.gone_topic(name))
