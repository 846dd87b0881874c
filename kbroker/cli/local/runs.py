"""The brokers that run on this machine, found by what their processes share.

By the names of their shared memory in /dev/shm, which also works for another user who may read it,
and from another container that shares /dev/shm. A broker without names, or whose names somebody
has removed, is found by the descriptors of its supervisor (``/proc/<pid>/fd``), which the kernel
opens for the broker's user and for root.

Anybody may make names like these. So nothing in a region is believed before it is checked, nothing
is mapped (its owner could truncate it under a reader), and a broker of this user comes before those
of others.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import struct
from contextlib import suppress
from typing import Any

from kbroker import __version__
from kbroker.cli.arguments import CommandFailed
from kbroker.descriptors import readable
from kbroker.ipc import layouts, named_memory
from kbroker.ipc.named_memory import INDEX, is_held, named_runs, open_region
from kbroker.ipc.process_kinds import NETWORK_PROCESSES_MAX, ProcessKind
from kbroker.ipc.process_table import HEAD_CELLS, Address, region_size
from kbroker.metrics.slots import ROW_CELLS
from kbroker.wording import shown

_TITLE = b"kbroker: supervisor"
_HEAD = struct.Struct(f"{HEAD_CELLS}q")
_GONE = " (deleted)"
_MEMFD = "/memfd:kbroker-"
# The regions that are read here.
_READ = (
    INDEX, "status", "partitions", "slot-names", "counters", "clients", "log-figures", "log-dirs",
)  # fmt: skip
# BOUND: of what is read to know a run.
_STATUS_BYTES_MAX = 1 << 20
_PROCESSES_MAX = 1024
_SLOTS_MAX = 1 << 20


class NotARun(Exception):
    """The regions are not those of a broker that this command can read; the text says why."""


class _Opened:
    """Descriptors that are closed with this object. process: a pidfd; -1: none."""

    def __init__(self) -> None:
        self.regions: dict[str, int] = {}
        self.process = -1

    def __del__(self) -> None:
        for fd in (*self.regions.values(), self.process):
            if fd >= 0:
                os.close(fd)


class Run:
    """A broker, opened for reading. Its regions stay readable when it has ended.

    status: the document of its supervisor. user: who owns it; "" if it is this process's own user.
    sees_processes: whether its process ids mean the same here.
    """

    def __init__(self, opened: _Opened, pid: int = 0) -> None:
        """pid: of the supervisor, here, if known. Raises NotARun."""
        self._opened = opened
        self._regions = opened.regions
        try:
            owner = self._size_and_owner(INDEX)[1]
            head = self._head()
            self.status = self._status(head[3], head[4])
            index = os.fstat(self._regions[INDEX])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotARun(f"not what a broker has: {error}") from error
        self.identity = index.st_dev, index.st_ino
        self.user = "" if owner == os.geteuid() else _user(owner)
        self.pid: int = pid or self.status["pid"]
        self.sees_processes = head[2] in (0, _pid_namespace())

    @property
    def is_running(self) -> bool:
        """Whether its supervisor lives."""
        if self._opened.process >= 0:
            return not readable([self._opened.process], 0)
        try:
            return is_held(self._regions[INDEX])
        except OSError:
            return False

    @property
    def is_own(self) -> bool:
        """Whether this user may do with it what its own user may."""
        return not self.user or os.geteuid() == 0

    def is_of_process(self) -> bool:
        """Whether ``pid`` is its supervisor, whatever its regions say."""
        other = _of_process(self.pid)
        return other is not None and other.identity == self.identity

    @property
    def can_see_all(self) -> bool:
        """Whether the system shows the processes of this broker's user here."""
        return self.sees_processes and self.is_own

    @property
    def addresses(self) -> list[Address]:
        """Its processes, in the order of their rows. Raises ValueError."""
        return [_address(title) for title in self.status["processes"]]

    def read(self, region: str, offset: int, size: int) -> bytes:
        """Bytes of a region. Raises CommandFailed if it does not have them."""
        try:
            content = os.pread(self._regions[region], size, offset)
        except (OSError, KeyError) as error:
            raise CommandFailed(
                f"cannot read the shared memory of broker {self.pid}: {error}"
            ) from error
        if len(content) != size:
            raise CommandFailed(
                f"the shared memory of broker {self.pid} is damaged: its region {region} has no "
                f"{size} bytes at {offset}"
            )
        return content

    def _size_and_owner(self, region: str) -> tuple[int, int]:
        status = os.fstat(self._regions[region])
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{region} is no file")
        return status.st_size, status.st_uid

    def _head(self) -> tuple[int, ...]:
        data = os.pread(self._regions[INDEX], _HEAD.size, 0)
        if len(data) < _HEAD.size:
            raise ValueError("its index has no head")
        head: tuple[int, ...] = _HEAD.unpack(data)
        if head[0] != layouts.MAGIC:
            raise ValueError("its index has another beginning")
        size, owner = self._size_and_owner(INDEX)
        if not 0 < head[4] <= _PROCESSES_MAX or size < region_size(head[4]):
            raise ValueError(f"an index of {size} bytes has no {head[4]} processes")
        for region in self._regions:
            if self._size_and_owner(region)[1] != owner:
                raise ValueError(f"{region} belongs to another user than {INDEX}")
        return head

    def _status(self, size: int, processes: int) -> dict[str, Any]:
        if not 0 < size <= min(_STATUS_BYTES_MAX, self._size_and_owner("status")[0]):
            raise ValueError(f"a status of {size} bytes")
        status = json.loads(os.pread(self._regions["status"], size, 0))
        _check(status, processes)
        document: dict[str, Any] = status
        return document

    def check_version(self) -> None:
        """Raises CommandFailed if this command cannot read its tables."""
        version = self.status["version"]
        head = _HEAD.unpack(os.pread(self._regions[INDEX], _HEAD.size, 0))
        if version != __version__ or (head[1], head[5]) != (layouts.LAYOUT, ROW_CELLS):
            built = "" if version != __version__ else ", but of another build"
            raise CommandFailed(
                f"the broker is kbroker {version}, this is {__version__}{built}: use the command "
                "of its version"
            )


# What a status document must have, and the types of it.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "pid": int,
    "version": str,
    "broker_id": int,
    "cluster_id": (str, type(None)),
    "bootstrap": str,
    "listeners": dict,
    "metrics": (str, type(None)),
    "log_dirs": list,
    "settings": dict,
    "processes": list,
    "slots": int,
}


def _check(status: Any, processes: int) -> None:
    """Raises ValueError, KeyError, TypeError."""
    for key, wanted in _TYPES.items():
        if not isinstance(status[key], wanted):
            raise ValueError(f"its status has no {key}")
    texts = [*status["listeners"].values(), *status["log_dirs"], *status["processes"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("its status has other values than texts")
    if len(status["processes"]) != processes or not 0 < status["slots"] <= _SLOTS_MAX:
        raise ValueError("its status and its index differ")
    kinds = [_address(title).kind for title in status["processes"]]
    if kinds.count(ProcessKind.NETWORK) > NETWORK_PROCESSES_MAX or status["pid"] <= 0:
        raise ValueError("its status has impossible numbers")


def _address(title: str) -> Address:
    """Raises ValueError."""
    name, _, index = title.rpartition("-")
    for kind in ProcessKind:
        if kind.title == name and index.isascii() and index.isdigit() and len(index) < 5:
            return Address(kind, int(index))
    raise ValueError(f"no process is called {title!r}")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return -1


# -- finding them


def running() -> list[Run]:
    """The brokers that this process may look at: those of its user, or else those of others."""
    by_name = [run for nonce in sorted(named_runs()) if (run := _named(nonce)) and run.is_running]
    known = {run.pid for run in by_name if run.sees_processes}
    by_process = [run for pid in _supervisors() if pid not in known and (run := _of_process(pid))]
    twice = {run.identity for run in by_process}
    runs = [run for run in by_name if run.identity not in twice] + by_process
    return [run for run in runs if run.is_own] or runs


def of_process(pid: int) -> Run:
    """The broker with that supervisor. Raises CommandFailed."""
    runs = [run for run in running() if run.pid == pid]
    run = runs[0] if len(runs) == 1 else _of_process(pid)
    if run is not None:
        return run
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # there is such a process: said below
    except (OSError, OverflowError) as error:
        raise CommandFailed(
            f"process {pid}: {getattr(error, 'strerror', None) or error}"
        ) from error
    raise CommandFailed(f"process {pid} is no supervisor of a kbroker that this user may look at")


def _named(nonce: str) -> Run | None:
    opened = _Opened()
    try:
        for region in _READ:
            opened.regions[region] = open_region(nonce, region)
        return Run(opened)
    except (OSError, NotARun):
        return None


def _supervisors() -> list[int]:
    """Process ids by title; without children that are about to give themselves another one."""
    parents = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read(len(_TITLE)) != _TITLE:
                    continue
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue  # it has ended
    return [pid for pid, parent in parents.items() if parent not in parents]


def _of_process(pid: int) -> Run | None:
    """By the descriptors of a supervisor; None if it has none, or belongs to somebody else."""
    opened = _Opened()
    try:
        opened.process = os.pidfd_open(pid)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                path = f"/proc/{pid}/fd/{fd}"
                region = _region_of(os.readlink(path).removesuffix(_GONE))
                if region in _READ and region not in opened.regions:
                    opened.regions[region] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return Run(opened, pid)
    except (OSError, OverflowError, NotARun):
        return None


def _region_of(target: str) -> str:
    """The region that a link in /proc leads to; "" for anything else."""
    if target.startswith(_MEMFD):
        return target.removeprefix(_MEMFD)
    if target.startswith(f"{named_memory.DIRECTORY}/kbroker-"):
        return target.rpartition("/")[2].partition(".")[2]
    return ""


def left_behind() -> list[str]:
    """One line for each run of this user whose supervisor died and left names."""
    lines = []
    for nonce, regions in sorted(named_runs().items()):
        size = owner = 0
        for region in regions:
            with suppress(OSError):
                status = os.stat(named_memory.path_of(nonce, region), follow_symlinks=False)
                size, owner = size + status.st_size, status.st_uid
        if os.geteuid() not in (owner, 0) or named_memory.is_running(nonce):
            continue
        run = _named(nonce)
        of = (
            f": broker {run.status['broker_id']} on {','.join(run.status['log_dirs'])}"
            if run
            else ""
        )
        lines.append(
            f"{named_memory.path_of(nonce, '*')} ({size / 2**20:.1f} MiB) was left by a broker "
            f"that was killed{shown(of)}. Its next start on the same data directory removes it; "
            "rm does, too"
        )
    return lines
