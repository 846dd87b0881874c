"""A process that has no file descriptor left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """Within it this process can open ``left`` files at a time, and no more."""
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(left + 1)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The highest of them is the lowest that was free: below the limit all are in use but these.
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], hard))
    for fd in taken:
        os.close(fd)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
