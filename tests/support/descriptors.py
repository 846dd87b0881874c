"""A process without a free file descriptor."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """A context in which this process can open only ``left`` files at a time."""
    gc.collect()  # a file of garbage that is closed later would be one more
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
