# Buddy allocator over a network process's request arena. Only that process allocates; io workers read and patch.
from libc.stdint cimport int32_t, int64_t, uint8_t


# A block of the arena and who still needs it: the connection that receives into it, and each request whose bytes lie
# in it. Freed when refs reaches 0.
cdef struct Block:
    int64_t offset
    int64_t capacity
    int32_t refs
    Block* next_free


cdef class Arena:
    cdef object _region
    cdef uint8_t* base
    cdef readonly int64_t size
    cdef readonly int64_t allocated
    cdef readonly int64_t freed_total   # blocks, ever
    cdef int64_t _acquired       # blocks since the last trim
    cdef int64_t _touched        # first byte that was never part of a block since the last trim
    cdef int _max_order
    cdef uint8_t* _state         # per 4 KiB page: order of the block that starts there, with flags
    cdef int32_t* _next          # free lists, by page
    cdef int32_t* _previous
    cdef int32_t _heads[32]
    cdef Block* _spare
    cdef Block* acquire(self, int64_t capacity) noexcept nogil
    cdef void release(self, Block* block) noexcept nogil
    cdef int64_t take(self, int order) noexcept nogil
    cdef void give_back(self, int64_t page, int order) noexcept nogil
    cdef void push_free(self, int32_t page, int order) noexcept nogil
    cdef void unlink_free(self, int32_t page, int order) noexcept nogil
