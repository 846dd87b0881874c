"""A broker of a cluster compares its log directories with what the store knows of them, once in a
run and before it registers: nobody elects it before it is known what it may have lost.

INVARIANT: what is suspect is on disk before the directory's new incarnation is, and that before the
store has it. A failure in between is found again, or costs a few requests to other replicas.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import BadVersion, NodeExists, NoNode
from kbroker.storage.dirs.incarnations import (
    doubt_about,
    next_start,
    read_incarnation,
    suspect_all,
    write_incarnation,
)

logger = logging.getLogger(__name__)

# In the runtime directory, which is new for every run.
DONE_NAME = "directories-checked"
# BOUND: directories that are remembered for a broker; those that were started longest ago go first.
KNOWN_MAX = 1_000


async def check_directories(
    store: SettledStore, broker_id: int, runtime_dir: str, clean_start: Mapping[str, bool]
) -> bool:
    """Whether some directory is not what it was; its partitions are suspect now. clean_start: the
    directories in use, and whether each was closed in order.
    """
    done = os.path.join(runtime_dir, DONE_NAME)
    if os.path.exists(done):
        return False
    known, version = await _known(store, broker_id)
    is_in_doubt, present = False, dict(known)
    for path, was_clean in clean_start.items():
        try:
            incarnation = read_incarnation(path)
            doubt = doubt_about(incarnation, known, was_clean=was_clean)
            if doubt:
                is_in_doubt = True
                logger.warning(
                    "log directory %s is not as this broker left it: %s. It may lack records: the "
                    "%d partitions in it, and those that are missing, are completed from other "
                    "replicas before this broker leads them", path, doubt, suspect_all(path),
                )  # fmt: skip
            begun = next_start(incarnation, known)
            write_incarnation(path, begun)
        except OSError as error:
            logger.error("cannot note the incarnation of %s: %s", path, error)
            continue
        present.pop(begun.id, None)
        present[begun.id] = begun.start
    await _store(store, broker_id, dict(list(present.items())[-KNOWN_MAX:]), version)
    with open(done, "wb"):
        pass
    return is_in_doubt


async def _known(store: SettledStore, broker_id: int) -> tuple[dict[str, int], int | None]:
    """The starts by directory, and the version of the node; None if there is none."""
    path = paths.log_dirs(broker_id)
    try:
        node = await store.get(path)
    except NoNode:
        return {}, None
    try:
        return paths.decode_log_dirs(node.data), node.stat.version
    except DAMAGED as error:
        logger.error("ignoring %s: %r", path, error)
        return {}, node.stat.version


async def _store(
    store: SettledStore, broker_id: int, known: Mapping[str, int], version: int | None
) -> None:
    path, document = paths.log_dirs(broker_id), paths.encode_log_dirs(known)
    try:
        if version is not None:
            await store.multi().set(path, document, version).commit()
            return
        await store.ensure([paths.KBROKER, paths.LOG_DIRS])
        await store.multi().create(path, document).commit()
    except (BadVersion, NodeExists, NoNode) as error:
        # Another process with this broker id; the registration decides between them.
        logger.warning("cannot note this start in %s: %r", path, error)
