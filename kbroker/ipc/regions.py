"""The memory that the processes of one broker share, created by the supervisor before it forks.

Two kinds. The tables that describe the broker have names (``named_memory``), for programs that look
at it. What only its processes use, and the tables where names are impossible, are memfds: these
have no name in any file system, so nothing is left behind, however a process dies, and only this
broker's processes can reach them. Sizes of memfds are sealed, so that one cannot be shrunk under a
reader (that would be SIGBUS), and their pages cost memory only once they are touched.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import NamedTuple

from kbroker._ext.shared import (
    client_figures,
    group_offsets,
    log_figures,
    partition_table,
    quota_table,
    replication_quota,
    request_times,
    session_times,
    slot_names,
)
from kbroker.ipc import log_dir_table, process_table
from kbroker.metrics import slots

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


class RegionSizes(NamedTuple):
    """What the sizes follow from. timed_count: of processes that record times of requests, the
    first ones. feeder_count: of processes with an arena."""

    process_count: int
    timed_count: int
    io_worker_count: int
    feeder_count: int
    slot_count: int
    arena_bytes: int
    log_dir_count: int
    quota_samples: int
    status_bytes: int


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
        "slot_names",
        "status",
    )

    def __init__(
        self, sizes: RegionSizes, create: Callable[[str, int], mmap.mmap] | None = None
    ) -> None:
        """create: makes the tables that describe the broker, by region and size; None: memfds.

        Raises OSError.
        """
        table = create or memfd
        feeders = sizes.feeder_count
        # The first one: whoever looks at the tables begins with it.
        self.process_table = table("processes", process_table.region_size(sizes.process_count))
        # A JSON document, which stays as it is. ``ProcessHead`` has its length.
        self.status = table("status", sizes.status_bytes)
        self.partition_table = table("partitions", partition_table.region_size(sizes.slot_count))
        self.slot_names = table("slot-names", slot_names.region_size(sizes.slot_count))
        self.counters = table("counters", slots.region_size(sizes.process_count))
        self.request_times = table("request-times", request_times.region_size(sizes.timed_count))
        self.client_figures = table("clients", client_figures.region_size(feeders))
        self.log_figures = table(
            "log-figures", log_figures.region_size(sizes.slot_count, feeders)
        )  # fmt: skip
        # The time of the last request of each follower's session.
        self.follower_sessions = table(
            "follower-sessions", session_times.region_size(max(feeders, 1))
        )
        self.replication_quotas = table(
            "replication-quotas", replication_quota.region_size(sizes.quota_samples)
        )
        self.client_quotas = table("client-quotas", quota_table.region_size())
        # A LogDirTable.
        self.failed_log_dirs = table("log-dirs", log_dir_table.region_size(sizes.log_dir_count))
        # Not tables but buffers: one side writes what the other has asked for.
        self.arenas = [memfd(f"arena-{index}", sizes.arena_bytes) for index in range(feeders)]
        self.group_offsets = [
            memfd(f"group-offsets-{index}", group_offsets.region_size())
            for index in range(sizes.io_worker_count)
        ]


def memfd(region: str, size: int) -> mmap.mmap:
    """A region without a name."""
    return create_region(f"kbroker-{region}", size)
