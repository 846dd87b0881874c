"""How the C library's malloc treats what a process has freed."""

from __future__ import annotations

import ctypes

# Of <malloc.h>; mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# BOUND: what is kept at the end of the heap. Blocks of up to the largest size that glibc lets be
# anything but a mapping of its own.
_KEPT_BYTES = 64 << 20
_BLOCK_BYTES_MAX = 32 << 20


def keep_freed_memory() -> None:
    """Have malloc use large blocks again instead of giving each back to the system.

    With its defaults a buffer of a megabyte (of a fetch, of a decompressed batch, of a compressor)
    is mapped anew again and again, and the page faults, 2 µs each on a virtual machine, cost more
    than what fills it. A hint: a C library without ``mallopt`` goes on as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES_MAX)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
