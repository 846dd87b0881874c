"""Finds the aborted transactions in the records of a read_committed fetch (docs/formats/segment.md, ".txnindex").

Runs in network processes, which only read. An index is read once for as long as the list of segments is the same, but
for that of the active segment, which grows when the slot's ``aborted_version`` changes. A partition where nothing was
ever aborted costs nothing.

INVARIANT: an entry is in its file before the slot publishes a last stable offset above the records that it is of, so
what was decided below the published offset is in the files.
"""
import logging
import os

from libc.errno cimport EINTR, EMFILE, ENFILE, ENOENT, ENOTDIR, errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close as close_file, pread

from kbroker._ext.base.growing cimport grow
from kbroker._ext.base.wire cimport load_i16, load_i32, load_i64
from kbroker._ext.fetch.fetch_files cimport FileCache
from kbroker._ext.fetch.fetch_segments cimport Segment
from kbroker._ext.fetch.segment_search cimport (
    FIND_CORRUPT,
    FIND_IO_ERROR,
    FIND_MISSING,
    FIND_NO_PLACE,
    FIND_OK,
    BatchHeader,
    read_header,
)

from kbroker._ext.fetch.fetch_segments import report_shortage

logger = logging.getLogger(__name__)

cdef enum:
    ENTRY_SIZE = 34                 # version i16, then four i64
    VERSION = 0
    OFFSET_ENTRY_SIZE = 8           # of the .index
    # BOUND: cached entries of one partition besides those of the segment in use; 32 bytes each.
    CACHED_MAX = 65536


cdef bint read_fully(int fd, uint8_t* into, int64_t size, int64_t position) noexcept:
    cdef int64_t done = 0
    cdef Py_ssize_t got
    while done < size:
        got = pread(fd, into + done, <size_t>(size - done), position + done)
        if got < 0 and errno == EINTR:
            continue
        if got <= 0:
            return False
        done += got
    return True


cdef class AbortedIndex:
    """Reads the ``.txnindex`` of one segment incrementally."""

    def __dealloc__(self):
        free(self.entries)

    cdef int reserve(self, int64_t more) except -1:
        self.capacity = grow(&self.entries, self.capacity, self.count + more, sizeof(AbortedEntry))
        return 0

    cdef FindStatus read(self, str directory, int64_t base_offset, FileCache cache) except *:
        cdef bytes path = os.fsencode(f"{directory}/{base_offset:020d}.txnindex")
        cdef int fd = cache.open_path(path)
        if fd < 0:
            if fd == -ENOENT and self.count == 0:
                return FIND_OK  # nothing was aborted in this segment, unless the segment has been deleted
            if fd == -EMFILE or fd == -ENFILE:
                report_shortage(-fd)
                return FIND_NO_PLACE
            return FIND_MISSING if fd == -ENOENT or fd == -ENOTDIR else FIND_IO_ERROR
        try:
            return self.parse(fd, path, base_offset)
        finally:
            close_file(fd)

    cdef FindStatus parse(self, int fd, const char* path, int64_t base_offset) except *:
        cdef:
            struct_stat facts
            int64_t known = <int64_t>self.count * ENTRY_SIZE
            int64_t last = self.entries[self.count - 1].last_offset if self.count > 0 else base_offset - 1
            int64_t count, number
            uint8_t* data
            const uint8_t* p
            AbortedEntry* entry
        if fstat(fd, &facts) < 0:
            return FIND_IO_ERROR
        if facts.st_size < known:
            return FIND_MISSING  # replaced by another, shorter one
        count = (facts.st_size - known) // ENTRY_SIZE  # the last one may be on its way still
        if count == 0:
            return FIND_OK
        self.reserve(count)
        data = <uint8_t*>malloc(<size_t>(count * ENTRY_SIZE))
        if data == NULL:
            raise MemoryError
        try:
            if not read_fully(fd, data, count * ENTRY_SIZE, known):
                return FIND_IO_ERROR
            for number in range(count):
                p = data + number * ENTRY_SIZE
                entry = &self.entries[self.count]
                entry.producer_id = load_i64(p + 2)
                entry.first_offset = load_i64(p + 10)
                entry.last_offset = load_i64(p + 18)
                entry.last_stable_offset = load_i64(p + 26)
                if (
                    load_i16(p) != VERSION
                    or entry.producer_id < 0
                    or entry.first_offset < 0
                    or entry.first_offset >= entry.last_offset
                    or entry.last_offset <= last
                    or entry.last_stable_offset > entry.last_offset + 1
                ):
                    logger.error(
                        "%s: no aborted transaction at offset %d; the file will be rebuilt at the next start",
                        os.fsdecode(path), known + number * ENTRY_SIZE)
                    return FIND_CORRUPT
                last = entry.last_offset
                self.count += 1
        finally:
            free(data)
        return FIND_OK

    cdef int32_t first_at(self, int64_t offset) noexcept nogil:
        """Number of the first entry whose marker is at or above ``offset``."""
        cdef int32_t low = 0
        cdef int32_t high = self.count
        cdef int32_t middle
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low


cdef class AbortedList:
    """Grows as needed; reused for every request."""

    def __dealloc__(self):
        free(self.items)

    cdef int add(self, const AbortedEntry* entry) except -1:
        self.capacity = grow(&self.items, self.capacity, self.count + 1, sizeof(AbortedTransaction), 64)
        self.items[self.count].producer_id = entry.producer_id
        self.items[self.count].first_offset = entry.first_offset
        self.count += 1
        return 0


cdef FindStatus load(
    LogFiles log_files, int32_t number, const SlotData* slot, bint* was_read, void** out
) except *:
    """Read the index of segment ``number`` up to the slot's entry count; *out is borrowed."""
    cdef AbortedIndex index = log_files.aborted[number]
    cdef FindStatus status
    cdef int32_t other
    if index is None or not index.complete or (
        number + 1 == log_files.segment_count and index.version != slot.aborted_version
    ):
        if log_files.aborted_cached > CACHED_MAX:
            log_files.aborted = [
                log_files.aborted[other] if other == number else None for other in range(log_files.segment_count)
            ]
            log_files.aborted_cached = 0 if index is None else index.count
        if index is None:
            index = AbortedIndex.__new__(AbortedIndex)
            log_files.aborted[number] = index
        was_read[0] = True
        log_files.aborted_reads += 1
        index.version = slot.aborted_version
        log_files.aborted_cached -= index.count
        status = index.read(log_files.directory, log_files.segments[number].base_offset, log_files.cache)
        log_files.aborted_cached += index.count
        index.complete = status == FIND_OK
        if status != FIND_OK:
            log_files.aborted_cached -= index.count
            log_files.aborted[number] = None
            return status
    out[0] = <void*>index
    return FIND_OK


cdef FindStatus find_aborted(
    LogFiles log, int64_t offset, const SlotData* slot, const LogEnd* end, const FoundRange* found, AbortedList into,
    bint* was_read
) except *:
    cdef:
        int32_t number = log.floor_segment(found.segment_base_offset)
        int64_t upper = upper_bound(log, number, end, found)
        int32_t at
        void* borrowed = NULL
        AbortedIndex index
        FindStatus status
    while number < log.segment_count:
        status = load(log, number, slot, was_read, &borrowed)
        if status != FIND_OK:
            return status
        index = <AbortedIndex>borrowed
        for at in range(index.first_at(offset), index.count):
            if index.entries[at].first_offset < upper:
                into.add(&index.entries[at])
            if index.entries[at].last_stable_offset >= upper:
                return FIND_OK  # whatever ended later began above the range
        number += 1
    return FIND_OK


cdef int64_t upper_bound(LogFiles log, int32_t number, const LogEnd* end, const FoundRange* found) except -1:
    """An offset above the whole range, as low as the index can tell; too high only makes the response longer."""
    cdef:
        Segment* segment = &log.segments[number]
        BatchHeader header
        struct_stat facts
        uint8_t[OFFSET_ENTRY_SIZE] entry
        int64_t range_end = found.position + found.size
        int64_t limit = found.position + found.available
        int64_t bound = end.offset
        int64_t low = 0
        int64_t high, middle, position
        int32_t file
        int fd
    if number + 1 < log.segment_count:
        bound = min(bound, log.segments[number + 1].base_offset)
    if found.size >= found.available:
        return bound
    file = log.open_file(segment, True)
    if file < 0:
        return bound
    fd = log.cache.files[file].fd
    if fstat(fd, &facts) < 0:
        return bound
    high = facts.st_size // OFFSET_ENTRY_SIZE
    while low < high:  # find the first entry at or after the end of the range; padding (zeros) counts as after
        middle = (low + high) // 2
        if not read_fully(fd, entry, OFFSET_ENTRY_SIZE, middle * OFFSET_ENTRY_SIZE):
            return bound
        if (middle > 0 and load_i32(entry) <= 0) or load_i32(entry + 4) >= range_end:
            high = middle
        else:
            low = middle + 1
    if not read_fully(fd, entry, OFFSET_ENTRY_SIZE, low * OFFSET_ENTRY_SIZE):
        return bound
    position = load_i32(entry + 4)
    if position < range_end or position >= limit:
        return bound
    # A wrong index must not hide an aborted transaction: look at the batch that the entry names.
    file = log.open_file(segment, False)
    if file < 0 or read_header(
        log.cache.files[file].fd, position, limit, &header, &log.reads) != FIND_OK:
        return bound
    if header.last_offset != segment.base_offset + load_i32(entry) or header.base_offset >= bound:
        return bound
    return header.base_offset
