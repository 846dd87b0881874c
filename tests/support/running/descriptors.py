"""The file descriptors of this process, and a process that has none free."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# BOUND: descriptors that garbage holds before it is collected. By itself that may take until there
# are more than 1,023, with which the ``select.select`` of others fails.
OF_GARBAGE_MAX = 200
_collected_at = OF_GARBAGE_MAX


def close_those_of_garbage() -> None:
    """Collect garbage if so many descriptors were opened and not closed since it was last done."""
    global _collected_at
    if lowest_free() >= _collected_at:
        gc.collect()
        _collected_at = lowest_free() + OF_GARBAGE_MAX


def raise_limit() -> None:
    """As brokers do: many tests have the connections of a broker and those of its clients, and a
    shell often allows 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lowest_free() -> int:
    """The number that the next file will have."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


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
