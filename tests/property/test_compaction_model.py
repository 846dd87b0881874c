"""Random records, tombstones, transactions and idempotent producers in a compacted log, compared
with a dict.

After each compaction every record below its end is the last of its key and was not aborted, every
last value is there under its own offset with its own bytes, tombstones and markers stay for their
time, readers see just that, and producers go on where they were. Compaction crashes after random
steps; what is found then is as sound, only less compact. A failure prints its seed.
"""

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from support.running.grids import some_of
from support.storage.compaction import CONFIG as COMPACTED
from support.storage.compaction import Compaction, cleanable_end, stored_batches
from support.storage.fetch_log import visible
from support.storage.log_store import NOW_MS, LogStore, append, end_transaction

from kbroker._ext.fetch.fetch_engine import FetchEngine
from kbroker.protocol import codec
from kbroker.protocol.header import decode_response_header
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.record.builder import BatchBuilder
from kbroker.storage.cleaning.cleaner_policy import GROUP_SEGMENTS_MAX

pytestmark = pytest.mark.property

STEPS = 120
RETENTION_MS = 10_000
CONFIG = {**COMPACTED, "segment.bytes": 1500}
PRODUCERS = range(1, 5)
TRANSACTIONAL = (1, 2, 3)
FETCH_KEY, VERSION = 1, 12
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Written(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[bytes, bytes | None], ...]
    transaction: int  # -1: none; else number of the transaction


class Model:
    """A log, everything ever written to it, and the end of its compacted part."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = LogStore(path)
        self.log = self.store.open(**CONFIG)
        self.now_ms = NOW_MS
        self.written: dict[int, Written] = {}
        self.fates: list[str] = []
        self.open: dict[int, int] = {}  # producer -> number of its transaction
        self.clean_end = 0
        # When a compaction first had each tombstone in its map.
        self.met: dict[int, int] = {}
        self.segment_bytes = self.random.choice([1500, 3000, 6000])
        self.map_bytes = self.random.choice([24 * 12, 24 * 30, 1 << 16])
        self.token = 0

    # ---- writing ----

    def sequence(self, producer_id: int) -> int:
        entry = self.log.appender.producers.entries.get(producer_id)
        return 0 if entry is None else entry.last_sequence_number + 1

    def append(self) -> None:
        draw = self.random
        producer_id = draw.choice([-1, *PRODUCERS])
        transaction = -1
        header = {}
        if producer_id >= 0:
            header = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": self.sequence(producer_id),
                "transactional": producer_id in TRANSACTIONAL,
            }
        if producer_id in TRANSACTIONAL:
            if producer_id not in self.open:
                self.open[producer_id] = len(self.fates)
                self.fates.append(OPEN)
            transaction = self.open[producer_id]
        builder = BatchBuilder(draw.choice([0, 0, 0, 1, 2, 3, 4]), **header)
        records = []
        for _ in range(draw.randint(1, 5)):
            record = Written(
                b"key-%d" % draw.randint(0, 12),
                None
                if draw.random() < 0.25
                else bytes([draw.randrange(256)]) * draw.randint(0, 90),
                self.now_ms - draw.randint(0, 1000),
                ((b"h", b"x" * draw.randint(0, 3)),) if draw.random() < 0.2 else (),
                transaction,
            )
            builder.append(record.value, record.key, record.timestamp, record.headers)
            records.append(record)
        base = append(self.log, builder.build(), self.now_ms)
        self.written.update({base + delta: record for delta, record in enumerate(records)})

    def finish(self) -> None:
        if self.open:
            producer_id = self.random.choice(sorted(self.open))
            commit = self.random.random() < 0.5
            end_transaction(self.log, producer_id, commit=commit)
            self.fates[self.open.pop(producer_id)] = COMMITTED if commit else ABORTED

    def pass_time(self) -> None:
        self.now_ms += self.random.choice([10, 1000, RETENTION_MS])

    # ---- stops ----

    def restart(self) -> None:
        producers = self.producers()
        self.log = self.store.restart(clean=self.random.random() < 0.5, **CONFIG)
        assert self.producers() == producers

    def producers(self) -> dict[int, tuple[int, int, int]]:
        return {
            entry.producer_id: (
                entry.producer_epoch,
                entry.last_sequence_number,
                entry.current_txn_first_offset,
            )
            for entry in self.log.producers()
        }

    # ---- compaction ----

    def compaction(self) -> Compaction | None:
        if cleanable_end(self.log) <= self.clean_end:
            return None
        return Compaction(
            self.log,
            first_dirty=self.clean_end,
            now_ms=self.now_ms,
            segment_bytes=self.segment_bytes,
            map_bytes=self.map_bytes,
            delete_retention_ms=RETENTION_MS,
        )

    def compact(self) -> None:
        pass_ = self.compaction()
        if pass_ is None:
            return
        producers = self.producers()
        pass_.run()
        assert pass_.end > self.clean_end
        self.clean_end = pass_.end
        for offset, record in self.written.items():
            if record.value is None and offset < self.clean_end:
                self.met.setdefault(offset, self.now_ms)
        assert self.producers() == producers
        self.check_compact()

    def crash(self) -> None:
        """Kill everything after a random step of a compaction; its checkpoint is not written."""
        pass_ = self.compaction()
        if pass_ is None:
            return
        producers = self.producers()
        pass_.crash(self.random)
        for offset, record in self.written.items():
            if record.value is None and offset < cleanable_end(self.log):
                self.met.setdefault(offset, self.now_ms)
        self.log = self.store.restart(clean=False, **CONFIG)
        assert self.producers() == producers
        names = [path.name for path in self.store.path().iterdir()]
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]

    # ---- what must be true ----

    def last_of_keys(self, end: int | None = None) -> dict[bytes, int]:
        """The offset of each key's last record that was not aborted, or may not be."""
        found: dict[bytes, int] = {}
        for offset in sorted(self.written):
            record = self.written[offset]
            if end is not None and offset >= end:
                break
            if record.transaction < 0 or self.fates[record.transaction] != ABORTED:
                found[record.key] = offset
        return found

    def check(self) -> None:
        survivors = self.survivors()
        for offset, record in survivors.items():
            expected = self.written[offset]
            assert record == expected._replace(transaction=-1), (offset, record, expected)
        open_keys = {self.written[o].key for o in self.written if self.fate(o) == OPEN}
        for key, offset in self.last_of_keys().items():
            if key in open_keys:
                continue
            record = self.written[offset]
            is_due = offset in self.met and self.met[offset] + RETENTION_MS <= self.now_ms
            assert offset in survivors or (record.value is None and is_due), (key, offset, record)
        for _ in range(2):
            self.check_reader(survivors)

    def fate(self, offset: int) -> str:
        transaction = self.written[offset].transaction
        return COMMITTED if transaction < 0 else self.fates[transaction]

    def survivors(self) -> dict[int, Written]:
        return {
            record.offset: Written(
                record.key or b"", record.value, record.timestamp, tuple(record.headers), -1
            )
            for batch in stored_batches(self.log)
            if not batch.is_control
            for record in batch.records()
        }

    def check_compact(self) -> None:
        last = self.last_of_keys(self.clean_end)
        for offset in self.survivors():
            if offset < self.clean_end:
                assert self.fate(offset) == COMMITTED, f"{offset} was aborted"
                assert last[self.written[offset].key] == offset, f"{offset} has a later record"
        assert len(self.log.segments) <= 2 + GROUP_SEGMENTS_MAX + self.log.segments.size // 700

    def check_reader(self, survivors: dict[int, Written]) -> None:
        """A read_committed consumer sees each remaining record, once, in order."""
        engine = FetchEngine(self.store.table, 0, self.store.dirs)
        engine.put_topic("t", bytes(range(16)), [0])
        at = self.random.randint(0, self.log.log_end_offset)
        stable = self.log.last_stable_offset
        expected = [o for o in sorted(survivors) if at <= o < stable and self.fate(o) == COMMITTED]
        seen: list[int] = []
        limit = self.random.choice([1, 300, 5000])
        while at < stable:
            partition = self.fetch(engine, at, limit)
            offsets, reached = visible(partition, at)
            seen += offsets
            if reached == at:
                break
            at = reached
        assert seen == expected

    def fetch(self, engine: FetchEngine, offset: int, limit: int) -> FetchResponse.PartitionData:
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1)
        wanted = FetchRequest.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=limit
        )
        request.topics.append(FetchRequest.FetchTopic(topic="t", partitions=[wanted]))
        self.token += 1
        reply = engine.handle_bytes(codec.encode(request, VERSION), VERSION, 1, self.token, 0)
        assert reply is not None, "parked"
        _, position = decode_response_header(reply, FETCH_KEY, VERSION, 4)
        response = codec.decode_exact(FetchResponse, VERSION, reply, position)
        partition = response.responses[0].partitions[0]
        assert partition.error_code == 0, partition.error_code
        return partition


@pytest.mark.parametrize("seed", some_of(range(24), range(8)))
def test_compaction_random_operations_equal_the_dict(tmp_path, seed):
    model = Model(tmp_path, seed)
    operations = (
        [model.append] * 30 + [model.finish] * 8 + [model.pass_time] * 3
        + [model.compact] * 4 + [model.crash] * 3 + [model.restart]
    )  # fmt: skip
    done = []
    try:
        for _ in range(STEPS):
            operation = model.random.choice(operations)
            done.append(operation.__name__)
            operation()
            if operation not in (model.append, model.pass_time):
                model.check()
        model.compact()
        model.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed} after {done[-8:]}: {error}") from error
    finally:
        model.store.stop(clean=False)
