"""Assigns slots of the partition table to replicas, for one run of the broker.

A replica's io worker is ``slot % workers``, so assigning slots is balancing load. Assignments must
outlive the controller process (io workers have the logs open), but not the broker. They are kept in
a journal in the runtime directory, which is new for every run. A line is written before any process
learns of its slot, so a torn last line is an assignment that nobody has seen. If a line cannot be
written because the disk is full, nothing has changed.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Collection, Iterable
from typing import Protocol

logger = logging.getLogger(__name__)

Slot = tuple[int, int]  # number, incarnation
JOURNAL_NAME = "slots.journal"
# Marks in the journal a partition that no longer has a slot.
RELEASED = -1


class NoFreeSlot(Exception):
    """There are not enough free slots: ``free_count`` are left."""

    def __init__(self, free_count: int, capacity: int) -> None:
        super().__init__(
            f"this broker has room for {capacity} partitions, of which {free_count} are free: "
            "raise partition.table.slots and restart it"
        )
        self.free_count = free_count


class SlotAllocator:
    """Allocates slots so that all io workers have the same number of them, plus or minus one.

    INVARIANT: a slot number is reused only with a higher incarnation, so messages for the previous
    replica can be told from those for the current one.
    """

    def __init__(self, capacity: int, workers: int) -> None:
        assert workers > 0, workers
        self._capacity = capacity
        self._workers = workers
        self._used = [0] * workers
        self._free: list[deque[int]] = [deque() for _ in range(workers)]
        self._freed: set[int] = set()  # all that is in ``_free``
        self._fresh = list(range(workers))  # lowest number never used, by worker
        self._incarnations: dict[int, int] = {}

    @property
    def free_count(self) -> int:
        return self._capacity - sum(self._used)

    def take(self, count: int) -> list[Slot]:
        """Allocate ``count`` slots. Raises NoFreeSlot if there are fewer."""
        if count > self.free_count:
            raise NoFreeSlot(self.free_count, self._capacity)
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> Slot:
        # A worker can be out of slots before the table is, if freed slots were another's.
        worker = min(
            (w for w in range(self._workers) if self._free[w] or self._fresh[w] < self._capacity),
            key=self._used.__getitem__,
        )
        if self._free[worker]:
            number = self._free[worker].popleft()
            self._freed.remove(number)
        else:
            number = self._fresh[worker]
            self._fresh[worker] += self._workers
        self._used[worker] += 1
        incarnation = self._incarnations.get(number, 0) + 1
        self._incarnations[number] = incarnation
        return number, incarnation

    def release(self, number: int) -> None:
        """Free a slot."""
        worker = number % self._workers
        assert self._used[worker] > 0, number
        assert number not in self._freed, number
        self._used[worker] -= 1
        self._free_one(worker, number)

    def _free_one(self, worker: int, number: int) -> None:
        self._free[worker].append(number)
        self._freed.add(number)

    def restore(self, taken: dict[int, int], seen: dict[int, int]) -> None:
        """Restore the state of an earlier controller process.

        taken: number -> incarnation of slots in use; seen: the same of all ever given.
        """
        self._incarnations = dict(seen)
        for number in sorted(seen):
            worker = number % self._workers
            while self._fresh[worker] <= number:
                self._fresh[worker] += self._workers
        for worker in range(self._workers):
            for number in range(worker, self._fresh[worker], self._workers):
                if number in taken:
                    self._used[worker] += 1
                else:
                    self._free_one(worker, number)


def _enter(
    lines: Iterable[bytes], topics: dict[str, dict[int, Slot]], seen: dict[int, int]
) -> None:
    """Take lines of the journal. seen: number -> incarnation of all slots that were ever given."""
    for line in lines:
        topic, slots = json.loads(line)
        have = topics.setdefault(topic, {})
        for partition, number, incarnation in slots:
            if number == RELEASED:
                have.pop(partition, None)
                continue
            have[partition] = number, incarnation
            seen[number] = incarnation
        if not have:
            del topics[topic]


class SlotNaming(Protocol):
    """Where other programs find the partition of a slot (``slot_names.SlotNames``)."""

    def name(self, slot: int, incarnation: int, topic: bytes, partition: int) -> None: ...
    def free(self, slot: int) -> None: ...


class SlotAssignments:
    """The slots of all topics' partitions by topic name, kept in the journal.

    A slot is freed when its log has been deleted, whatever the topic id: metadata with a wrong id
    must not lead to two logs in one directory.
    """

    def __init__(
        self, directory: str, capacity: int, workers: int, names: SlotNaming | None = None
    ) -> None:
        self._names = names
        self._path = os.path.join(directory, JOURNAL_NAME)
        self.capacity = capacity
        self._allocator = SlotAllocator(capacity, workers)
        self._topics: dict[str, dict[int, Slot]] = {}
        self._to_release: dict[str, set[int]] = {}  # that could not be noted
        self._replay()
        self._file = open(self._path, "ab", buffering=0)

    def _replay(self) -> None:
        seen: dict[int, int] = {}
        try:
            with open(self._path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        if lines[-1]:
            os.truncate(self._path, sum(len(line) + 1 for line in lines[:-1]))
        _enter(lines[:-1], self._topics, seen)
        taken = {
            number: incarnation
            for slots in self._topics.values()
            for number, incarnation in slots.values()
        }
        self._allocator.restore(taken, seen)
        if self._names is not None:
            # The last controller process may have died before it wrote or freed one.
            for number in seen.keys() - taken.keys():
                self._names.free(number)
        for topic, slots in self._topics.items():
            self._show(topic, slots)

    def _show(self, topic: str, slots: dict[int, Slot]) -> None:
        if self._names is not None:
            for partition, (number, incarnation) in slots.items():
                self._names.name(number, incarnation, topic.encode(), partition)

    @property
    def free_count(self) -> int:
        return self._allocator.free_count

    def slot(self, key: tuple[str, int]) -> Slot | None:
        """The slot of a partition; None if it has none."""
        return self._topics.get(key[0], {}).get(key[1])

    def assign(self, topic: str, partitions: list[int]) -> dict[int, Slot]:
        """The slots of these partitions, assigned now where they have none. Raises NoFreeSlot;
        OSError if they cannot be recorded.
        """
        if topic in self._to_release:
            self._release(topic, self._to_release[topic])
        have = self._topics.get(topic, {})
        missing = [partition for partition in partitions if partition not in have]
        if missing:
            slots = self._allocator.take(len(missing))
            try:
                self._write(topic, [[p, *slot] for p, slot in zip(missing, slots, strict=True)])
            except OSError:
                for number, _ in slots:
                    self._allocator.release(number)
                raise
            have = self._topics.setdefault(topic, {})
            given = dict(zip(missing, slots, strict=True))
            have.update(given)
            self._show(topic, given)
        return {partition: have[partition] for partition in partitions}

    def release(self, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Free slots of a topic once no process uses them; all of them without ``partitions``.

        If that cannot be recorded, they are lost until a topic of this name is created again, or
        until the next controller process, which finds that the topic is gone. If another topic had
        got them meanwhile, it would lose them then.
        """
        have = self._topics.get(topic, {})
        released = set(have) if partitions is None else have.keys() & set(partitions)
        if not released:
            return
        try:
            self._release(topic, released)
        except OSError as error:
            self._to_release.setdefault(topic, set()).update(released)
            logger.error("%s: cannot free the slots of a deleted topic: %s", self._path, error)

    def _release(self, topic: str, partitions: Collection[int]) -> None:
        self._write(topic, [[partition, RELEASED, 0] for partition in sorted(partitions)])
        have = self._topics[topic]
        left = self._to_release.pop(topic, set()) - set(partitions)
        if left:
            self._to_release[topic] = left
        for partition in partitions:
            number, _ = have.pop(partition)
            if self._names is not None:
                self._names.free(number)
            self._allocator.release(number)
        if not have:
            del self._topics[topic]

    def topics(self) -> dict[str, list[int]]:
        """The partitions that have slots, by topic."""
        return {topic: list(have) for topic, have in self._topics.items()}

    def _write(self, topic: str, slots: list[list[int]]) -> None:
        line = json.dumps([topic, slots], separators=(",", ":")).encode() + b"\n"
        # No sync: the journal must outlive this process, not the machine.
        end = os.fstat(self._file.fileno()).st_size
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(end)  # the next line would be the end of half a one
            raise

    def close(self) -> None:
        self._file.close()
