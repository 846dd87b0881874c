"""File descriptors: distinguishes running out of them from a failing disk, and reserves the last
ones of a process for occasional needs.
"""

from __future__ import annotations

import math
import os
import resource
import select
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kbroker.errors import SHORTAGES, ShortageError


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those that have something to read, or have ended, within this time. ``select.select`` takes
    none above 1,023.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0, math.ceil(seconds * 1000)))]


def is_writable(descriptor: int, seconds: float) -> bool:
    """Whether it takes something, or has ended, within this time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(max(0, math.ceil(seconds * 1000))))


def first_kept(count: int) -> int:
    """The lowest of the last ``count`` descriptors below the limit, a quarter of all at most.

    The system gives out the lowest that is free: one from there on means that those below are in
    use.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit - min(count, limit // 4)


@contextmanager
def opening(path: str) -> Iterator[None]:
    """Around calls that open or map a file, and do nothing else: raises ShortageError."""
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGES and not isinstance(error, ShortageError):
            raise ShortageError(error.errno, path) from error
        raise


def open_file(path: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """A descriptor, which the caller closes. Raises ShortageError, OSError."""
    with opening(path):
        return os.open(path, flags | os.O_CLOEXEC, mode)
