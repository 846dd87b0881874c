"""The origin of the figures in a result file: the commit and the machine, and its memory."""

import mmap
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.kafka_distribution import ROOT

# Left to the brokers while the rest is touched.
KEPT_BYTES = 3 << 30
TOUCHED_BYTES_MAX = 12 << 30
GIBIBYTE = 1 << 30
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ask(*command: str) -> tuple[str, str]:
    """The output of a command on stdout and stderr; two empty texts if it does not exist."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "", ""
    return done.stdout, done.stderr


def git(*arguments: str) -> str:
    return ask("git", *arguments)[0].strip()


def commit_text() -> str:
    """The short commit, with "-dirty" when tracked files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def machine() -> dict[str, Any]:
    """The parts of the machine that the figures depend on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    java = ask("java", "-version")[1]
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java.splitlines()[0] if java else "none",
        "load_average": os.getloadavg(),
    }


def touch_free_memory(limit: int = TOUCHED_BYTES_MAX) -> int:
    """Write to each page of so many bytes of free memory, and free them; returns how many.

    On a virtual machine whose host hands out memory at its first use, what a broker stores would
    cost several times as much before that as after it; see notes/fresh-machine.md.
    """
    size = min(limit, available_bytes() - KEPT_BYTES)
    if size <= 0:
        return 0
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, size, flags=private).close()
    return size


def available_bytes() -> int:
    """What processes can still have without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class MachineTooSmall(Exception):
    """What a measurement needs and this machine lacks, in one line."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a measurement takes of the machine. descriptors: of one process. place: the folder that
    takes ``place_bytes``; in /dev/shm these are of the memory, too.
    """

    memory_bytes: int = 0
    descriptors: int = 0
    ports: int = 0
    place: Path = Path("/tmp")
    place_bytes: int = 0

    def require(self) -> None:
        """Raise the limit of descriptors as far as needed. Raises MachineTooSmall."""
        missing = [text for text in self._missing() if text]
        if missing:
            raise MachineTooSmall("; ".join(missing))

    def _missing(self) -> Iterator[str]:
        is_memory = self.place.resolve().is_relative_to("/dev/shm")
        yield _lack("memory", available_bytes(), self.memory_bytes + is_memory * self.place_bytes)
        yield _lack(f"space in {self.place}", shutil.disk_usage(self.place).free, self.place_bytes)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < self.descriptors <= hard or hard == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, self.descriptors), hard))
        elif hard < self.descriptors:
            yield f"{hard} descriptors for a process, {self.descriptors} are needed (ulimit -n)"
        low, high = map(int, LOCAL_PORTS.read_text().split())
        if high - low < self.ports:
            yield f"{high - low} local ports, {self.ports} are needed ({LOCAL_PORTS})"


def _lack(what: str, there_bytes: int, needed_bytes: int) -> str:
    if there_bytes >= needed_bytes:
        return ""
    return f"{there_bytes / GIBIBYTE:.1f} GiB of {what}, {needed_bytes / GIBIBYTE:.1f} are needed"
