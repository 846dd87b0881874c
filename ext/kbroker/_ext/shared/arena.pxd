# Buddy allocator over a network process's request arena. Only that process allocates; io workers read and patch.
from libc.stdint cimport int32_t, int64_t, uint8_t


# A block of the arena and its users: the connection that receives into it, and each request whose bytes are in it.
# Freed when refs reaches 0.
cdef struct Block:
    int64_t offset
    int64_t capacity
    int32_t refs
    Block* next_free


# A range of pages with its own free blocks.
cdef struct Part:
    int64_t first                # its first page
    int max_order                # of its largest blocks; -1: it has none
    int32_t heads[32]            # free lists by order


cdef class Arena:
    cdef object _region
    cdef uint8_t* base
    cdef readonly int64_t size
    cdef readonly int64_t allocated
    cdef readonly int64_t freed_total   # blocks, ever
    cdef int64_t _acquired       # blocks since the last trim
    cdef int64_t _touched        # first byte that was never part of a block since the last trim
    cdef Part _small
    cdef Part _large
    cdef readonly int64_t small_bytes   # the small part: the first bytes of the region
    cdef readonly int64_t small_max     # the largest block it gives out; 0 when there is no small part
    cdef uint8_t* _state         # per 4 KiB page: order of the block that starts there, with flags
    cdef int32_t* _next          # free lists, by page
    cdef int32_t* _previous
    cdef Block* _spare
    cdef Block* acquire(self, int64_t capacity, bint from_large) noexcept nogil
    cdef void release(self, Block* block) noexcept nogil
    cdef void fill(self, Part* part, int64_t first, int64_t pages, int max_order) noexcept
    cdef int64_t take(self, Part* part, int order) noexcept nogil
    cdef void give_back(self, int64_t page, int order) noexcept nogil
    cdef void push_free(self, Part* part, int32_t page, int order) noexcept nogil
    cdef void unlink_free(self, Part* part, int32_t page, int order) noexcept nogil
