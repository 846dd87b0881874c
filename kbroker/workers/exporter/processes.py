"""What the operating system says of this broker's processes: memory, CPU, descriptors, disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbroker.exposition.mbeans import GAUGE, NO_TAGS, Bean, Samples, Tags, plain_lines
from kbroker.ipc.process_table import PID, Address, ProcessTable

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat behind the name: user and system time.
USER_TIME, SYSTEM_TIME = 11, 12

DISK_READ = Bean(
    "kafka.server", "KafkaServer", "linux-disk-read-bytes", GAUGE, "Bytes read from disks."
)
DISK_WRITTEN = Bean(
    "kafka.server", "KafkaServer", "linux-disk-write-bytes", GAUGE, "Bytes written to disks."
)


class ProcessUsage(NamedTuple):
    """Of one process. The last three are totals. descriptors, disk: -1 where this user may not
    read it."""

    descriptors: int
    resident: int
    cpu_s: float
    disk_read: int
    disk_written: int


class ProcessFigures:
    """Keeps the totals of processes that have died, as far as it has seen them."""

    def __init__(self, processes: ProcessTable, addresses: Sequence[Address]) -> None:
        self._processes = processes
        self._addresses = addresses
        self._last: dict[Address, tuple[int, ProcessUsage]] = {}  # pid, what it had used
        self._ended: dict[Address, tuple[float, int, int]] = {}

    def look(self) -> dict[Address, ProcessUsage]:
        """All processes that run; totals include those of their predecessors."""
        usages = {}
        for address in self._addresses:
            pid = self._processes.get(address, PID)
            usage = usage_of(pid) if pid else None
            if usage is None:
                continue
            last = self._last.get(address)
            if last is not None and last[0] != pid:
                cpu_s, read, written = self._ended.get(address, (0.0, 0, 0))
                self._ended[address] = (
                    cpu_s + last[1].cpu_s,
                    read + max(0, last[1].disk_read),
                    written + max(0, last[1].disk_written),
                )
            self._last[address] = (pid, usage)
            before = self._ended.get(address, (0.0, 0, 0))
            has_disk = usage.disk_read >= 0
            usages[address] = usage._replace(
                cpu_s=usage.cpu_s + before[0],
                disk_read=usage.disk_read + before[1] if has_disk else -1,
                disk_written=usage.disk_written + before[2] if has_disk else -1,
            )
        return usages

    def samples(self, usages: dict[Address, ProcessUsage]) -> Iterator[Samples]:
        """By Kafka's names. Without the right to read it, there is no figure for disks."""
        if usages and all(usage.disk_read >= 0 for usage in usages.values()):
            yield DISK_READ, [(NO_TAGS, sum(usage.disk_read for usage in usages.values()))]
            yield DISK_WRITTEN, [(NO_TAGS, sum(usage.disk_written for usage in usages.values()))]

    def lines(self, usages: dict[Address, ProcessUsage]) -> Iterator[str]:
        """Of each process, and the sums by the names that all exporters use."""
        tags = {address: Tags(("process", address.title)) for address in usages}
        yield from plain_lines(
            "kbroker_process_open_fds", "gauge", "Open file descriptors of a process.",
            (
                (tags[address], usage.descriptors)
                for address, usage in usages.items()
                if usage.descriptors >= 0
            ),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_process_resident_memory_bytes", "gauge",
            "Resident memory of a process, including what it shares with others.",
            ((tags[address], usage.resident) for address, usage in usages.items()),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_process_cpu_seconds_total", "counter", "CPU time of a process.",
            ((tags[address], round(usage.cpu_s, 2)) for address, usage in usages.items()),
        )  # fmt: skip
        yield from plain_lines(
            "process_open_fds", "gauge", "Open file descriptors of all processes.",
            [(NO_TAGS, sum(max(0, usage.descriptors) for usage in usages.values()))],
        )  # fmt: skip
        yield from plain_lines(
            "process_cpu_seconds_total", "counter", "CPU time of all processes.",
            [(NO_TAGS, round(sum(usage.cpu_s for usage in usages.values()), 2))],
        )  # fmt: skip


def usage_of(pid: int) -> ProcessUsage | None:
    """None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/statm") as file:
            resident = int(file.read().split()[1]) * PAGE
    except OSError:
        return None
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        descriptors = -1  # another user's
    except OSError:
        return None
    cpu_s = (int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])) / TICKS
    read = written = -1
    try:
        with open(f"/proc/{pid}/io") as file:
            said = dict(line.split(": ") for line in file.read().splitlines())
        read, written = int(said["read_bytes"]), int(said["write_bytes"])
    except (OSError, KeyError, ValueError):
        pass
    return ProcessUsage(descriptors, resident, cpu_s, read, written)
