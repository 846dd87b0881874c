"""Integer types that must not be mixed up. For the type checker: at run time each is an int."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NewType, cast

# An index into the partition table, -1 for none. The owner is ``slot % num.io.threads``.
SlotId = NewType("SlotId", int)
# -1 if there is none.
BrokerId = NewType("BrokerId", int)
# The offset of a record, or the end of some: the offset after the last. A ``position`` counts bytes
# in a file. Functions that only look up an offset may take any int.
Offset = NewType("Offset", int)
FIRST_OFFSET = Offset(0)
NO_OFFSET = Offset(-1)


def offsets_from(first: Offset) -> Iterator[Offset]:
    """``first`` and all after it, without a call of Python for each."""
    return cast("Iterator[Offset]", count(first))
