"""``kbroker-adopt --back-to``: prepares the directories of kbroker for Apache Kafka."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kbroker.adopt import to_kraft
from kbroker.adopt.at_start import RELEASED_SUFFIX
from kbroker.adopt.directories import held
from kbroker.adopt.errors import MissingArgument, Refusal, Unfinished
from kbroker.adopt.holdings import Holdings
from kbroker.adopt.register import store_place
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store_files import FILE_NAME, remove_copy
from kbroker.storage.dirs.log_dir import scan_futures
from kbroker.storage.files import sync_directory
from kbroker.wording import counted

KRAFT, ZOOKEEPER = "kafka-3.9", "kafka-2.7"

Say = Callable[[str], None]


def release(
    log_dirs: Sequence[str],
    target: str,
    say: Say,
    *,
    dry_run: bool = False,
    zookeeper: str | None = None,
    metadata_log_dir: str | None = None,
    missing_begin_empty: bool = False,
) -> None:
    """Show the plan, write what Kafka needs, and move kbroker's own store out of the way.

    metadata_log_dir, missing_begin_empty: as for ``adopt``. Raises Refusal and OSError with nothing
    changed, MissingArgument, Unfinished: the store goes last.
    """
    if target == ZOOKEEPER and not zookeeper:
        raise MissingArgument(
            "--back-to kafka-2.7 needs --zookeeper HOST:PORT, the value of Kafka's "
            "zookeeper.connect"
        )
    with held(log_dirs):
        place = store_place(log_dirs)
        if place is None:
            raise Refusal(
                f"{log_dirs[0]}/{FILE_NAME} is missing; these are not directories of kbroker, or "
                "they were handed back already"
            )
        holdings = Holdings(log_dirs, place)
        _check_whole(holdings, missing_begin_empty)
        if target == KRAFT:
            holdings.notes += to_kraft.notes(holdings)
        for line in plan_lines(holdings, target):
            say(line)
        try:
            if target == ZOOKEEPER:
                from kbroker.adopt import to_zookeeper

                assert zookeeper is not None
                next_steps = to_zookeeper.give_back(holdings, zookeeper, say, dry_run=dry_run)
            else:
                if not dry_run:
                    to_kraft.give_back(holdings, say)
                next_steps = list(to_kraft.steps(holdings, metadata_log_dir))
            if dry_run:
                say("Nothing was changed (--dry-run).")
                return
            retire_store(place)
        except (Refusal, OSError) as error:
            if not holdings.is_begun:
                raise
            raise Unfinished(str(error)) from error
    say(f"Done: {holdings.store_path} is now {FILE_NAME}{RELEASED_SUFFIX}.")
    for line in next_steps:
        say(line)


def _check_whole(holdings: Holdings, missing_begin_empty: bool) -> None:
    """Everything that kbroker has must be in the directories, once. Raises Refusal, OSError."""
    for log_dir in holdings.log_dirs:
        for paths in scan_futures(log_dir).values():
            raise Refusal(
                f"{paths[0]} is an incomplete replica that was being moved into this directory; "
                "Kafka would continue that move. Start kbroker, let the move finish and stop it, "
                "or remove that directory (another one has the original)"
            )
    if not holdings.missing:
        return
    text = f"{counted(len(holdings.missing), 'partition')} in none of the directories"
    if not missing_begin_empty:
        raise Refusal(
            f"{holdings.missing[0]}: missing ({text}); give all directories of log.dirs, or use "
            "--missing-begin-empty to have Kafka create the missing partitions empty"
        )
    holdings.notes.append(f"{text}, to be created empty: {', '.join(holdings.missing)}.")


def plan_lines(holdings: Holdings, target: str) -> list[str]:
    partitions = sum(len(topic.epochs) for topic in holdings.topics)
    what = (
        f"{target} will get {counted(len(holdings.topics), 'topic')} with "
        f"{counted(partitions, 'partition')}, with their ids and settings. No log is changed"
    )
    lines = [
        f"Data of kbroker, broker {holdings.broker_id}, cluster {holdings.cluster_id}",
        f"{what} except coordinator logs with records that this Kafka does not know."
        if target == ZOOKEEPER
        else f"{what}.",
    ]
    if holdings.notes:
        lines.append("Take note:")
        lines += [f"  - {note}" for note in holdings.notes]
    return lines


def retire_store(place: str) -> None:
    """Rename the store, so that it is not used after Kafka has changed the topics."""
    path = os.path.join(place, FILE_NAME)
    if not os.path.exists(path):
        NodeFile(place).close()  # from its copy
    remove_copy(place)
    for suffix in ("-wal", "-shm"):
        if os.path.exists(path + suffix):
            os.rename(path + suffix, path + RELEASED_SUFFIX + suffix)
    os.rename(path, path + RELEASED_SUFFIX)
    sync_directory(place)
