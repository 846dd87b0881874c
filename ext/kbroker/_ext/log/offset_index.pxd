# The two sparse indexes of a segment, mapped into memory: .index (relative offset i32, position i32) and .timeindex
# (timestamp i64, relative offset i32), big-endian, byte for byte as in Apache Kafka. See docs/formats/segment.md.
#
# INVARIANT: a store never hits a hole (SIGBUS on a full disk): the file grows by posix_fallocate before the map does.
# INVARIANT: a file that another process may have mapped never shrinks: seal() writes a trimmed copy and renames it.
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef enum IndexAppend:
    INDEX_APPENDED = 0
    INDEX_FULL = 1        # segment.index.bytes reached: the log must roll
    INDEX_NO_ROOM = 2     # the disk is full; the entry is omitted, so lookups walk a little further


# A file of fixed-size entries. Only the owner of the log writes it.
cdef class MappedIndex:
    cdef uint8_t* data               # NULL while nothing is mapped
    cdef Py_ssize_t mapped_bytes
    cdef Py_ssize_t bytes_max        # a multiple of entry_size
    cdef Py_ssize_t entry_size
    cdef readonly Py_ssize_t entry_count
    cdef readonly int64_t base_offset
    cdef readonly str path
    cdef int open_file(self, Py_ssize_t entry_size, Py_ssize_t bytes_max) except -1
    cdef int reserve(self) except -1           # make room for one more entry; an IndexAppend
    cdef int grow(self, Py_ssize_t size) except -1
    cdef int drop_from(self, Py_ssize_t keep) except -1
    cdef bint is_full(self) noexcept nogil


cdef class OffsetIndex(MappedIndex):
    cdef int append(self, int64_t offset, int64_t position) except -1
    cdef void find(self, int64_t target, int64_t* offset, int64_t* position) noexcept nogil


cdef class TimeIndex(MappedIndex):
    cdef int64_t last_timestamp
    cdef int64_t last_offset
    cdef Py_ssize_t count_entries(self) noexcept nogil
    cdef int remember_last(self) except -1
    cdef int maybe_append(self, int64_t timestamp, int64_t offset, bint final) except -1


# A read-only map of an .index file for processes that do not own the log. It is as long as the file was when it was
# opened; entries that the owner has not written yet are zero and end the search.
cdef class OffsetIndexReader:
    cdef const uint8_t* data
    cdef Py_ssize_t mapped_bytes
    cdef readonly int64_t base_offset
    cdef readonly str path
    # The last entry whose offset is <= target: its offset and the position of the batch that ends with that offset.
    # (base_offset, 0) if there is none. The caller walks batch headers from there.
    cdef void find(self, int64_t target, int64_t* offset, int64_t* position) noexcept nogil
