"""The last descriptors of a process, kept from what takes many for what needs one now and then."""

from __future__ import annotations

import resource


def first_kept(count: int) -> int:
    """The lowest of the last ``count`` descriptors below the limit, a quarter of all at the most.

    The system gives out the lowest that is free: one from there on means that those below are in
    use.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit - min(count, limit // 4)
