"""Integer types that must not be mixed up. For the type checker: at run time each is an int."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NewType, TypeVar, cast

T = TypeVar("T")

# An index into the partition table, -1 for none. The owner is ``slot % num.io.threads``.
SlotId = NewType("SlotId", int)
# -1 if there is none.
BrokerId = NewType("BrokerId", int)
# The offset of a record, or the end of some: the offset after the last. A ``position`` counts bytes
# in a file. Functions that only look up an offset may take any int.
Offset = NewType("Offset", int)
FIRST_OFFSET = Offset(0)
NO_OFFSET = Offset(-1)


def with_offsets(first: Offset, items: Iterable[T]) -> Iterator[tuple[Offset, T]]:
    """Each item and its offset, without a call of Python for each. first: of the first item."""
    return cast("Iterator[tuple[Offset, T]]", enumerate(items, first))
