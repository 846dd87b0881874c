"""Temporary files of a run in memory: a third of what tests of storage cost was the disk's.

For ``make test``; slow tests, and all tests where memory is short or TMPDIR is set, have their
files on disk. What a failed run leaves is there to be looked at until the next one begins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "kbtests-"  # short, as sockets have their paths from it
# BOUND: a whole run has used less than a gigabyte at any time.
FREE_BYTES = 6 << 30


def begin() -> Path | None:
    """Where temporary files of this process and its children are from now on; None: on disk."""
    if "TMPDIR" in os.environ or not os.path.ismount(MEMORY):
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(PREFIX)}").exists():
            shutil.rmtree(left, ignore_errors=True)
    if shutil.disk_usage(MEMORY).free < FREE_BYTES or _available_bytes() < FREE_BYTES:
        return None
    place = MEMORY / f"{PREFIX}{os.getpid()}"
    place.mkdir(mode=0o711)  # a database of tests runs as another user
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None  # it is remembered
    return place


def end(place: Path, exit_code: int) -> None:
    """Remove them, unless tests have failed."""
    del os.environ["TMPDIR"]
    tempfile.tempdir = None
    if exit_code == 0:
        shutil.rmtree(place, ignore_errors=True)


def _available_bytes() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) << 10
