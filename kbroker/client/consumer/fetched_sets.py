"""What a consumer has fetched and not yet returned, in the order of its arrival, and which of its
partitions cannot be read.

In the thread that polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.consumer.partitions import FetchedSet, ReadPartition
from kbroker.client.consumer.surroundings import Clock
from kbroker.client.errors import (
    ClientError,
    CorruptRecords,
    DeserializationFailed,
    NoOffsetForPartition,
    OffsetOutOfRange,
)

# Only another position helps.
_STAYS = (OffsetOutOfRange, NoOffsetForPartition, CorruptRecords)
# How often `poll` says that a partition cannot be read; meanwhile it returns records of others.
_FAULT_AGAIN_S = 1.0


class FetchedSets:
    """parts: the assigned partitions. released: called when a set needs no room any more. changed:
    called when something may be fetched that was not before.
    """

    def __init__(
        self,
        parts: Mapping[Key, ReadPartition],
        released: Callable[[FetchedSet], None],
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._parts = parts
        self._released = released
        self._changed = changed
        self._ready: deque[FetchedSet] = deque()
        self._set_aside: list[FetchedSet] = []  # of partitions that are not to be returned now
        self.faults: dict[Key, ReadPartition] = {}  # see PartitionState

    def add(self, fetched: FetchedSet) -> None:
        """It has arrived."""
        self._ready.append(fetched)

    def drop_stale(self) -> None:
        """Forget what was set aside and is of no use any more."""
        if self._set_aside:
            self._set_aside = [
                one for one in self._set_aside if not one.stale and self._has(one.part)
            ]

    def clear(self) -> None:
        self._ready.clear()
        self._set_aside.clear()

    def _has(self, part: ReadPartition) -> bool:
        return self._parts.get(part.key) is part

    def take(self) -> FetchedSet | None:
        """The set to read from next, in the order of their arrival; ``done_with`` it at its end."""
        while self._ready:
            fetched = self._ready[0]
            part = fetched.part
            if fetched.version != part.version or self._parts.get(part.key) is not part:
                self._drop_first()
            elif not part.may_return:
                self._set_aside.append(self._ready.popleft())
                self._released(fetched)
            else:
                return fetched
        return None

    def done_with(self, fetched: FetchedSet) -> None:
        """It is read, or is not to be read."""
        assert self._ready[0] is fetched
        self._drop_first()

    def _drop_first(self) -> None:
        fetched = self._ready.popleft()
        self._released(fetched)
        if fetched.loaded and not fetched.stale and fetched.part.reader is not None:
            fetched.part.reader.unload()
        fetched.records = None

    def stop(self, fetched: FetchedSet, error: ClientError) -> None:
        """The next record of the set that is read from cannot be read, and ``poll`` says so now."""
        part = fetched.part
        if isinstance(error, DeserializationFailed):
            part.fail(error)  # the set is set aside, and the record is tried again
        else:
            part.stop(error)
            self._drop_first()
        part.fault_due = self._clock() + _FAULT_AGAIN_S

    def resumed(self) -> None:
        """Sets that were set aside are read again, before others."""
        self._ready.extendleft(reversed(self._set_aside))
        self._set_aside.clear()
        self._changed()

    def fault(self, only: ReadPartition | None = None) -> ClientError | None:
        """Why a partition (or ``only`` this one) cannot be read, if that is to be said now.

        Each is said once, after the records before it, and again each second. What time may mend is
        tried again.
        """
        if not self.faults:
            return None
        now = self._clock()
        for part in list(self.faults.values()):
            fault = part.fault
            if fault is None or part.paused or (only is not None and part is not only):
                continue
            if now < part.fault_due:
                continue
            if isinstance(fault, DeserializationFailed):
                part.clear_fault()
                self.resumed()
                continue
            if self._is_behind(part):
                continue
            part.fault_due = now + _FAULT_AGAIN_S
            if not isinstance(fault, _STAYS):
                part.clear_fault()  # it may be allowed by now
                self._changed()
            return fault
        return None

    def due_in(self, now: float) -> float:
        """Seconds until a fault is to be said again."""
        again = (part.fault_due - now for part in self.faults.values() if not part.paused)
        return min((seconds for seconds in again if seconds > 0), default=float("inf"))

    def _is_behind(self, part: ReadPartition) -> bool:
        """Whether records before what is wrong with a partition are still to be returned."""
        return any(
            fetched.part is part and not fetched.stale
            for fetched in (*self._ready, *self._set_aside)
        )
