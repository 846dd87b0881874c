"""The memory that the processes of one broker share, created by the supervisor before it forks.

Every region is a memfd. It has no name in any file system, so nothing is left behind, however a
process dies, and only this broker's processes can reach it. Sizes are sealed, so a region cannot be
shrunk under a reader (that would be SIGBUS). Pages cost memory only once they are touched.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from kbroker._ext.shared import (
    client_figures,
    group_offsets,
    log_figures,
    quota_table,
    replication_quota,
    request_times,
    session_times,
)
from kbroker.ipc import process_table

# Absent from the fcntl module of Python 3.11; values of <linux/fcntl.h>.
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4


def create_region(name: str, size: int) -> mmap.mmap:
    """A zeroed region of ``size`` bytes, mapped here and inherited by every fork.

    ``name`` shows in /proc only.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        return mmap.mmap(fd, size, mmap.MAP_SHARED)
    finally:
        os.close(fd)


def arena_size(bound_bytes: int, largest_bytes: int) -> int:
    """Bytes of an arena for ``bound_bytes`` of requests, the largest of ``largest_bytes``.

    A power of two that holds two of the largest: while a request grows it has a block of half its
    size already. An eighth of it comes on top, for requests up to 64 KiB only.
    """
    largest_block = 1 << (largest_bytes - 1).bit_length()
    large_part = 1 << (max(bound_bytes, 2 * largest_block) - 1).bit_length()
    return large_part + large_part // 8


def small_part_bytes(arena_bytes: int) -> int:
    """The bytes of ``arena_size`` that are reserved for small requests."""
    return arena_bytes // 9


class SharedRegions:
    """All regions of one broker. They live as long as a process maps them."""

    __slots__ = (
        "arenas",
        "client_figures",
        "client_quotas",
        "counters",
        "failed_log_dirs",
        "follower_sessions",
        "group_offsets",
        "log_figures",
        "partition_table",
        "process_table",
        "replication_quotas",
        "request_times",
    )

    def __init__(
        self,
        process_count: int,
        partition_table_bytes: int,
        slot_count: int,
        io_worker_count: int,
        arena_count: int,
        arena_bytes: int,
        counters_bytes: int,
        log_dir_count: int,
        quota_samples: int,
    ) -> None:
        self.process_table = create_region(
            "kbroker-processes", process_table.region_size(process_count)
        )
        self.partition_table = create_region("kbroker-partitions", partition_table_bytes)
        self.arenas = [
            create_region(f"kbroker-arena-{index}", arena_bytes) for index in range(arena_count)
        ]
        self.counters = create_region("kbroker-counters", counters_bytes)
        self.request_times = create_region(
            "kbroker-request-times", request_times.region_size(process_count)
        )
        self.client_figures = create_region(
            "kbroker-clients", client_figures.region_size(arena_count)
        )
        self.group_offsets = [
            create_region(f"kbroker-group-offsets-{index}", group_offsets.region_size())
            for index in range(io_worker_count)
        ]
        self.log_figures = create_region(
            "kbroker-log-figures", log_figures.region_size(slot_count, arena_count)
        )
        # The time of the last request of each follower's session.
        self.follower_sessions = create_region(
            "kbroker-follower-sessions", session_times.region_size(max(arena_count, 1))
        )
        self.replication_quotas = create_region(
            "kbroker-replication-quotas", replication_quota.region_size(quota_samples)
        )
        self.client_quotas = create_region("kbroker-client-quotas", quota_table.region_size())
        # A byte for each log directory, not 0 if it was left out at the start, or a write or sync
        # in it has failed.
        self.failed_log_dirs = create_region("kbroker-log-dirs", log_dir_count)
