"""All file operations of a storage layer, in random order, with marks of what must be durable.

Run as a program behind ``disk_shim.c`` (``python -m fault.storage_workload DIRECTORY LOG SEED
STEPS MOVES``). Two logs: topic ``t`` keeps all, topic ``c`` is compacted; ``d<n>`` come and go. By
``MOVES`` there are two log directories, and replicas move between them: not at all (``no``), all
along (``some``), or they do nothing else once they are filled (``only``). The value of a record
says where it belongs: ``<generation>-<offset>-<key>``, or it is a tombstone.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from fault.write_log import Marker
from support.storage.compaction import DAY_MS, cleanable_end, compact
from support.storage.log_store import NOW_MS, LogStore, append, end_transaction

from kbroker.errors import ErrorCode, StorageError
from kbroker.record.builder import BatchBuilder
from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from kbroker.storage.files import sync_directory
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.moves.replica_moves import RATE_KEY
from kbroker.storage.retention import RetentionPolicy

CONFIG = {
    "segment.bytes": 3000,
    "index.interval.bytes": 200,
    "segment.index.bytes": 4096,
    "file.delete.delay.ms": 0,
    "retention.ms": -1,
}
COMPACTED = {**CONFIG, "cleanup.policy": ("compact",)}
KEPT, SPARSE = ("t", 0), ("c", 0)
KEYS = 8
PRODUCER = 7
RETAINED_BYTES = 4000
# A move takes a few turns: slices of 2000 bytes.
MOVE_RATE = 10_000
FILLED_AFTER = 40  # steps
NO_MOVES, SOME_MOVES, ONLY_MOVES = "no", "some", "only"


def value_of(generation: int, offset: int, key: bytes) -> bytes:
    return b"%d-%d-%s" % (generation, offset, key) + b"." * (offset % 90)


class Workload:
    """One run; ``mark`` records what a power failure from here on must leave intact."""

    def __init__(self, directory: Path, mark: Marker, seed: int, moves: str) -> None:
        self.random = random.Random(seed)
        self.mark = mark
        self.moves = moves
        dirs = 1 if moves == NO_MOVES else 2
        self.store = LogStore(directory, dirs=dirs, **{RATE_KEY: MOVE_RATE})
        sync_directory(str(directory))
        self.dirs = self.store.dirs
        self.made = 0
        self.others: dict[str, int] = {}  # short-lived topics and their slots
        self.open_logs()
        self.clean_end = 0
        self.cleaner_checkpoints = CleanerCheckpoints(self.dirs)
        self.has_transaction = False

    def open_logs(self) -> None:
        self.kept = self.store.open("t", 0, slot=0, **CONFIG)
        self.sparse = self.store.open("c", 0, slot=1, **COMPACTED)
        for name, slot in self.others.items():
            self.store.open(name, 0, slot=slot, topic_id=id_of(name), **CONFIG)

    # ---- operations ----

    def append_kept(self) -> None:
        self._append(self.kept, self.random.randint(1, 6))

    def append_sparse(self) -> None:
        self._append(self.sparse, self.random.randint(1, 6), tombstones=0.2)

    def _append(self, log: PartitionLog, count: int, tombstones: float = 0.0) -> None:
        builder = BatchBuilder(self.random.choice([0, 0, 1, 3]))
        written = []
        for offset in range(log.log_end_offset, log.log_end_offset + count):
            key = b"key-%d" % self.random.randrange(KEYS)
            is_tombstone = self.random.random() < tombstones
            builder.append(None if is_tombstone else value_of(0, offset, key), key, NOW_MS, ())
            written.append([offset, key.decode(), is_tombstone])
        self.mark(written=log.name, records=written)
        append(log, builder.build())
        if self.random.random() < 0.3:  # as with flush.messages=1, before the response
            log.appender.sync_now()
            self.mark(synced=log.name, end=log.log_end_offset)

    def transact(self) -> None:
        """A batch of a transactional producer, and sooner or later the end of its transaction."""
        if self.has_transaction:
            end_transaction(self.sparse, PRODUCER, commit=self.random.random() < 0.5)
            self.has_transaction = False
            return
        entry = self.sparse.appender.producers.entries.get(PRODUCER)
        sequence = 0 if entry is None else entry.last_sequence_number + 1
        builder = BatchBuilder(
            producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        offset = self.sparse.log_end_offset
        builder.append(value_of(1, offset, b"txn"), b"txn", NOW_MS, ())
        append(self.sparse, builder.build())
        self.has_transaction = True

    def flush(self) -> None:
        log = self.random.choice([self.kept, self.sparse])
        log.flush()
        self.mark(synced=log.name, end=log.log_end_offset)

    def flush_all(self) -> None:
        for log in (self.kept, self.sparse):
            log.flush()
            self.mark(synced=log.name, end=log.log_end_offset)

    def pass_time(self) -> None:
        """Periodic flushes, checkpoints, removal of deleted logs."""
        self.store.clock.advance(self.random.choice([1000, 6000, 70_000]))
        self.store.manager.tick()

    def checkpoint(self) -> None:
        self.store.manager.checkpoint()

    def delete_records(self) -> None:
        log = self.kept
        start = self.random.randint(log.log_start_offset, log.log_end_offset)
        self.mark(deleting=log.name, start=start)
        log.delete_records(start)

    def retain(self) -> None:
        """Retention by size: the oldest segments are deleted."""
        log = self.kept
        start, excess = log.log_start_offset, log.segments.size - RETAINED_BYTES
        for segment in log.segments:
            if not 0 < segment.size <= excess:
                break
            excess -= segment.size
            start = max(start, segment.next_offset)
        self.mark(deleting=log.name, start=start)
        log.delete_old_segments(RetentionPolicy(True, None, RETAINED_BYTES), NOW_MS)
        assert log.log_start_offset == start

    def compact(self) -> None:
        self.sparse.flush()
        self.mark(synced=self.sparse.name, end=self.sparse.log_end_offset)
        if cleanable_end(self.sparse) <= self.clean_end:
            return
        retention = self.random.choice([0, DAY_MS])
        self.mark(compacting=self.sparse.name)
        done = compact(
            self.sparse, first_dirty=self.clean_end, now_ms=NOW_MS, delete_retention_ms=retention
        )
        self.clean_end = done.end
        self.cleaner_checkpoints.put(self.sparse.log_dir, SPARSE, done.end)

    def create(self) -> None:
        if len(self.others) < 3:
            self.made += 1
            name = f"d{self.made}"
            slot = next(n for n in range(2, 16) if n not in self.others.values())
            self.others[name] = slot
            log = self.store.open(name, 0, slot=slot, topic_id=id_of(name), **CONFIG)
            self._append(log, 1)
            log.appender.sync_now()
            self.mark(synced=log.name, end=log.log_end_offset)

    def delete(self) -> None:
        if self.others:
            name = self.random.choice(sorted(self.others))
            self.mark(removing=f"{name}-0")
            self.store.manager.remove_partitions([self.others.pop(name)])
            self.mark(removed=f"{name}-0")

    def move(self) -> None:
        """Move a replica to the other directory, or cancel its move."""
        slot = self.random.choice([0, 1, *self.others.values()])
        log = self.store.manager.log(slot)
        assert log is not None
        target = self.random.choice(self.dirs)
        code = self.store.manager.moves.request(log.key, slot, target)
        assert code == ErrorCode.NONE, code

    def go_on(self) -> None:
        """Another slice of the moves, or their last step."""
        self.store.clock.advance(self.random.choice([10, 500, 5000]))
        for slot in self.store.manager.moves.turn(self.store.clock.monotonic_ms()):
            log = self.store.manager.log(slot)
            assert log is not None
            self.mark(synced=log.name, end=log.log_end_offset)

    def restart(self) -> None:
        clean = self.random.random() < 0.5
        self.store.stop(clean=clean)
        if clean:
            for name, log in (("t-0", self.kept), ("c-0", self.sparse)):
                self.mark(synced=name, end=log.log_end_offset)
        self.store.start(clean=clean)
        self.open_logs()
        self.cleaner_checkpoints = CleanerCheckpoints(self.dirs)

    def run(self, steps: int) -> None:
        operations = (
            [self.append_kept] * 8 + [self.append_sparse] * 10 + [self.transact] * 3
            + [self.flush, self.pass_time, self.checkpoint, self.delete_records, self.retain]
            + [self.compact, self.compact, self.create, self.delete, self.restart]
        )  # fmt: skip
        moving = [self.move] * 3 + [self.go_on] * 20
        if self.moves == SOME_MOVES:
            operations += moving
        for step in range(steps):
            if self.moves == ONLY_MOVES and step == FILLED_AFTER:
                operations = [self.flush_all, *moving]
            operation = self.random.choice(operations)
            self.mark(step=operation.__name__)
            operation()


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b"\1")


def main() -> int:
    directory, log, seed, steps, moves = sys.argv[1:]
    mark = Marker(Path(log))
    workload = Workload(Path(directory), mark, int(seed), moves)
    try:
        workload.run(int(steps))
    except StorageError as error:
        print(f"storage error: {error}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
