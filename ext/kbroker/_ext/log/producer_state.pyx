"""Producer state of a log and its ``.snapshot`` bytes (docs/formats/producer-snapshot.md).

Runs in the io worker that owns the log. Costs one dict lookup per batch with a producer id; an object is created only
for a producer's first batch.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memmove

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.wire cimport (
    load_i16, load_i32, load_i64, load_u32, store_i16, store_i32, store_i64, store_u32
)

cdef enum:
    SNAPSHOT_VERSION = 1
    HEADER_BYTES = 10            # version i16, crc u32, entry count i32
    CRC_FROM = 6
    ENTRY_BYTES = 46
    SEQUENCE_MAX = 0x7FFFFFFF

NO_SEQUENCE = -1


class CorruptSnapshotError(ValueError):
    """A producer snapshot whose version, size or checksum is wrong."""


cdef inline int32_t sequence_after(int32_t sequence, int32_t increment) noexcept nogil:
    # Sequence numbers wrap from 2^31-1 to 0.
    if sequence > SEQUENCE_MAX - increment:
        return increment - (SEQUENCE_MAX - sequence) - 1
    return sequence + increment


cdef inline int32_t sequence_before(int32_t sequence, int32_t decrement) noexcept nogil:
    if sequence < decrement:
        return SEQUENCE_MAX - (decrement - sequence) + 1
    return sequence - decrement


cdef class ProducerEntry:
    """One producer. Only ``ProducerState`` changes it."""

    def __cinit__(self, int64_t producer_id):
        self.producer_id = producer_id
        self.producer_epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.current_txn_first_offset = -1
        self.transaction_place.segment_base_offset = -1
        self.batch_count = 0

    cdef void add_batch(self, int16_t epoch, const ProducerBatch* batch) noexcept nogil:
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batch_count = 0
        if self.batch_count == BATCHES_KEPT:
            memmove(&self.batches[0], &self.batches[1], (BATCHES_KEPT - 1) * sizeof(ProducerBatch))
            self.batch_count -= 1
        self.batches[self.batch_count] = batch[0]
        self.batch_count += 1
        self.last_timestamp = batch.timestamp

    # Whether the batch belongs to a transaction that a marker has ended.
    cdef bint has_ended(self, const ProducerBatch* batch) noexcept nogil:
        if self.coordinator_epoch < 0:
            return False
        return self.current_txn_first_offset < 0 or batch.last_offset < self.current_txn_first_offset

    cdef int32_t last_sequence(self) noexcept nogil:
        return self.batches[self.batch_count - 1].last_sequence if self.batch_count else -1

    @property
    def last_sequence_number(self) -> int:
        """Last sequence number of the last batch; -1 without one."""
        return self.last_sequence()

    @property
    def recent_batches(self) -> list[tuple[int, int, int, int, int]]:
        """(first sequence, last sequence, first offset, last offset, timestamp), oldest first."""
        return [
            (
                sequence_before(self.batches[i].last_sequence, self.batches[i].offset_delta),
                self.batches[i].last_sequence,
                self.batches[i].last_offset - self.batches[i].offset_delta,
                self.batches[i].last_offset,
                self.batches[i].timestamp,
            )
            for i in range(self.batch_count)
        ]


cdef class ProducerState:
    """All producers of one log, as of ``end_offset``."""

    def __cinit__(self, int64_t end_offset=0):
        self.entries = {}
        self.end_offset = end_offset
        self.open_transactions = {}

    cdef int check(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta, ProducerBatch* found
    ) except -1:
        """Check whether a client's batch may follow; returns a SequenceCheck. Changes nothing.

        COMPAT: an unknown producer may start at any sequence number (its records may have been deleted), a known one
        must start at 0 with a new epoch, and within an epoch sequence numbers are consecutive. Unlike in Apache Kafka,
        a batch with sequence numbers of an ended transaction is not a duplicate: a producer has nothing to retry once
        it has ended a transaction. librdkafka 2.16 drops records in an abort that may have arrived, and reuses their
        sequence numbers in the next transaction; treating those as duplicates would lose them.
        """
        cdef ProducerEntry entry = self.entries.get(producer_id)
        cdef int i
        cdef int32_t last
        if entry is None or entry.producer_epoch < 0:
            return SEQUENCE_OK
        if epoch < entry.producer_epoch:
            return SEQUENCE_OLD_EPOCH
        if epoch != entry.producer_epoch:
            return SEQUENCE_OK if base_sequence == 0 else SEQUENCE_OUT_OF_ORDER
        for i in range(entry.batch_count):
            if (
                entry.batches[i].offset_delta == offset_delta
                and sequence_before(entry.batches[i].last_sequence, offset_delta) == base_sequence
            ):
                if entry.has_ended(&entry.batches[i]):
                    return SEQUENCE_OUT_OF_ORDER
                found[0] = entry.batches[i]
                return SEQUENCE_DUPLICATE
        last = entry.last_sequence()
        if base_sequence == (0 if last == SEQUENCE_MAX else last + 1):
            return SEQUENCE_OK
        return SEQUENCE_OUT_OF_ORDER

    cdef int update(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta, int64_t last_offset,
        int64_t timestamp, bint transactional, const LogEnd* place
    ) except -1:
        """Record an appended batch. place: where it begins, NULL if unknown.

        base_sequence: -1 for a batch of a coordinator, which has none.
        """
        cdef ProducerEntry entry = self.entries.get(producer_id)
        cdef ProducerBatch batch
        if entry is None:
            entry = ProducerEntry.__new__(ProducerEntry, producer_id)
            self.entries[producer_id] = entry
        batch.last_offset = last_offset
        batch.timestamp = timestamp
        batch.last_sequence = sequence_after(base_sequence, offset_delta) if base_sequence >= 0 else -1
        batch.offset_delta = offset_delta
        entry.add_batch(epoch, &batch)
        if transactional and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = last_offset - offset_delta
            entry.transaction_place.segment_base_offset = -1
            if place != NULL:
                entry.transaction_place = place[0]
            # INVARIANT: batches are noted in offset order, so the newest transaction is the last one in the dict.
            self.open_transactions[producer_id] = entry
        return 0

    cdef int end_transaction(
        self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int64_t timestamp
    ) except -1:
        """Note a transaction marker that has been appended."""
        cdef ProducerEntry entry = self.entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry.__new__(ProducerEntry, producer_id)
            self.entries[producer_id] = entry
        if epoch != entry.producer_epoch:
            entry.producer_epoch = epoch
            entry.batch_count = 0
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        if entry.current_txn_first_offset >= 0:
            entry.current_txn_first_offset = -1
            del self.open_transactions[producer_id]
        return 0

    cdef ProducerEntry oldest_open(self):
        for entry in self.open_transactions.values():
            return <ProducerEntry>entry
        return None

    cdef int64_t stable_without(self, int64_t producer_id, int64_t otherwise) except -2:
        cdef ProducerEntry entry
        for entry in self.open_transactions.values():
            if entry.producer_id != producer_id:
                return entry.current_txn_first_offset
        return otherwise

    def set_end_offset(self, int64_t end_offset) -> None:
        self.end_offset = end_offset

    def complete(self, ProducerState walked not None) -> None:
        """Take over the batches that a walk up to the log end has found for each producer. Called once."""
        cdef ProducerEntry entry, met
        cdef int i
        self.abridged = False
        for met in walked.entries.values():
            entry = self.entries.get(met.producer_id)
            if (
                entry is None
                or entry.producer_epoch != met.producer_epoch
                or entry.batch_count >= met.batch_count
                or entry.batch_count == 0
                or entry.batches[entry.batch_count - 1].last_offset != met.batches[met.batch_count - 1].last_offset
            ):
                continue
            for i in range(met.batch_count):
                entry.batches[i] = met.batches[i]
            entry.batch_count = met.batch_count

    def expire(self, int64_t now_ms, int64_t expiration_ms) -> int:
        """Forget producers without a batch for ``producer.id.expiration.ms``; returns how many.

        Those with an open transaction stay. COMPAT: age counts from the last batch's timestamp, as in Kafka.
        """
        cdef ProducerEntry entry
        gone = []
        for entry in self.entries.values():
            if entry.current_txn_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms:
                gone.append(entry.producer_id)
        for producer_id in gone:
            del self.entries[producer_id]
        return len(gone)

    def first_open_transaction(self) -> int | None:
        """Return the first offset of the oldest open transaction."""
        cdef ProducerEntry entry = self.oldest_open()
        return None if entry is None else entry.current_txn_first_offset

    def late_transactions(self, int64_t before_ms) -> list[ProducerEntry]:
        """Return the producers with an open transaction that has had no batch since ``before_ms``."""
        cdef ProducerEntry entry
        return [entry for entry in self.open_transactions.values() if entry.last_timestamp < before_ms]

    def unplaced_transactions(self) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the open transactions whose first batch has an unknown place."""
        cdef ProducerEntry entry
        return [
            (entry.producer_id, entry.current_txn_first_offset)
            for entry in self.open_transactions.values()
            if entry.transaction_place.segment_base_offset < 0
        ]

    def place_transaction(
        self, int64_t producer_id, int64_t offset, int64_t segment_base_offset, int64_t position
    ) -> None:
        """Set where the producer's open transaction begins for readers."""
        cdef ProducerEntry entry = self.open_transactions[producer_id]
        entry.transaction_place.offset = offset
        entry.transaction_place.segment_base_offset = segment_base_offset
        entry.transaction_place.position = position

    def append_batch(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta, int64_t last_offset,
        int64_t timestamp, bint transactional=False
    ) -> None:
        """Python face of update, for tests."""
        self.update(producer_id, epoch, base_sequence, offset_delta, last_offset, timestamp, transactional, NULL)

    def finish_transaction(
        self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int64_t timestamp
    ) -> None:
        """Python face of end_transaction, for tests."""
        self.end_transaction(producer_id, epoch, coordinator_epoch, timestamp)

    def check_batch(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta
    ) -> tuple[int, int]:
        """Python face of check, for tests: (SequenceCheck, original last offset of a duplicate or -1)."""
        cdef ProducerBatch found
        found.last_offset = -1
        return self.check(producer_id, epoch, base_sequence, offset_delta, &found), found.last_offset

    def to_snapshot(self) -> bytes:
        """Return the bytes of a ``.snapshot`` file, which has only the last batch of each producer."""
        cdef Py_ssize_t size = HEADER_BYTES + len(self.entries) * ENTRY_BYTES
        cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(out)
        cdef uint8_t* p = start + HEADER_BYTES
        cdef ProducerEntry entry
        cdef ProducerBatch last
        store_i16(start, SNAPSHOT_VERSION)
        store_i32(start + CRC_FROM, <int32_t>len(self.entries))
        for entry in self.entries.values():
            if entry.batch_count:
                last = entry.batches[entry.batch_count - 1]
            else:
                last.last_sequence, last.last_offset, last.offset_delta = -1, -1, 0
            store_i64(p, entry.producer_id)
            store_i16(p + 8, entry.producer_epoch)
            store_i32(p + 10, last.last_sequence)
            store_i64(p + 14, last.last_offset)
            store_i32(p + 22, last.offset_delta)
            store_i64(p + 26, entry.last_timestamp)
            store_i32(p + 34, entry.coordinator_epoch)
            store_i64(p + 38, entry.current_txn_first_offset)
            p += ENTRY_BYTES
        store_u32(start + 2, crc32c(start + CRC_FROM, <size_t>(size - CRC_FROM)))
        return out

    @staticmethod
    def from_snapshot(bytes data not None, int64_t end_offset):
        """Read the bytes of a ``.snapshot`` file; CorruptSnapshotError if anything is wrong with them."""
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef const uint8_t* p = start + HEADER_BYTES
        cdef Py_ssize_t size = len(data)
        cdef ProducerState state = ProducerState(end_offset)
        cdef ProducerEntry entry
        cdef ProducerBatch batch
        cdef int32_t count, i
        if size < HEADER_BYTES or load_i16(start) != SNAPSHOT_VERSION:
            raise CorruptSnapshotError(f"{size} bytes that are not a snapshot of version {SNAPSHOT_VERSION}")
        if load_u32(start + 2) != crc32c(start + CRC_FROM, <size_t>(size - CRC_FROM)):
            raise CorruptSnapshotError("wrong checksum")
        count = load_i32(start + CRC_FROM)
        state.abridged = count > 0
        if count < 0 or <int64_t>count * ENTRY_BYTES != size - HEADER_BYTES:
            raise CorruptSnapshotError(f"{count} entries do not fit {size} bytes")
        for i in range(count):
            entry = ProducerEntry.__new__(ProducerEntry, load_i64(p))
            entry.producer_epoch = load_i16(p + 8)
            batch.last_sequence = load_i32(p + 10)
            batch.last_offset = load_i64(p + 14)
            batch.offset_delta = load_i32(p + 22)
            batch.timestamp = load_i64(p + 26)
            if batch.last_offset >= 0:
                entry.add_batch(entry.producer_epoch, &batch)
            entry.last_timestamp = batch.timestamp
            entry.coordinator_epoch = load_i32(p + 34)
            entry.current_txn_first_offset = load_i64(p + 38)
            state.entries[entry.producer_id] = entry
            p += ENTRY_BYTES
        open_now = [entry for entry in state.entries.values() if entry.current_txn_first_offset >= 0]
        open_now.sort(key=first_offset_of)
        state.open_transactions = {entry.producer_id: entry for entry in open_now}
        return state


def first_offset_of(ProducerEntry entry not None) -> int:
    """Sort key of open transactions."""
    return entry.current_txn_first_offset
