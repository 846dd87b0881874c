# The aborted transactions of a read_committed response, from the .txnindex files of a partition.
from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._ext.fetch.fetch_files cimport FileCache
from kbroker._ext.fetch.fetch_reply cimport AbortedTransaction
from kbroker._ext.fetch.fetch_segments cimport FoundRange, LogFiles
from kbroker._ext.fetch.segment_search cimport FindStatus
from kbroker._ext.shared.partition_table cimport LogEnd, SlotData


# A transaction of this producer, from its first record to its marker.
cdef struct AbortedEntry:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t last_stable_offset


# The index of one segment as far as it was read.
cdef class AbortedIndex:
    cdef AbortedEntry* entries     # rising by last_offset
    cdef int32_t count
    cdef int32_t capacity
    cdef bint complete             # nothing went wrong
    cdef uint32_t version          # `aborted_version` of the slot, before it was read
    cdef int reserve(self, int64_t more) except -1
    cdef FindStatus read(self, str directory, int64_t base_offset, FileCache cache) except *
    cdef FindStatus parse(self, int fd, const char* path, int64_t base_offset) except *
    cdef int32_t first_at(self, int64_t offset) noexcept nogil


# The aborted transactions of one response, of all its partitions.
cdef class AbortedList:
    cdef AbortedTransaction* items
    cdef int32_t count
    cdef int32_t capacity
    cdef int add(self, const AbortedEntry* entry) except -1


# Add to *into what the reader of *found from `offset` on must know; `slot` and `end` are those that it was found by.
# *was_read: files were looked at, and the caller makes sure that the slot's segment_version is still the same after it (a
# file that is not there may have been deleted meanwhile).
cdef FindStatus find_aborted(
    LogFiles log, int64_t offset, const SlotData* slot, const LogEnd* end, const FoundRange* found, AbortedList into,
    bint* was_read
) except *
