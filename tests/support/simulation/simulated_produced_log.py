"""The log of a simulated leader as producers see it: what it knows of their sequence numbers, what
is acknowledged, and which transactions have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.errors import ErrorCode

REMEMBERED = 5  # batches of a producer


class Produced(NamedTuple):
    """A batch, or the marker of a transaction (then without records). commits: what it says."""

    base: int
    uids: tuple[int, ...]
    producer: int
    epoch: int
    sequence: int
    transactional: bool = False
    commits: bool | None = None

    @property
    def end(self) -> int:
        return self.base + (len(self.uids) or 1)


class _Known(NamedTuple):
    """Of a producer: its epoch, and its last batches."""

    epoch: int
    last: tuple[Produced, ...]


class ProducedLog:
    """acknowledged: up to there, every replica has it, and no leader loses it. is_strict: as Kafka
    1.0, which takes no producer that it does not know in the middle of its numbers, and calls a
    duplicate what comes before those it knows; later releases, and kbroker, take any first number,
    and call such a batch out of order.
    """

    is_strict = False

    def __init__(self) -> None:
        self.batches: list[Produced] = []
        self.acknowledged = 0
        self.known: dict[int, _Known] = {}

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    @property
    def unsure(self) -> int:
        """Batches that the next leader may lack."""
        return sum(batch.end > self.acknowledged for batch in self.batches)

    def of_next_leader(self, epoch: int, cut: int) -> ProducedLog:
        """cut: batches that it lacks. It has all others, which are acknowledged with that."""
        made = type(self)()
        for batch in self.batches[: len(self.batches) - cut]:
            made.add(batch)
        made.acknowledged = made.end
        return made

    def add(self, batch: Produced) -> None:
        self.batches.append(batch)
        if batch.producer < 0:
            return
        known = self.known.get(batch.producer)
        last = known.last if known is not None and known.epoch == batch.epoch else ()
        if batch.uids:
            last = (*last, batch)[-REMEMBERED:]
        self.known[batch.producer] = _Known(batch.epoch, last)

    def check(self, batch: Produced) -> tuple[int, Produced | None]:
        """An error, or the same batch as it was appended before."""
        known = self.known.get(batch.producer)
        if batch.producer < 0:
            return 0, None
        if known is None:
            unknown = self.is_strict and batch.sequence > 0
            return (ErrorCode.UNKNOWN_PRODUCER_ID if unknown else 0), None
        if batch.epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if batch.epoch > known.epoch or not known.last:
            return (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if batch.sequence else 0), None
        for one in known.last:
            if (one.sequence, len(one.uids)) == (batch.sequence, len(batch.uids)):
                return 0, one
        after = known.last[-1].sequence + len(known.last[-1].uids)
        if self.is_strict and batch.sequence < after:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, None
        return (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if batch.sequence != after else 0), None

    def append(self, batch: Produced) -> Produced:
        made = batch._replace(base=self.end)
        self.add(made)
        return made

    def mark(self, producer: int, epoch: int, commits: bool) -> None:
        """End a transaction; every replica has that."""
        self.append(Produced(0, (), producer, epoch, -1, True, commits))
        self.acknowledged = self.end

    def records(self) -> Iterator[tuple[int, int]]:
        """(offset, uid), as of ``read_uncommitted``."""
        for batch in self.batches:
            yield from enumerate(batch.uids, batch.base)

    def committed(self) -> list[int]:
        """The uids that ``read_committed`` sees, in their order."""
        ends: dict[int, bool] = {}
        found: list[int] = []
        for batch in reversed(self.batches):
            if batch.commits is not None:
                ends[batch.producer] = batch.commits
            elif not batch.transactional or ends.get(batch.producer, False):
                found += reversed(batch.uids)
        return found[::-1]


class StrictLog(ProducedLog):
    """See ``ProducedLog``."""

    is_strict = True
