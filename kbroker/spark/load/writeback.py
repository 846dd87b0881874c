"""Start writing a file's pages to disk, without waiting for them."""

from __future__ import annotations

import ctypes
from typing import Any

# From linux/fs.h; sync_file_range(2).
_SYNC_FILE_RANGE_WRITE = 2


def _library_call() -> Any:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):  # not Linux
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_CALL = _library_call()


def start_writeback(descriptor: int, offset: int, size: int) -> None:
    """Start to write ``size`` bytes from ``offset`` on to the disk. A hint: only a later fsync
    counts, and reports errors.
    """
    if _CALL is not None and size > 0:
        _CALL(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)
