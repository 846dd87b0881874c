"""Files that are replaced as a whole: written, synced, renamed into place, the directory synced."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import TypeGuard

from kbroker._ext.base.libc import syncfs
from kbroker.descriptors import open_file, opening
from kbroker.errors import may_do_without
from kbroker.storage.formats import TEMPORARY_SUFFIX

# Above this number, one sync of the whole file system replaces a sync of each file: each may take
# the disk as long.
FILES_SYNCED_SINGLY = 8
# From this version on syncfs reports failed writes.
SYNCFS_TELLS = (5, 8)
# A name that the file system rejects, too many entries in a directory, or a name in use: caused by
# clients' names and counts, not by the disk.
UNFIT_ERRNOS = (errno.ENAMETOOLONG, errno.EMLINK, errno.EEXIST)
# A file is missing, of another type, or not accessible.
MISFILED_ERRNOS = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
)


def blames_disk(error: OSError) -> bool:
    """Whether ``error`` takes the log directory offline. An error caused by clients' requests, or
    by a limit, only rejects what caused it.
    """
    return not may_do_without(error) and error.errno not in UNFIT_ERRNOS


def is_of_partition(error: object, path: str) -> TypeGuard[Exception]:
    """Whether ``error`` is about the files in the partition directory ``path`` (damaged, missing,
    of the wrong kind, or with the wrong permissions) and not about the disk.
    """
    if isinstance(error, OSError):
        return error.errno in MISFILED_ERRNOS and os.path.isdir(path)
    return isinstance(error, ValueError)


def open_directory(path: str) -> int:
    """A descriptor to sync or lock a directory with. Raises ShortageError, OSError."""
    return open_file(path, os.O_RDONLY | os.O_DIRECTORY)


def list_directory(path: str) -> list[str]:
    """Names in a directory. Raises ShortageError, OSError."""
    with opening(path):
        return os.listdir(path)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = open_directory(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: str) -> None:
    """Make a directory and those above it that are missing, durably. Raises OSError."""
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        os.makedirs(made, exist_ok=True)
        with suppress(PermissionError):  # one may make names in a directory and not open it
            sync_directory(os.path.dirname(made))


def sync_file_system(fd: int) -> bool:
    """Sync the whole file system of an open file. Raises OSError.

    True: every write of any file there that has failed since ``fd`` was opened would have been told
    (Linux 5.8). False: nothing is known of failures.
    """
    syncfs(fd)
    return syncfs_tells_failures()


def syncfs_tells_failures() -> bool:
    """Whether this kernel's ``sync_file_system`` reports every failed write."""
    return linux_version() >= SYNCFS_TELLS


def linux_version() -> tuple[int, int]:
    """(major, minor) of the running kernel; (0, 0) if unknown."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def sync_file(path: str) -> None:
    """Make a file's bytes durable; does nothing when the file no longer exists."""
    try:
        fd = open_file(path)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: str, data: bytes, *, sync: bool = True, spare: str | None = None) -> None:
    """Write ``data`` to ``path`` so that a crash leaves the old file or the new one, never a
    mixture.

    sync: durable when this returns. Without it the caller syncs the file and directory later.
        Raises OSError; the old file is then still there.
    spare: an empty file to use up, if it is there: making a new one can cost ten times as much.
    """
    directory = open_directory(os.path.dirname(path)) if sync else -1
    try:
        _write_and_rename(path, data, sync=sync, spare=spare)
        if sync:
            os.fsync(directory)
    finally:
        if sync:
            os.close(directory)


def _write_and_rename(path: str, data: bytes, *, sync: bool, spare: str | None) -> None:
    temporary, fd = path + TEMPORARY_SUFFIX, -1
    if spare is not None:
        with suppress(FileNotFoundError):
            # Not O_TRUNC, which makes ext4 start to write the file when it is closed.
            fd = open_file(spare, os.O_WRONLY)
            temporary = spare
    if fd < 0:
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        remove_if_present(temporary)
        raise


def remove_if_present(path: str) -> None:
    with suppress(FileNotFoundError):  # another process removed it, as intended
        os.unlink(path)


def read_if_present(path: str) -> bytes | None:
    """The whole file; None if it does not exist."""
    try:
        with opening(path):
            file = open(path, "rb")
    except FileNotFoundError:
        return None
    with file:
        return file.read()


def remove_tree(path: str) -> None:
    """Remove a directory that contains only files. Raises OSError."""
    with suppress(FileNotFoundError):  # somebody else was faster
        for name in list_directory(path):
            remove_if_present(os.path.join(path, name))
        os.rmdir(path)


def disk_bytes(path: str) -> tuple[int, int]:
    """(size of the volume, bytes free on it), -1 if unknown."""
    try:
        status = os.statvfs(path)
    except OSError:
        return -1, -1
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def free_space(path: str) -> str:
    """The free space, worded for a message."""
    try:
        status = os.statvfs(path)
    except OSError as error:
        return str(error)
    return f"{status.f_bavail * status.f_frsize} bytes free"
