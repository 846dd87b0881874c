"""Whether an io worker may open as many files as its partitions need."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

# An open log has its active segment open. More are needed for links to other processes, and
# occasionally for syncs, lookups, or transactions.
OTHERS_MIN = 200
# Headroom for the log, so that it need not ask again soon.
PER_LOG, SPARE = 2, 1000
# What a network process keeps open for fetches: a log and an index for each partition that is read,
# of a quarter of its descriptors. The rest is for connections.
FETCHED_FILES_MIN, FETCHED_FILES_MAX, FETCHED_SHARE = 1_000, 16_384, 4


def fetched_files_max() -> int:
    """BOUND: the files that a network process keeps open for fetches."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(limit // FETCHED_SHARE, FETCHED_FILES_MIN), FETCHED_FILES_MAX)


class DescriptorLimit:
    """One per io worker. Repeats the warning only when the number of logs has doubled."""

    def __init__(self) -> None:
        self._said_of = 0

    def check(self, log_count: int) -> None:
        """Check the limit for this number of open logs."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if log_count + OTHERS_MIN <= limit or log_count < 2 * self._said_of:
            return
        self._said_of = log_count
        text = (
            "%d partitions of this io worker need more open files than the limit of %d: those that"
        )
        text += " get none stay offline; raise it to %d or more (ulimit -n, or LimitNOFILE= in a"
        text += " systemd unit), or use more io workers (num.io.threads)"
        logger.error(text, log_count, limit, log_count * PER_LOG + SPARE)
