# Maps the hash of a key to its last offset: 24 bytes per entry, as keys are not kept.
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef struct MapEntry:
    uint64_t[2] hash
    int64_t next_offset          # offset + 1, so that zeroed memory is an empty map


cdef class OffsetMap:
    cdef MapEntry* entries
    cdef uint64_t[2] secret      # the key of the hash, so that no client can make two keys collide
    cdef readonly int64_t capacity
    cdef readonly int64_t limit          # maximum number of entries: capacity times the load factor
    cdef readonly int64_t count
    cdef readonly int64_t latest_offset  # the map covers all offsets up to this one; -1: it is empty
    # False: the key is new and there is no room for it.
    cdef bint put(self, const uint8_t* key, Py_ssize_t size, int64_t offset) noexcept nogil
    # The last offset of the key; -1 if it is not in the map.
    cdef int64_t get(self, const uint8_t* key, Py_ssize_t size) noexcept nogil
    cdef MapEntry* find(self, const uint8_t* key, Py_ssize_t size, uint64_t* hash) noexcept nogil
    cdef void ask_for_huge_pages(self) noexcept nogil
