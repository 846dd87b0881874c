"""Walks the batches of a segment file: for recovery, and for the short walks after an index entry.

Runs in the io worker (and in tools). Reads with ``pread`` through one buffer, so a file that is truncated meanwhile
only gives short reads. Never changes the log file. Entries of message formats 0 and 1, found in logs of older brokers,
are walked too: they are checked with their own checksum and never mistaken for damage.
"""
import os
import zlib

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from kbroker._ext.base.wire cimport (
    READ_OK, Reader, load_i16, load_i32, load_i64, load_u32, make_reader, read_varint, read_varlong, skip
)
from kbroker._ext.log.offset_index cimport INDEX_APPENDED, OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state cimport ProducerEntry, ProducerState
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_MAGIC_AT,
    BATCH_OK,
    BatchInfo,
    check_crc,
    offsets_fit,
    peek_batch_header,
)
from kbroker._ext.shared.partition_table cimport LogEnd


cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* data, size_t size, long offset)


cdef enum:
    LEGACY_BYTES_MIN = 26            # offset, size, crc, magic, attributes, key length, value length
    LEGACY_TIMESTAMP_AT = 18
    CHUNK_BYTES = 1 << 20
    HEADER_CHUNK_BYTES = 1 << 16
    RELATIVE_OFFSET_MAX = 0x7FFFFFFF
    MARKER_ABORT = 0
    MARKER_COMMIT = 1
    PROBLEMS_KEPT = 10               # of an IndexCheck, for each of the two indexes

# Why a scan stopped.
END = 0            # it reached `end`
ZEROS = 1          # only zeros from here on: allocated, not written yet
DAMAGED = 2        # `problem` says what is wrong with the bytes at `end_position`

cdef int64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF

# Bytes between calls of `progress`.
PROGRESS_BYTES = 1 << 26


cdef class SegmentReader:
    """A window that moves forward over a file. The pointer returned by at() is valid until the next call."""

    cdef int fd
    cdef uint8_t* buffer
    cdef Py_ssize_t capacity
    cdef Py_ssize_t filled
    cdef int64_t start               # file position of buffer[0]
    cdef Py_ssize_t chunk

    def __cinit__(self, int fd, Py_ssize_t chunk):
        self.fd = fd
        self.chunk = chunk
        self.capacity = 0
        self.filled = 0
        self.start = 0
        self.buffer = NULL

    def __dealloc__(self):
        free(self.buffer)

    # `size` bytes at `position`; NULL if the file ends before that. Raises OSError if the read fails.
    cdef const uint8_t* at(self, int64_t position, Py_ssize_t size) except? NULL:
        cdef Py_ssize_t wanted
        cdef ssize_t got
        if self.start <= position and position + size <= self.start + self.filled:
            return self.buffer + (position - self.start)
        wanted = self.chunk if size < self.chunk else size
        if wanted > self.capacity:
            free(self.buffer)
            self.capacity = 0
            self.filled = 0
            self.buffer = <uint8_t*>malloc(<size_t>wanted)
            if self.buffer == NULL:
                raise MemoryError(wanted)
            self.capacity = wanted
        self.start = position
        self.filled = 0
        while self.filled < size:
            with nogil:
                got = pread(self.fd, self.buffer + self.filled, <size_t>(wanted - self.filled), position + self.filled)
            if got < 0:
                if errno == EINTR:
                    continue
                raise OSError(errno, "pread: " + os.strerror(errno))
            if got == 0:
                return NULL
            self.filled += got
        return self.buffer


# One entry of a log file: a batch of format 2, or a message (wrapper) of format 0 or 1.
cdef struct Entry:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    int32_t leader_epoch     # -1 for formats 0 and 1
    int magic


# Read the entry at `position` of a file that ends at `end`. Returns None, or the problem. Fills `info` for format 2.
# Does not check the checksum.
cdef object read_entry(SegmentReader reader, int64_t position, int64_t end, Entry* entry, BatchInfo* info):
    cdef const uint8_t* p
    cdef int64_t left = end - position
    if left <= BATCH_MAGIC_AT:
        return "the file ends inside a batch header"
    p = reader.at(position, BATCH_MAGIC_AT + 1)
    if p == NULL:
        return "the file ends inside a batch header"
    entry.position = position
    entry.size = <int64_t>load_i32(p + 8) + BATCH_LENGTH_END
    entry.magic = p[BATCH_MAGIC_AT]
    if entry.magic > 2:
        return f"message format {entry.magic} does not exist"
    if entry.size < (BATCH_HEADER_BYTES if entry.magic == 2 else LEGACY_BYTES_MIN):
        return f"a length of {entry.size - BATCH_LENGTH_END} bytes is too small"
    if entry.size > left:
        return f"the file ends inside a batch of {entry.size} bytes"
    p = reader.at(position, BATCH_HEADER_BYTES if entry.magic == 2 else LEGACY_BYTES_MIN)
    if p == NULL:
        return "the file ends inside a batch header"
    if entry.magic == 2:
        if peek_batch_header(p, BATCH_HEADER_BYTES, info) != BATCH_OK or not offsets_fit(info):
            return "the batch header contradicts itself"
        entry.base_offset = info.base_offset
        entry.last_offset = info.base_offset + info.last_offset_delta
        entry.max_timestamp = info.max_timestamp
        entry.leader_epoch = info.partition_leader_epoch
    else:
        entry.base_offset = entry.last_offset = load_i64(p)
        entry.max_timestamp = load_i64(p + LEGACY_TIMESTAMP_AT) if entry.magic == 1 else -1
        entry.leader_epoch = -1
    return None


cdef bint checksum_matches(const uint8_t* p, const Entry* entry, const BatchInfo* info) except -1:
    if entry.magic == 2:
        return check_crc(p, info) == BATCH_OK
    view = PyMemoryView_FromMemory(<char*>p + BATCH_MAGIC_AT, entry.size - BATCH_MAGIC_AT, PyBUF_READ)
    return <uint32_t>zlib.crc32(view) == load_u32(p + 12)


cdef int32_t marker_epoch(const uint8_t* p, Py_ssize_t size, bint* is_abort) noexcept nogil:
    cdef Reader r = make_reader(p + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES)
    cdef int32_t length = 0, key = 0, value = 0, delta = 0
    cdef const uint8_t* type_at
    cdef int64_t timestamp = 0
    if (
        read_varint(&r, &length) != READ_OK
        or skip(&r, 1) != READ_OK
        or read_varlong(&r, &timestamp) != READ_OK
        or read_varint(&r, &delta) != READ_OK
        or read_varint(&r, &key) != READ_OK
        or key < 4
        or r.end - r.pos < key
    ):
        return -1
    type_at = r.pos + 2
    if (
        load_i16(type_at) not in (MARKER_ABORT, MARKER_COMMIT)
        or skip(&r, key) != READ_OK
        or read_varint(&r, &value) != READ_OK
        or value < 6
        or r.end - r.pos < value
    ):
        return -1
    is_abort[0] = load_i16(type_at) == MARKER_ABORT
    return load_i32(r.pos + 2)


cdef class Scan:
    """The result of a walk over a segment. ``end_position`` and ``next_offset`` are those after the last good entry."""

    cdef readonly int64_t end_position
    cdef readonly int64_t next_offset
    cdef readonly int64_t max_timestamp          # -1: no entry has a timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t first_timestamp        # of the first entry
    cdef readonly int64_t bytes_since_index
    cdef readonly int64_t batch_count
    cdef readonly int stop
    cdef readonly str problem
    cdef readonly int64_t last_position          # of the last good entry
    cdef readonly bint out_of_order              # the problem is an offset that does not follow the one before it
    cdef readonly list leader_epochs             # [(epoch, first offset)], ascending; behind the last of formats 0 and 1
    cdef readonly bint forgets_epochs            # there is an entry of format 0 or 1: earlier epochs are unknown
    # With producers: the aborted transactions whose markers were walked, as entries of the .txnindex: (producer id,
    # first offset, offset of the marker, last stable offset).
    cdef readonly list aborted

    def __cinit__(self, int64_t position=0, int64_t next_offset=0):
        self.end_position = position
        self.next_offset = next_offset
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp = -1
        self.stop = END
        self.leader_epochs = []
        self.aborted = []


cdef class IndexCheck:
    """Compares the two indexes of a segment with its batches while ``scan_segment`` walks them. Used for one scan.

    ``finish`` completes it. gap_count: places where offsets are missing, as after compaction. grouped_count: entries
    that name a later batch than the one at their position, as Kafka's followers write them; lookups with them are
    correct.
    """

    cdef OffsetIndex offsets
    cdef TimeIndex times
    cdef Py_ssize_t offset_at, time_at
    cdef int64_t awaited             # offset of an entry whose position has been walked, but not its batch; -1: none
    cdef readonly int64_t gap_count
    cdef readonly int64_t first_gap  # the first missing offset, -1: none
    cdef readonly int64_t grouped_count
    cdef readonly int64_t offset_problem_count
    cdef readonly int64_t time_problem_count
    cdef readonly list offset_problems           # descriptions of the first few
    cdef readonly list time_problems

    def __cinit__(self, OffsetIndex offsets=None, TimeIndex times=None):
        """offsets, times: verified, so entries are ascending; None: not compared."""
        self.offsets = offsets
        self.times = times
        self.offset_at = self.time_at = 0
        self.awaited = self.first_gap = -1
        self.offset_problems = []
        self.time_problems = []

    cdef int offset_problem(self, Py_ssize_t at, str what) except -1:
        self.offset_problem_count += 1
        if len(self.offset_problems) < PROBLEMS_KEPT:
            offset, position = self.offsets.entry(at)
            self.offset_problems.append(f"entry {at} (offset {offset}, position {position}): {what}")
        return 0

    cdef int time_problem(self, Py_ssize_t at, str what) except -1:
        self.time_problem_count += 1
        if len(self.time_problems) < PROBLEMS_KEPT:
            timestamp, offset = self.times.entry(at)
            self.time_problems.append(f"entry {at} (timestamp {timestamp}, offset {offset}): {what}")
        return 0

    # Compare one batch. expected: the offset after the batch before it. newest: the largest timestamp before it.
    cdef int see(self, const Entry* entry, int64_t expected, int64_t newest) except -1:
        if entry.magic == 2 and entry.base_offset != expected:
            self.gap_count += 1
            if self.first_gap < 0:
                self.first_gap = expected
        if self.offsets is not None:
            self.see_offsets(entry)
        if self.times is not None:
            self.see_times(entry, newest)
        return 0

    cdef int see_offsets(self, const Entry* entry) except -1:
        cdef const uint8_t* p
        cdef int64_t offset, position
        if self.awaited >= 0 and entry.last_offset >= self.awaited:
            if entry.last_offset == self.awaited:
                self.grouped_count += 1
            else:
                self.offset_problem(self.offset_at - 1, "no batch ends with that offset")
            self.awaited = -1
        while self.offset_at < self.offsets.entry_count:
            p = self.offsets.data + self.offset_at * self.offsets.entry_size
            offset = self.offsets.base_offset + load_i32(p)
            position = load_i32(p + 4)
            if position > entry.position:
                break
            if self.awaited >= 0:
                self.offset_problem(self.offset_at - 1, "no batch ends with that offset")
                self.awaited = -1
            if position < entry.position:
                self.offset_problem(self.offset_at, "no batch begins at that position")
            elif offset > entry.last_offset:
                self.awaited = offset
            elif offset < entry.last_offset:
                self.offset_problem(self.offset_at, f"the batch there ends with offset {entry.last_offset}")
            self.offset_at += 1
        return 0

    cdef int see_times(self, const Entry* entry, int64_t newest) except -1:
        cdef const uint8_t* p
        cdef int64_t timestamp, offset
        while self.time_at < self.times.entry_count:
            p = self.times.data + self.time_at * self.times.entry_size
            timestamp = load_i64(p)
            offset = self.times.base_offset + load_i32(p + 8)
            if offset > entry.last_offset:
                break
            if offset < entry.base_offset:
                self.time_problem(self.time_at, "no batch contains that offset")
            elif timestamp != entry.max_timestamp:
                self.time_problem(self.time_at, f"the batch there has timestamp {entry.max_timestamp}")
            elif newest > timestamp:
                self.time_problem(self.time_at, f"an earlier batch has timestamp {newest}")
            self.time_at += 1
        return 0

    def finish(self, bint whole) -> None:
        """Complete the check. whole: the walk reached the end of the log, so remaining entries have no batch."""
        if not whole:
            return
        if self.awaited >= 0:
            self.offset_problem(self.offset_at - 1, "no batch ends with that offset")
            self.awaited = -1
        while self.offsets is not None and self.offset_at < self.offsets.entry_count:
            self.offset_problem(self.offset_at, "it is after the last batch")
            self.offset_at += 1
        while self.times is not None and self.time_at < self.times.entry_count:
            self.time_problem(self.time_at, "it is after the last batch")
            self.time_at += 1


cdef int feed_producers(
    ProducerState producers, SegmentReader reader, const Entry* entry, const BatchInfo* info, int64_t segment_base_offset,
    list aborted
) except -1:
    cdef const uint8_t* p
    cdef int32_t coordinator_epoch
    cdef bint is_abort = False
    cdef LogEnd place
    cdef ProducerEntry producer
    if info.attributes & ATTRIBUTE_CONTROL:
        p = reader.at(entry.position, <Py_ssize_t>entry.size)
        coordinator_epoch = marker_epoch(p, <Py_ssize_t>entry.size, &is_abort) if p != NULL else -1
        if coordinator_epoch < 0:
            return 0
        producer = producers.entries.get(info.producer_id)
        if is_abort and producer is not None and producer.current_txn_first_offset >= 0:
            aborted.append((
                info.producer_id, producer.current_txn_first_offset, entry.last_offset,
                producers.stable_without(info.producer_id, entry.last_offset + 1),
            ))
        producers.end_transaction(info.producer_id, info.producer_epoch, coordinator_epoch, info.max_timestamp)
        return 0
    place.offset = entry.base_offset
    place.segment_base_offset = segment_base_offset
    place.position = entry.position
    return producers.update(
        info.producer_id, info.producer_epoch, info.base_sequence, info.last_offset_delta, entry.last_offset,
        info.max_timestamp, info.attributes & ATTRIBUTE_TRANSACTIONAL != 0, &place)


cdef bint zeros_to(SegmentReader reader, int64_t position, int64_t end) except -1:
    cdef const uint8_t* p
    cdef Py_ssize_t size, i
    while position < end:
        size = reader.chunk if end - position > reader.chunk else <Py_ssize_t>(end - position)
        p = reader.at(position, size)
        if p == NULL:
            return True
        for i in range(size):
            if p[i]:
                return False
        position += size
    return True


cdef object damage_of(SegmentReader reader, const Entry* entry, const BatchInfo* info):
    """The problem of an entry with a valid header, or None."""
    cdef const uint8_t* p = reader.at(entry.position, <Py_ssize_t>entry.size)
    if p == NULL:
        return "the file ends inside a batch"
    if not checksum_matches(p, entry, info):
        return "the checksum does not match"
    return None


cdef inline bint is_misplaced(const Entry* entry, int64_t expected, bint contiguous, int64_t limit) noexcept nogil:
    return (
        entry.base_offset < expected
        or (contiguous and entry.magic == 2 and entry.base_offset != expected)
        or entry.last_offset >= limit
    )


# Note the leader epoch of an entry; returns the latest one. latest: that of the entries before it, -1 if unknown.
cdef int32_t note_epoch(Scan scan, const Entry* entry, int32_t latest) except? -2:
    if entry.magic < 2:
        scan.forgets_epochs = True
        scan.leader_epochs.clear()
        return -1
    if entry.leader_epoch <= latest:
        return latest
    scan.leader_epochs.append((entry.leader_epoch, entry.base_offset))
    return entry.leader_epoch


def scan_segment(
    int fd, int64_t base_offset, int64_t end, *, int64_t position=0, next_offset=None, bint verify=True,
    bint contiguous=False, OffsetIndex offset_index=None, TimeIndex time_index=None, int64_t index_interval_bytes=4096,
    ProducerState producers=None, progress=None, IndexCheck check=None, int64_t offset_limit=OFFSET_MAX
) -> Scan:
    """Walk the entries from ``position`` to ``end`` (bytes) and stop at the first bad one.

    next_offset: the lowest offset that the first entry may have; ``base_offset`` by default.
    verify: check every checksum; otherwise only headers are checked.
    contiguous: no offset may be missing between batches. This covers base offsets, which the checksum does not.
    offset_index, time_index: filled as by appends; both must be empty.
    producers: updated with every batch from its ``end_offset`` on, up to the end of the walk.
    progress: called now and then without arguments, so that a long walk can show signs of life.
    check: gets every good entry; the caller calls ``finish``. The walk must begin at position 0.
    offset_limit: all offsets of the segment must be below it.

    Raises OSError if the file cannot be read. Memory: 1 MiB, or the size of the largest batch.
    """
    cdef:
        SegmentReader reader = SegmentReader(fd, CHUNK_BYTES if verify else HEADER_CHUNK_BYTES)
        Scan scan = Scan(position, base_offset if next_offset is None else next_offset)
        Entry entry
        BatchInfo info
        int64_t announced = position, progress_bytes = PROGRESS_BYTES
        int64_t limit = base_offset + min(offset_limit - base_offset, <int64_t>RELATIVE_OFFSET_MAX + 1)
        int32_t leader_epoch = -1
    while scan.end_position < end:
        problem = read_entry(reader, scan.end_position, end, &entry, &info)
        if problem is None and is_misplaced(&entry, scan.next_offset, contiguous, limit):
            problem = f"offset {entry.base_offset} where {scan.next_offset} was expected"
            scan.out_of_order = True
        if problem is None and verify:
            problem = damage_of(reader, &entry, &info)
        if problem is not None:
            if zeros_to(reader, scan.end_position, end):
                scan.stop = ZEROS
            else:
                scan.stop = DAMAGED
                scan.problem = problem
            break
        if check is not None:
            check.see(&entry, scan.next_offset, scan.max_timestamp)
        if scan.end_position == 0:
            scan.first_timestamp = entry.max_timestamp
        if entry.max_timestamp > scan.max_timestamp:
            scan.max_timestamp = entry.max_timestamp
            scan.max_timestamp_offset = entry.last_offset
        leader_epoch = note_epoch(scan, &entry, leader_epoch)
        if scan.bytes_since_index > index_interval_bytes:
            if offset_index is not None and offset_index.append(entry.last_offset, entry.position) == INDEX_APPENDED:
                if time_index is not None:
                    time_index.maybe_append(scan.max_timestamp, scan.max_timestamp_offset, False)
            scan.bytes_since_index = 0
        scan.bytes_since_index += entry.size
        if producers is not None:
            if entry.magic == 2 and info.producer_id >= 0 and entry.base_offset >= producers.end_offset:
                feed_producers(producers, reader, &entry, &info, base_offset, scan.aborted)
            if entry.last_offset + 1 > producers.end_offset:
                producers.end_offset = entry.last_offset + 1
        scan.last_position, scan.end_position = scan.end_position, scan.end_position + entry.size
        scan.next_offset = entry.last_offset + 1
        scan.batch_count += 1
        if progress is not None and scan.end_position - announced >= progress_bytes:
            announced = scan.end_position
            progress()
    return scan


cdef class FoundBatch:
    """The position of a batch, or of a message of formats 0 and 1, found by ``find_batch``."""

    cdef readonly int64_t position       # in bytes
    cdef readonly int64_t size           # in bytes
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp


def find_batch(
    int fd, int64_t position, int64_t end, *, int64_t offset=-1, int64_t timestamp=-1
) -> FoundBatch | None:
    """Find the first entry from ``position`` on that ends at or above ``offset`` and is not older than ``timestamp``.

    None if there is none before ``end``. Reads only headers; raises ValueError for bytes that are not a header, OSError
    if the file cannot be read.
    """
    cdef:
        SegmentReader reader = SegmentReader(fd, HEADER_CHUNK_BYTES)
        Entry entry
        BatchInfo info
        FoundBatch found
    while position < end:
        problem = read_entry(reader, position, end, &entry, &info)
        if problem is not None:
            raise ValueError(f"position {position}: {problem}")
        if entry.last_offset >= offset and entry.max_timestamp >= timestamp:
            found = FoundBatch.__new__(FoundBatch)
            found.position = entry.position
            found.size = entry.size
            found.base_offset = entry.base_offset
            found.last_offset = entry.last_offset
            found.max_timestamp = entry.max_timestamp
            return found
        position += entry.size
    return None
