"""Numbers that are not to be mixed up. For the type checker only: at run time each is an int."""

from __future__ import annotations

from typing import NewType

# A row of the partition table, -1 where there is none. Its owner is ``slot % num.io.threads``.
SlotId = NewType("SlotId", int)
# -1 where there is none.
BrokerId = NewType("BrokerId", int)
