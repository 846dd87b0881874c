"""Numbers that are not to be mixed up. For the type checker only: at run time each is an int."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NewType, cast

# A row of the partition table, -1 where there is none. Its owner is ``slot % num.io.threads``.
SlotId = NewType("SlotId", int)
# -1 where there is none.
BrokerId = NewType("BrokerId", int)
# Of a record in a log, or of the end of some: the offset after the last. A ``position`` is a number
# of bytes in a file. What only looks an offset up may take any int.
Offset = NewType("Offset", int)
FIRST_OFFSET = Offset(0)
NO_OFFSET = Offset(-1)


def offsets_from(first: Offset) -> Iterator[Offset]:
    """``first`` and all after it, without a call of Python for each."""
    return cast("Iterator[Offset]", count(first))
