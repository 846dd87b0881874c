"""File descriptors: distinguishes running out of them from a failing disk, and reserves the last
ones of a process for occasional needs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.errors import SHORTAGES, ShortageError


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
