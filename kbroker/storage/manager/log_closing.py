"""Closes all logs of an io worker when it stops.

A clean shutdown has two seconds for thousands of logs: each writes what the next start needs, then
all of it is synced, by file system from a number on. A log or a directory where that fails is
recovered by the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kbroker.storage.dirs.log_dirs import LocalLogDirs
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.log.unsynced import FlushJob
from kbroker.storage.manager.open_logs import OpenLogs

logger = logging.getLogger(__name__)

# With this many logs or more it is faster to sync the whole file system first.
SYNC_AT_ONCE_MIN = 16


def close_logs(logs: OpenLogs, dirs: LocalLogDirs, *, clean: bool) -> None:
    """clean: without it only descriptors are closed. Directories that failed have an ``error``."""
    entries = list(logs.by_slot.values())
    jobs: dict[int, FlushJob] = {}
    for log in entries if clean else ():
        try:
            log.epochs.write_if_behind()
            job = log.sync.seal()
        except OSError as error:
            _not_closed(dirs, log, error)
        else:
            if job is not None:
                jobs[log.slot] = job
    if len(jobs) >= SYNC_AT_ONCE_MIN:
        _sync_at_once(dirs, [log for log in entries if log.slot in jobs], jobs)
    for log in entries:
        try:
            log.close(jobs.get(log.slot))
        except OSError as error:
            _not_closed(dirs, log, error)
        logs.closed(log)


def _sync_at_once(
    dirs: LocalLogDirs, entries: Sequence[PartitionLog], jobs: Mapping[int, FlushJob]
) -> None:
    """Sync whole file systems; each file by itself costs a flush of the disk's cache."""
    for path in {log.log_dir for log in entries}:
        log_dir = dirs.at(path)
        try:
            tells_failures = log_dir.sync_everything()
        except OSError as error:
            # A sync of a single file after it could claim success.
            log_dir.error = error
            logger.error("cannot sync log directory %s: %s", path, error)
            tells_failures = True
        for log in entries:
            if log.log_dir == path:
                jobs[log.slot].file_system_synced(tells_failures=tells_failures)


def _not_closed(dirs: LocalLogDirs, log: PartitionLog, error: OSError) -> None:
    # Also on a full disk: what is not written now is recovered at the next start.
    dirs.at(log.log_dir).error = error
    logger.error("%s was not closed cleanly: %s", log.name, error)
