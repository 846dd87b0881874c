"""Integers that must not be mixed up: distinct types for mypy, at no cost at run time."""

from __future__ import annotations

from typing import NewType

Offset = NewType("Offset", int)
"""Logical place of a record in its partition."""
Position = NewType("Position", int)
"""Bytes from the start of a segment file."""
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionId = NewType("PartitionId", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)

NO_OFFSET = Offset(-1)
"""Only at the wire; inside, absence is None."""
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_TIMESTAMP = -1
