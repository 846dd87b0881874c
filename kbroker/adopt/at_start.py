"""The start of a broker without a metadata store, with topics that are already on disk.

The logs are those of an Apache Kafka, or of a kbroker that lost its metadata. They are examined
with the code of ``kbroker-adopt``, and refused for the same reasons: what that command would not
take cannot be served either. The topics' settings were in the store that is missing, so nothing is
deleted until they are given again.

A start goes by the directories alone; what needs another source (Kafka's metadata log, ZooKeeper)
or a decision of the user is left to the command. Logs that a broker's metadata does not know are a
matter of ``kbroker.adopt.unknown_logs``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from kbroker.adopt.directories import read_directories
from kbroker.adopt.errors import Refusal
from kbroker.adopt.metadata_log import DIRECTORY as METADATA_DIRECTORY
from kbroker.adopt.metadata_log import end_offset
from kbroker.adopt.plan import AdoptionPlan, plan_for
from kbroker.adopt.register import adopted_metadata_offset, store_to_read
from kbroker.controller.state.topics import PlannedTopic
from kbroker.controller.store.completion import Adopted
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.metastore.store_files import COPY_NAME, places_of_store
from kbroker.metastore.store_files import FILE_NAME as STORE_NAME
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint
from kbroker.storage.dirs.log_dir import holds_segments, scan_partitions
from kbroker.storage.formats import RECOVERY_POINT_CHECKPOINT
from kbroker.wording import counted

logger = logging.getLogger(__name__)

# The name of the store's file after kbroker-adopt --back-to.
RELEASED_SUFFIX = ".released"


def refuse_kafkas(log_dirs: Sequence[str]) -> None:
    """Raises Refusal if there is a metadata log, or if the directory was handed back to Kafka."""
    for log_dir in log_dirs:
        released = os.path.join(log_dir, f"{STORE_NAME}{RELEASED_SUFFIX}")
        if os.path.exists(released):
            raise Refusal(
                f"{log_dir} was handed back to Apache Kafka; if Kafka has run since, take it over "
                f"with kbroker-adopt, otherwise rename {released} to {STORE_NAME}"
            )
        if os.path.isdir(os.path.join(log_dir, METADATA_DIRECTORY)):
            raise Refusal(
                f"{log_dir} was written by Apache Kafka and holds its metadata; take it over with"
                f" {_command(log_dirs)}"
            )


def refuse_what_kafka_changed(log_dirs: Sequence[str]) -> None:
    """Raises Refusal if Kafka has run on directories that were adopted.

    The store does not know what Kafka did: topics that it deleted would come back empty, new ones
    would become strays, and producer ids would be given out twice.
    """
    having = [path for path in log_dirs if os.path.isdir(os.path.join(path, METADATA_DIRECTORY))]
    place = next(iter(places_of_store(log_dirs)), None)
    if not having or place is None:
        return
    try:
        with store_to_read(place) as store:
            offset = adopted_metadata_offset(store)
        metadata = os.path.join(having[0], METADATA_DIRECTORY)
        end = end_offset(metadata)
    except (Refusal, StoreError, StoreFailed, ValueError, KeyError, OSError) as error:
        # The controller reports a damaged store; a full or failing disk must not prevent a start.
        logger.warning("cannot tell whether Kafka has run here since the adoption: %s", error)
        return
    if offset is None or end <= offset:
        return
    store_path = os.path.join(place, STORE_NAME)
    raise Refusal(
        f"{metadata}: Kafka has run on this directory since it was adopted (its metadata log "
        f"ended at offset {offset} then, and at {end} now). To take over Kafka's present topics "
        f"and settings, move {store_path} and {COPY_NAME} away and run {_command(log_dirs)}; to "
        f"keep those of kbroker, move {metadata} away"
    )


def look_at_topics(
    log_dirs: Sequence[str], was_clean: Mapping[str, bool] | None = None
) -> AdoptionPlan | None:
    """The content of the directories that hold logs; None if none does. Changes nothing.

    was_clean: which of them a broker left in order, for a start that has taken their marks away.
    Raises Refusal for what kbroker-adopt refuses, OSError.
    """
    holding = [path for path in log_dirs if _holds_logs(path)]
    if not holding:
        return None
    try:
        return plan_for(read_directories(holding, logs_only=True, was_clean=was_clean))
    except Refusal as refusal:
        raise Refusal(f"{refusal}. Check again with {_command(log_dirs)} --dry-run") from refusal


def topics_to_serve(plan: AdoptionPlan) -> list[Adopted]:
    """The topics of a plan, for a new store to begin with."""
    adopted = []
    replicas = [plan.identity.broker_id]
    for topic in plan.topics:
        logger.warning(
            "topic %s with %s was found on disk and is served again. Its settings are lost, so "
            "none of its records are deleted: restore the settings with kafka-configs",
            topic.name,
            counted(topic.partition_count, "partition"),
        )
        assignment = dict.fromkeys(range(topic.partition_count), replicas)
        new = PlannedTopic(topic.name, topic.topic_id, assignment, topic.config)
        adopted.append(Adopted(new, topic.leader_epochs))
    return adopted


def _command(log_dirs: Sequence[str]) -> str:
    return f"kbroker-adopt --log-dirs {','.join(log_dirs)}"


def _holds_logs(log_dir: str) -> bool:
    """Whether there is a log in a data directory, or should be."""
    try:
        if OffsetCheckpoint(log_dir, RECOVERY_POINT_CHECKPOINT).read():
            return True
    except CorruptCheckpointError:
        return True
    except OSError as error:
        logger.error("cannot search %s for topics: %s", log_dir, error)
        return False
    try:
        partitions = scan_partitions(log_dir)
    except FileNotFoundError:
        return False  # made when the first partition is
    return any(
        holds_segments(os.path.join(log_dir, f"{name}-{number}")) for name, number in partitions
    )
