"""The command: reads the directories, shows the plan, registers topics. Idempotent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kbroker.adopt import report
from kbroker.adopt.directories import held, read_directories, read_identity
from kbroker.adopt.errors import Refusal
from kbroker.adopt.plan import find_metadata, plan_for
from kbroker.adopt.register import (
    adopted_metadata_offset,
    is_unused,
    register,
    store_place,
    store_to_read,
)
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME
from kbroker.wording import counted

Say = Callable[[str], None]


def adopt(
    log_dirs: Sequence[str],
    say: Say,
    progress: Say,
    *,
    dry_run: bool = False,
    broker_id: int = -1,
    metadata_log_dir: str | None = None,
    zookeeper: str | None = None,
    without_metadata: bool = False,
    without_remote_records: bool = False,
    missing_begin_empty: bool = False,
) -> None:
    """Adopt a broker's data directories, or report that this was already done.

    broker_id: as configured, -1 if it is not; it must match the directories. The other arguments
    are those of ``plan_for``. Raises Refusal, with nothing changed, and OSError.
    """
    with held(log_dirs):
        place = store_place(log_dirs)
        if place is not None and not is_unused(place):
            _already_adopted(log_dirs, place, metadata_log_dir, say, without_metadata)
            return
        plan = plan_for(
            read_directories(log_dirs),
            metadata_log_dir=metadata_log_dir,
            zookeeper=zookeeper,
            without_metadata=without_metadata,
            without_remote_records=without_remote_records,
            missing_begin_empty=missing_begin_empty,
            progress=progress,
        )
        if broker_id not in (-1, plan.identity.broker_id):
            raise Refusal(
                f"{log_dirs[0]}/meta.properties belongs to broker {plan.identity.broker_id}, but "
                f"the configuration says {broker_id}; set broker.id={plan.identity.broker_id}"
            )
        for line in report.plan_lines(plan):
            say(line)
        if dry_run:
            say("Nothing was changed (--dry-run).")
            return
        path = register(plan, place or log_dirs[0], progress)
    topics = counted(len(plan.topics), "topic")
    say(f"Done: {topics} registered in {path}. No file of Kafka was changed.")
    say(
        "Start the broker with the same log.dirs and broker.id; docs/migration.md has the next "
        "steps."
    )


def _already_adopted(
    log_dirs: Sequence[str],
    place: str,
    metadata_log_dir: str | None,
    say: Say,
    without_metadata: bool,
) -> None:
    """Report the registered topics. Raises Refusal when Kafka has run here since."""
    identity = read_identity(place)
    file = os.path.join(place, FILE_NAME)
    with store_to_read(place) as store:
        _check_cluster(store, identity.cluster_id, file)
        known = set(store.children(paths.BROKER_TOPICS))
        remembers = store.exists(paths.GONE_TOPICS) is not None
        gone = set(store.children(paths.GONE_TOPICS)) if remembers else set()
        offset = adopted_metadata_offset(store)
    directories = read_directories(log_dirs)
    if offset is not None:
        metadata = find_metadata(directories, metadata_log_dir, is_lost=without_metadata)
        if metadata is not None and metadata.end_offset > offset:
            raise Refusal(
                f"{file}: Kafka has run on this directory since it was adopted (its metadata log "
                f"ended at offset {offset} then, and at {metadata.end_offset} now). To take over "
                f"Kafka's present topics and settings, move that file and {COPY_NAME} away and "
                "run this again"
            )
    unknown = {key[0] for one in directories for key in one.partitions} - known
    say(f"Nothing to do: {counted(len(known), 'topic')} registered in {file}.")
    for name in sorted(unknown):
        what = "it is not served" if name in gone else "the next start also serves it"
        say(f"  {name} is on disk but not registered: {what}.")


def _check_cluster(store: NodeFile, cluster_id: str, file: str) -> None:
    stored = paths.decode_cluster_id(store.get(paths.CLUSTER_ID).data)
    if stored != cluster_id:
        raise Refusal(
            f"{file} belongs to cluster {stored}, but meta.properties beside it to {cluster_id}; "
            "move away the one that does not belong there"
        )
