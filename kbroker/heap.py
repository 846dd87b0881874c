"""Memory of a process: what it shares with its children, malloc, and when garbage is collected."""

from __future__ import annotations

import gc
import sys

from kbroker._ext.base.heap_holes import fill_holes
from kbroker._ext.base.libc import keep_blocks, share_heap

# BOUND: memory kept at the end of the heap. Blocks up to the largest size for which glibc does not
# use a separate mapping.
_KEPT_BYTES = 64 << 20
_BLOCK_BYTES_MAX = 32 << 20
# The same of a process that seldom has large blocks.
_FREE_BYTES = 256 << 10
_SMALL_BLOCK_BYTES_MAX = 128 << 10


def freeze_for_children() -> None:
    """Leave as many pages as possible as they are, so that the children share them; before a fork.

    A child gets a page of its own as soon as it writes to one. It would write to pages all over the
    heap: collecting garbage, putting new objects into holes between old ones, and dropping names
    from the cache of attributes, which counts its references to them.

    What is garbage now stays: of 60,000 objects some 600, and a collection takes 20 ms.
    """
    fill_holes()
    clear_type_cache()
    gc.freeze()


def clear_type_cache() -> None:
    """Empty the cache of attribute look-ups. Python 3.13 renames this."""
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    clear()


def keep_freed_memory() -> None:
    """Make malloc reuse large blocks instead of returning each one to the system.

    With its defaults a buffer of a megabyte (of a fetch, of a decompressed batch, of a compressor)
    is mapped again and again, and the page faults, 2 µs each on a virtual machine, cost more than
    what fills it. A hint: a C library without ``mallopt`` continues as it is.
    """
    keep_blocks(_KEPT_BYTES, _BLOCK_BYTES_MAX)


def return_freed_memory() -> None:
    """Make malloc return large blocks, and what is free at the end of a heap, to the system.

    With its defaults it learns from the first large block that is freed to keep such blocks, in a
    heap for each thread: a process that decodes a megabyte once in a while, in one of several
    threads, would keep one for each. Python lets one of them run at a time: they share a heap. A
    hint, as above.
    """
    keep_blocks(_FREE_BYTES, _SMALL_BLOCK_BYTES_MAX)
    share_heap()


# Rounds of the collector's second generation, each for some 7,000 new objects, after which all
# objects are scanned. A process that is never quiet does this occasionally anyway.
_ROUNDS = 10
_BUSY_INTERVAL_MS = 30_000
_NEVER = 2**31 - 1


class Collector:
    """Runs full garbage collections between requests, not in the middle of one.

    A large request is a hundred thousand objects, none of which is in a cycle: by itself the
    collector would go through all of them again and again, some 0.1 s each time. CPython 3.14
    collects in increments and counts no rounds of an oldest generation: this leaves it alone there.
    """

    def __init__(self) -> None:
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        self._busy_since_ms: int | None = None

    def maybe_collect(self, is_quiet: bool, now_ms: int) -> bool:
        """Call a few times per second. is_quiet: it delays no request. now_ms: of any clock."""
        if self._busy_since_ms is None:
            self._busy_since_ms = now_ms
        if gc.get_count()[2] < _ROUNDS:
            return False
        if not is_quiet and now_ms - self._busy_since_ms < _BUSY_INTERVAL_MS:
            return False
        self._busy_since_ms = None
        gc.collect()
        return True
