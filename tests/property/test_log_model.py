"""Random operations on a log, with kills and power failures in between, compared with a list of
records.

After each step everything below the recovery point is there, the log is a prefix of what was
appended, offsets are contiguous, and the slot, the files and the lookups agree. A failure prints
its seed.
"""

import random
from pathlib import Path

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, stored_values

from kbroker.storage.log.log_lookup import list_offsets

pytestmark = pytest.mark.property

STEPS = 60
CONFIG = {"segment.bytes": 700, "index.interval.bytes": 120, "segment.index.bytes": 4096}


class Model:
    """A log and the list it must equal."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = LogStore(path)
        self.log = self.store.open(**CONFIG)
        self.records: list[tuple[int, bytes, int]] = []  # offset, value, timestamp
        self.start = 0
        self.sequence = 0
        self.count = 0

    @property
    def end(self) -> int:
        return self.records[-1][0] + 1 if self.records else self.start

    def append(self) -> None:
        records = self.random.randint(1, 4)
        timestamp = NOW_MS + self.random.randint(-500, 500)
        values = [
            b"%d" % (self.count + i) + b"." * self.random.randint(0, 60) for i in range(records)
        ]
        self.count += records
        data = batch(values, timestamp=timestamp)
        base = append(self.log, data)
        assert base == self.end
        self.records += [(base + i, value, timestamp) for i, value in enumerate(values)]

    def append_idempotent(self) -> None:
        data = batch(
            [b"%d" % self.count], producer_id=5, producer_epoch=0, base_sequence=self.sequence
        )
        self.count += 1
        base = append(self.log, data)
        assert append(self.log, data) == base
        self.records.append((base, b"%d" % (self.count - 1), NOW_MS))
        self.sequence += 1

    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    def checkpoint(self) -> None:
        self.store.manager.checkpoint()

    def delete_records(self) -> None:
        offset = self.random.randint(self.start, self.end)
        self.start = self.log.delete_records(offset)
        assert self.start == offset
        self.records = [record for record in self.records if record[0] >= offset]

    def truncate(self) -> None:
        offset = self.random.randint(self.start, self.end)
        end = self.log.truncate_to(offset, NOW_MS)
        assert end <= offset
        self.records = [record for record in self.records if record[0] < end]
        self.start = min(self.start, end)
        self.forget_producer()

    def stop_cleanly(self) -> None:
        self.log = self.store.restart(clean=True, **CONFIG)
        assert self.log.recovery_point == self.end

    def kill(self) -> None:
        self.store.manager.tick()  # a raised log start is written with the next tick
        self.log = self.store.restart(clean=False, **CONFIG)
        assert self.log.log_end_offset == self.end

    def cut_power(self) -> None:
        """Unsynced data is lost, torn or garbage; the directory's checkpoints are old."""
        self.log.flush()
        self.checkpoint()
        synced = {path: path.stat().st_size for path in self.store.path().glob("*.log")}
        synced_end = self.end
        for _ in range(self.random.randint(0, 6)):
            self.append()
        self.store.stop(clean=False)
        self.tear(synced)
        self.store.start(clean=False)
        self.log = self.store.open(**CONFIG)
        assert synced_end <= self.log.log_end_offset <= self.end
        self.records = [record for record in self.records if record[0] < self.log.log_end_offset]
        self.forget_producer()

    def tear(self, synced: dict[Path, int]) -> None:
        for path in sorted(self.store.path().glob("*.log")):
            kept = synced.get(path, 0)
            size = path.stat().st_size
            if size == kept:
                continue
            data = bytearray(path.read_bytes())
            kind = self.random.choice(["lost", "garbage", "zeros", "flip", "whole"])
            at = self.random.randint(kept, size)
            if kind == "lost":
                data = data[:at]
            elif kind == "garbage":
                data[at:] = self.random.randbytes(size - at)
            elif kind == "zeros":
                data[at:] = bytes(size - at)
            elif kind == "flip" and at < size:
                data[at] ^= 1 << self.random.randrange(8)
            path.write_bytes(data)
            for suffix in (".index", ".timeindex"):
                index = path.with_suffix(suffix)
                if index.exists() and self.random.random() < 0.5:
                    index.write_bytes(self.random.randbytes(self.random.randint(0, 100)))

    def forget_producer(self) -> None:
        """The test's producer starts over with the state of a new id: skip to the log's next
        sequence.
        """
        entry = self.log.appender.producers.entries.get(5)
        self.sequence = entry.recent_batches[-1][1] + 1 if entry is not None else self.sequence

    def check(self) -> None:
        log = self.log
        assert stored_values(log) == [record[:2] for record in self.records]
        assert log.log_start_offset == self.start
        assert log.log_end_offset == self.end
        slot = self.store.slot()
        active = log.segments[-1]
        assert slot["log_start_offset"] == self.start
        assert slot["log_end"] == (self.end, active.base_offset, active.size)
        assert log.recovery_point <= self.end
        for offset in {self.start, self.end, self.random.randint(self.start, self.end)}:
            self.check_place(offset)
        self.check_times()

    def check_place(self, offset: int) -> None:
        segment, position = self.log.segments.locate(offset)
        if offset == self.end:
            assert position == segment.size
            return
        data = Path(segment.path(".log")).read_bytes()[position:]
        base = int.from_bytes(data[:8], "big")
        assert base <= offset <= base + int.from_bytes(data[23:27], "big")

    def check_times(self) -> None:
        wanted = NOW_MS + self.random.randint(-600, 600)
        expected = next(((o, t) for o, _, t in self.records if t >= wanted), (-1, -1))
        found = list_offsets(self.log, wanted)
        assert (found["offset"], found["timestamp"]) == expected
        newest = max((t for _, _, t in self.records), default=-1)
        if self.records and list_offsets(self.log, -3)["timestamp"] != newest:
            # A segment that starts below the log start offset may hide the newest record left in
            # it.
            assert self.start > self.log.segments[0].base_offset


@pytest.mark.parametrize("seed", range(12))
def test_log_random_operations_equal_the_list(tmp_path, seed):
    model = Model(tmp_path, seed)
    operations = (
        [model.append] * 12 + [model.append_idempotent] * 4 + [model.flush] * 2 + [model.checkpoint]
        + [model.delete_records, model.truncate, model.stop_cleanly, model.kill, model.cut_power]
    )  # fmt: skip

    done = []
    try:
        for _ in range(STEPS):
            operation = model.random.choice(operations)
            done.append(operation.__name__)
            operation()
            model.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed} after {done[-8:]}: {error}") from error
    finally:
        model.store.stop(clean=False)
