"""The file descriptors of this process, and a process that has none free."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def open_files(directory: object = "") -> set[str]:
    """Each open descriptor with its file: "5 /tmp/x.log"; only those below a directory if given.

    Compare with ``-``: what earlier tests left to threads or to the garbage collector may be
    closed at any time, so a mere number says nothing.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(str(directory)):
                found.add(f"{fd} {path}")
    return found


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """A context in which this process can open only ``left`` files at a time. Tests that use it
    have the mark ``own_process``: a file that is closed meanwhile would be one more.
    """
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < highest + left:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # All below the limit are in use then except the last ``left``.
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, hard))
    for _ in range(left):
        os.close(taken.pop())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
