# From the hash of a key to the last offset that has it: 24 bytes an entry, no key is kept (KIP-58).
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef struct MapEntry:
    uint64_t[2] hash
    int64_t next_offset          # offset + 1, so that memory of zeros is an empty map


cdef class OffsetMap:
    cdef MapEntry* entries
    cdef uint64_t[2] secret      # of the hash: nobody outside can make two keys collide
    cdef readonly int64_t capacity
    cdef readonly int64_t limit          # entries it takes: capacity times the load factor
    cdef readonly int64_t count
    cdef readonly int64_t latest_offset  # everything up to here is in the map; -1 of an empty one
    # False: there is no room for a key that is not in it.
    cdef bint put(self, const uint8_t* key, Py_ssize_t size, int64_t offset) noexcept nogil
    # The last offset of the key, -1 when it is not in the map.
    cdef int64_t get(self, const uint8_t* key, Py_ssize_t size) noexcept nogil
    cdef MapEntry* find(self, const uint8_t* key, Py_ssize_t size, uint64_t* hash) noexcept nogil
    cdef void ask_for_huge_pages(self) noexcept nogil
