"""Small and failing disks, for root on Linux; tests that need one are skipped elsewhere."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kbroker.testing import wait_until

MIB = 1 << 20
# XFS calls it XFS_IOC_GOINGDOWN and ext4 supports it too: every later access fails with EIO, and
# unwritten data is lost, as in a power failure. 2: do not even flush the journal.
_SHUT_DOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
_NO_JOURNAL_FLUSH = 2
# The minimum size for mkfs; the file is sparse.
SIZE_MIN = {"xfs": 320 * MIB}


def run(*command: str) -> None:
    """Run a command as root; skips the test if that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command)}: {error.stderr.strip()}")


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A tmpfs of ``size`` bytes at ``path``."""
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "kbroker-test", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


class FailingDisk:
    """A file system on a file, which can fail and be attached again. kind: ext4 or xfs."""

    def __init__(self, path: Path, size: int, kind: str) -> None:
        self.path = path
        self._image = path.with_suffix(".img")
        path.mkdir()
        with open(self._image, "wb") as file:
            file.truncate(max(size, SIZE_MIN.get(kind, 0)))
        run(f"mkfs.{kind}", "-q", *(["-F"] if kind == "ext4" else []), str(self._image))
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def fail(self) -> None:
        """Make every access fail with an I/O error from now on."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("I", _NO_JOURNAL_FLUSH))
        except OSError as error:
            pytest.skip(f"this kernel cannot shut the file system down: {error}")
        finally:
            os.close(fd)

    def repair(self) -> None:
        """Mount it again, once no process has open files on it: killed processes take a while to
        exit.
        """
        wait_until(self._is_mounted_anew, 30, f"{self.path} is mounted again")

    def _is_mounted_anew(self) -> bool:
        if self.remove() != 0:
            return False
        self._mount()
        try:
            return bool(os.listdir(self.path))
        except OSError:  # the file system that was shut down
            return False

    def remove(self) -> int:
        """Unmount it; 0 if it was unmounted."""
        command = ["umount", str(self.path)]
        return subprocess.run(command, check=False, capture_output=True).returncode


@contextmanager
def failing_disk(path: Path, size: int = 64 * MIB, kind: str = "ext4") -> Iterator[FailingDisk]:
    """A disk for one test."""
    disk = FailingDisk(path, size, kind)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def fill_up(directory: Path, leave: int = 0) -> Path:
    """A file that takes all space except ``leave`` bytes; unlink it to free the space."""
    filler = directory / "filler"
    with open(filler, "wb") as file:
        taken = 0
        while (left := free_bytes(directory) - leave) > 0:
            with suppress(OSError):  # a broker that writes meanwhile was faster
                os.posix_fallocate(file.fileno(), taken, left)
                taken += left
    return filler


def free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
