"""Disk space set aside for the metadata store.

On a full disk a broker must still start, and topics must still be deleted. One file beside the
store holds the space. It is released when the store finds no room, and set aside again once there
is plenty.
"""

from __future__ import annotations

import os
from contextlib import suppress

FILE_NAME = "kbroker-metadata.reserve"
# BOUND: a start writes some pages of 4 KiB to the store's log, a change of a large topic some
# dozens.
RESERVE_BYTES = 256 * 1024
# Free space required on the disk before the reserve is set aside again.
PLENTY_BYTES = 4 * RESERVE_BYTES


class Reserve:
    """The reserve in one directory. No method raises: without it the store fails as it would."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, FILE_NAME)
        self._is_there = os.path.exists(self._path)

    def fill(self) -> None:
        """Set the space aside, unless it is or there is little room."""
        if self._is_there:
            return
        with suppress(OSError):  # the store works without it
            disk = os.statvfs(self._directory)
            if disk.f_bavail * disk.f_frsize < PLENTY_BYTES:
                return
            fd = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
            self._is_there = True

    def release(self) -> bool:
        """Free the reserved space; returns whether there was any."""
        if not self._is_there:
            return False
        self._is_there = False
        try:
            os.unlink(self._path)
        except OSError:
            return False  # it was removed by hand, or cannot be: nothing is freed
        return True
