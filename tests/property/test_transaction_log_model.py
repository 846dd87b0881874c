"""Random transactions of several producers in one log, compared with a list of their outcomes.

After each step the last stable offset and the aborted transactions equal the model's, and a reader
of committed records, with any limits and from any offset, sees just the committed ones: it gets the
answers of a fetch engine and drops what a client drops. Logs roll, are cut at either end, and are
killed or stopped in between. A failure prints its seed.
"""

import random
from pathlib import Path

import pytest
from support.storage.fetch_log import visible
from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent

from kbroker._ext.fetch.fetch_engine import FetchEngine
from kbroker.protocol import codec
from kbroker.protocol.header import decode_response_header
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.storage.segments.txn_index import read_entries

pytestmark = pytest.mark.property

STEPS = 80
CONFIG = {"segment.bytes": 1100, "index.interval.bytes": 150, "segment.index.bytes": 4096}
VERSION, FETCH_KEY = 12, 1
PRODUCERS = range(1, 5)
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Transaction:
    """A producer's transaction, from its first record on; last is the offset of its marker."""

    def __init__(self, producer_id: int, first: int) -> None:
        self.producer_id = producer_id
        self.first = first
        self.last = -1
        self.state = OPEN


class Model:
    """A log, its expected content, and an engine that reads it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = LogStore(path)
        self.log = self.store.open(**CONFIG)
        self.engine = FetchEngine(self.store.table, 0, self.store.dirs)
        self.engine.put_topic("t", bytes(range(16)), [0])
        self.records: dict[int, Transaction | None] = {}  # offset -> its transaction
        self.batches: dict[int, int] = {}  # base offset -> end offset, markers too
        self.transactions: list[Transaction] = []
        self.end = 0
        self.start = 0
        self.token = 0

    # ---- steps ----

    def next_sequence(self, producer_id: int) -> int:
        entry = self.log.appender.producers.entries.get(producer_id)
        return 0 if entry is None else entry.last_sequence_number + 1

    def open_of(self, producer_id: int) -> Transaction | None:
        for transaction in self.transactions:
            if transaction.producer_id == producer_id and transaction.state == OPEN:
                return transaction
        return None

    def note(self, count: int, transaction: Transaction | None) -> None:
        for offset in range(self.end, self.end + count):
            self.records[offset] = transaction
        self.batches[self.end] = self.end + count
        self.end += count

    def append_plain(self) -> None:
        count = self.random.randint(1, 3)
        append(self.log, batch(count, size=self.random.randint(1, 60)))
        self.note(count, None)

    def append_transactional(self) -> None:
        producer_id = self.random.choice(PRODUCERS)
        count = self.random.randint(1, 3)
        transaction = self.open_of(producer_id)
        if transaction is None:
            transaction = Transaction(producer_id, self.end)
            self.transactions.append(transaction)
        data = sent(
            producer_id, self.next_sequence(producer_id), count, size=self.random.randint(1, 60)
        )
        assert append(self.log, data) == self.end
        self.note(count, transaction)

    def finish(self) -> None:
        producer_id = self.random.choice(PRODUCERS)
        commit = self.random.random() < 0.5
        transaction = self.open_of(producer_id)
        offset = end_transaction(self.log, producer_id, commit=commit)
        assert offset == self.end
        if transaction is not None:
            transaction.state = COMMITTED if commit else ABORTED
            transaction.last = offset
        self.batches[self.end] = self.end + 1
        self.end += 1

    def delete_records(self) -> None:
        self.start = self.random.randint(self.start, self.end)
        self.log.delete_records(self.start)

    def truncate(self) -> None:
        """Truncate the log at a batch boundary, at or above the log start offset."""
        borders = [base for base in self.batches if base >= self.start]
        if not borders:
            return
        end = self.random.choice(borders)
        assert self.log.truncate_to(end, NOW_MS) == end
        self.forget_from(end)

    def forget_from(self, end: int) -> None:
        self.end = end
        self.records = {o: t for o, t in self.records.items() if o < end}
        self.batches = {b: e for b, e in self.batches.items() if b < end}
        self.transactions = [t for t in self.transactions if t.first < end]
        for transaction in self.transactions:
            if transaction.last >= end:
                transaction.state, transaction.last = OPEN, -1

    def stop_cleanly(self) -> None:
        self.log = self.store.restart(clean=True, **CONFIG)

    def kill(self) -> None:
        self.store.manager.tick()
        self.log = self.store.restart(clean=False, **CONFIG)

    def flush(self) -> None:
        self.log.flush()
        self.store.manager.checkpoint()

    def cut_power(self) -> None:
        """Unsynced data is lost, torn or garbage, indexes as well."""
        self.flush()
        synced = {path: path.stat().st_size for path in self.store.path().iterdir()}
        synced_end = self.end
        for _ in range(self.random.randint(0, 6)):
            self.random.choice([self.append_transactional, self.finish])()
        self.store.stop(clean=False)
        for path in sorted(self.store.path().glob("*.log")) + sorted(
            self.store.path().glob("*.txnindex")
        ):
            kept = synced.get(path, 0)
            data = path.read_bytes()
            at = self.random.randint(kept, max(kept, len(data)))
            tail = self.random.choice([b"", bytes(len(data) - at), data[at:], b"\7" * 50])
            path.write_bytes(data[:at] + tail)
        self.store.start(clean=False)
        self.log = self.store.open(**CONFIG)
        assert synced_end <= self.log.log_end_offset <= self.end
        self.forget_from(self.log.log_end_offset)

    def damage_index(self) -> None:
        """Flip a bit of a .txnindex, or tear it, while the broker is down."""
        self.store.stop(clean=True)
        paths = sorted(self.store.path().glob("*.txnindex"))
        if paths:
            path = self.random.choice(paths)
            data = bytearray(path.read_bytes())
            if self.random.random() < 0.3:
                del data[self.random.randrange(len(data)) // 34 * 34 + self.random.randint(1, 33) :]
            else:
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            path.write_bytes(data)
        self.store.start(clean=True)
        self.log = self.store.open(**CONFIG)

    # ---- what must be true ----

    def stable(self) -> int:
        unknown = [max(t.first, self.start) for t in self.transactions if t.state == OPEN]
        return min([*unknown, self.end])

    def check(self) -> None:
        slot = self.store.slot()
        stable, segment, position = slot["last_stable"]
        assert stable == self.stable(), (stable, self.stable())
        assert slot["log_end"][0] == self.end
        self.check_place(stable, segment, position)
        self.check_index()
        for _ in range(3):
            self.check_reader()

    def check_place(self, offset: int, base_offset: int, position: int) -> None:
        """Where the batch with ``offset`` begins, or where the segment before it ends."""
        found, at = self.log.segments.locate(offset)
        if (found.base_offset, at) != (base_offset, position):
            (before,) = [s for s in self.log.segments if s.base_offset == base_offset]
            assert (before.size, before.next_offset) == (position, offset)

    def check_index(self) -> None:
        entries = [
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for each in self.log.segments
            for entry in read_entries(each.path(".txnindex"), each.base_offset, each.next_offset)
        ]
        first = self.log.segments[0].base_offset
        expected = [
            (t.producer_id, t.first, t.last)
            for t in self.transactions
            if t.state == ABORTED and t.last >= first
        ]
        assert entries == sorted(expected, key=lambda entry: entry[2])

    def check_reader(self) -> None:
        """Read from a random offset to the end; every record once, none that is not committed."""
        at = self.random.randint(self.start, self.end)
        limit = self.random.choice([1, 100, 300, 5000])
        expected = [
            offset
            for offset, transaction in self.records.items()
            if at <= offset < self.stable()
            and (transaction is None or transaction.state == COMMITTED)
        ]
        seen: list[int] = []
        for _ in range(1000):
            if at >= self.stable():
                break
            partition = self.fetch(at, limit)
            assert partition.last_stable_offset == self.stable()
            records, reached = visible(partition, at)
            assert reached > at, f"no progress at {at}"
            seen += records
            at = reached
        assert seen == expected
        assert self.fetch(self.end, limit).records in (b"", None)

    def fetch(self, offset: int, limit: int) -> FetchResponse.PartitionData:
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=1)
        wanted = FetchRequest.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=limit
        )
        request.topics.append(FetchRequest.FetchTopic(topic="t", partitions=[wanted]))
        self.token += 1
        reply = self.engine.handle_bytes(codec.encode(request, VERSION), VERSION, 1, self.token, 0)
        assert reply is not None, "parked"
        _, position = decode_response_header(reply, FETCH_KEY, VERSION, 4)
        response = codec.decode_exact(FetchResponse, VERSION, reply, position)
        partition = response.responses[0].partitions[0]
        assert partition.error_code == 0, partition.error_code
        assert partition.aborted_transactions is not None
        return partition


@pytest.mark.parametrize("seed", range(12))
def test_transactions_random_operations_equal_the_list(tmp_path, seed):
    model = Model(tmp_path, seed)
    operations = (
        [model.append_transactional] * 10 + [model.append_plain] * 3 + [model.finish] * 6
        + [model.flush, model.delete_records, model.truncate, model.stop_cleanly, model.kill]
        + [model.damage_index, model.cut_power]
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
