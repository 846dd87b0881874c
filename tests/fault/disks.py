"""Small and failing disks, for root on Linux; a test that cannot have one is skipped."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MIB = 1 << 20
# What XFS calls XFS_IOC_GOINGDOWN and ext4 understands too: every later access fails with EIO,
# what was not written back is gone, as in a power cut. 2: do not even flush the journal.
_SHUT_DOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
_NO_JOURNAL_FLUSH = 2


def run(*command: str) -> None:
    """Run a command of root's; skips the test where that is not possible."""
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
    """An ext4 file system on a file, which can die and be plugged in again."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._image = path.with_suffix(".img")
        path.mkdir()
        with open(self._image, "wb") as file:
            file.truncate(size)
        run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def fail(self) -> None:
        """From now on every access is an I/O error."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("I", _NO_JOURNAL_FLUSH))
        except OSError as error:
            pytest.skip(f"this kernel cannot shut ext4 down: {error}")
        finally:
            os.close(fd)

    def repair(self) -> None:
        """Mount it again; nobody may have files of it open."""
        self.remove()
        self._mount()

    def remove(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", str(self.path)], check=False, capture_output=True)


@contextmanager
def failing_disk(path: Path, size: int = 64 * MIB) -> Iterator[FailingDisk]:
    """A disk for one test."""
    disk = FailingDisk(path, size)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def fill_up(directory: Path, leave: int = 0) -> Path:
    """A file that takes all the space but ``leave`` bytes; unlink it to give it back."""
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
