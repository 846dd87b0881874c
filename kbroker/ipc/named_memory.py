"""Shared memory with names: the tables that describe a broker, for programs outside of it.

A run's objects are ``/kbroker-<nonce>.<region>``, made by the supervisor with posix_ipc; they are
files in /dev/shm. Every byte is allocated before anybody maps one, so that no store can raise
SIGBUS when the file system is full. The first one, INDEX, is locked for as long as the supervisor
lives: the kernel unlocks it however that dies, and a lock, unlike a process id, means the same in
another container. It is a lock for writing that belongs to an open file (OFD), so that whoever may
only read can ask for it and cannot hold it.

Names outlive a supervisor that is killed. Its data directories say which they are (``note_run``),
and the next start on one of them removes them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
from contextlib import suppress

DIRECTORY = "/dev/shm"
INDEX = "processes"
_PREFIX = "kbroker-"
_NAME = re.compile(r"kbroker-([0-9a-f]{8})\.([a-z-]{1,32})")
_NOTE = re.compile(rb"kbroker-([0-9a-f]{8})\n")
# struct flock: type, whence, start, length (0: everything), process (0 for a lock of this kind).
_FLOCK = struct.Struct("hhqqi4x")


def has_package() -> bool:
    """Whether posix_ipc is there; it has no wheel for each Python."""
    try:
        import posix_ipc  # noqa: F401 - its use is to be there
    except ImportError:
        return False
    return True


class NamedMemory:
    """The objects of this run. Supervisor only."""

    def __init__(self, nonce: str, mode: int = 0o600, group: int = -1) -> None:
        """mode, group: of every object; -1: the process's own group."""
        self.nonce = nonce
        self._mode = mode
        self._group = group
        self._paths: list[str] = []
        self._lock_fd = -1

    def create(self, region: str, size: int) -> mmap.mmap:
        """A zeroed region of ``size`` bytes, mapped here and inherited by every fork.

        The first one must be INDEX. Raises OSError: there is no room, or no such file system.
        """
        import posix_ipc

        name = f"{_PREFIX}{self.nonce}.{region}"
        path = os.path.join(DIRECTORY, name)
        try:
            fd = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, 0o600, size=0).fd
        except posix_ipc.Error as error:  # the name exists, or may not be made
            raise OSError(str(error)) from error
        self._paths.append(path)
        try:
            if self._lock_fd < 0:
                assert region == INDEX, region
                self._lock(path)
            os.posix_fallocate(fd, 0, size)
            if self._group >= 0:
                os.fchown(fd, -1, self._group)
            os.fchmod(fd, self._mode)
            return mmap.mmap(fd, size, mmap.MAP_SHARED)
        finally:
            os.close(fd)

    def _lock(self, path: str) -> None:
        # Not the file that is mapped: every child keeps that open, and a lock with it.
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.fcntl(self._lock_fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))

    def close_in_child(self) -> None:
        """Close the lock in a child, with which it would outlive the supervisor."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def remove(self) -> None:
        """Remove the names, INDEX last, and unlock. The memory stays until it is unmapped."""
        for path in reversed(self._paths):
            with suppress(OSError):
                os.unlink(path)
        self._paths.clear()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def named_runs() -> dict[str, list[str]]:
    """The regions that have names, by nonce; none where there is no /dev/shm."""
    regions: dict[str, list[str]] = {}
    with suppress(OSError):
        for name in os.listdir(DIRECTORY):
            if match := _NAME.fullmatch(name):
                regions.setdefault(match[1], []).append(match[2])
    return regions


def path_of(nonce: str, region: str) -> str:
    """Where the object is in the file system."""
    return os.path.join(DIRECTORY, f"{_PREFIX}{nonce}.{region}")


def open_region(nonce: str, region: str) -> int:
    """A descriptor for reading. Raises OSError.

    Others may make names like these: it does not follow links or wait for a pipe.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    return os.open(path_of(nonce, region), flags)


def is_held(fd: int) -> bool:
    """Whether the supervisor that has locked this INDEX lives. Raises OSError."""
    asked = _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0)
    lock_type: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return lock_type != fcntl.F_UNLCK


def is_running(nonce: str) -> bool:
    """Whether the run's supervisor lives, as far as its INDEX tells."""
    try:
        fd = open_region(nonce, INDEX)
    except OSError:
        return False
    try:
        return is_held(fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def remove_run(nonce: str) -> list[str]:
    """Remove the names that a dead supervisor left; returns their regions. Raises OSError.

    Nothing of a run that lives: a copy of its data directory has its note, too.
    """
    if is_running(nonce):
        return []
    regions = named_runs().get(nonce, [])
    for region in sorted(regions, key=INDEX.__eq__):
        with suppress(FileNotFoundError):
            os.unlink(path_of(nonce, region))
    return regions


def note_run(fd: int, nonce: str) -> None:
    """Write into a file of a data directory which names this run has. Raises OSError."""
    note = f"{_PREFIX}{nonce}\n".encode()
    if os.pwrite(fd, note, 0) != len(note):
        raise OSError("cannot write the whole note")


def noted_run(fd: int) -> str | None:
    """What ``note_run`` wrote last; None if it is nothing."""
    try:
        match = _NOTE.match(os.pread(fd, 32, 0))
    except OSError:
        return None
    return match[1].decode() if match else None
