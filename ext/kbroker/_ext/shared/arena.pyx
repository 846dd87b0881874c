"""The request arena: socket bytes are received into its blocks, io workers append from them.

A buddy allocator with 4 KiB pages. Its bookkeeping is private to the owning network process; the region itself is
shared, and io workers map it for reading only. Pages are touched only when bytes arrive, so an arena costs memory only
for what was really received. Freed blocks keep their pages, because a page fault costs more than the copy into it;
``trim`` gives them back after a burst.

The region begins with a small part, which gives out blocks of up to 64 KiB only. They come from there as long as there
are any: large requests cannot take the memory of small ones, and small ones do not break the large part into pieces.
"""
from libc.errno cimport errno
from libc.stdlib cimport calloc, free, malloc

from kbroker._ext.base.buffers cimport region_bytes

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* address, size_t length, int advice)
    int mprotect(void* address, size_t length, int protection)
    int MADV_REMOVE
    int PROT_READ

cdef enum:
    PAGE_SHIFT = 12
    FREE_FLAG = 0x80
    ORDER_MASK = 0x3F
    NO_PAGE = -1
    SMALL_ORDER = 4  # 64 KiB
    # The bytes that trim leaves in place.
    KEEP_BYTES = 4194304

PAGE_SIZE = 1 << PAGE_SHIFT


# The smallest order whose blocks hold `capacity` bytes.
cdef inline int order_for(int64_t capacity) noexcept nogil:
    cdef int order = 0
    while ((<int64_t>1) << (order + PAGE_SHIFT)) < capacity:
        order += 1
    return order


cdef class Arena:
    """Blocks of ``region``, a writable buffer, whose first ``small_bytes`` are the small part. ``largest`` is the largest
    block that must fit, in bytes.
    """

    def __cinit__(self, region, int64_t largest, int64_t small_bytes=0):
        cdef Py_ssize_t region_size = 0
        cdef uint8_t* base = region_bytes(region, &region_size)
        cdef int64_t small_pages = (small_bytes >> (PAGE_SHIFT + SMALL_ORDER)) << SMALL_ORDER
        cdef int max_order = order_for(largest)
        cdef int64_t pages = ((region_size >> PAGE_SHIFT) - small_pages) >> max_order << max_order
        if pages <= 0 or max_order > 31:
            raise ValueError(f"an arena of {region_size} bytes cannot hold a block of {largest}")
        self._region = region
        self.base = base
        self.small_bytes = small_pages << PAGE_SHIFT
        self.small_max = (<int64_t>1) << (PAGE_SHIFT + SMALL_ORDER) if small_pages else 0
        self.size = (small_pages + pages) << PAGE_SHIFT
        self._state = <uint8_t*>calloc(small_pages + pages, 1)
        self._next = <int32_t*>malloc((small_pages + pages) * sizeof(int32_t))
        self._previous = <int32_t*>malloc((small_pages + pages) * sizeof(int32_t))
        if self._state == NULL or self._next == NULL or self._previous == NULL:
            raise MemoryError()
        self.fill(&self._small, 0, small_pages, SMALL_ORDER if small_pages else -1)
        self.fill(&self._large, small_pages, pages, max_order)

    cdef void fill(self, Part* part, int64_t first, int64_t pages, int max_order) noexcept:
        """Make a part of free blocks of the largest order; they are taken from the front."""
        cdef int order
        cdef int64_t page = first + pages
        part.first = first
        part.max_order = max_order
        for order in range(32):
            part.heads[order] = NO_PAGE
        while page > first:
            page -= (<int64_t>1) << max_order
            self.push_free(part, <int32_t>page, max_order)

    def __dealloc__(self):
        cdef Block* block = self._spare
        cdef Block* following
        while block != NULL:
            following = block.next_free
            free(block)
            block = following
        free(self._state)
        free(self._next)
        free(self._previous)

    cdef Block* acquire(self, int64_t capacity, bint from_large) noexcept nogil:
        """A block of at least ``capacity`` bytes with one reference; NULL when the arena is full.

        from_large: whether it may come from the large part; a small one does when the small part is full.
        """
        cdef int order = order_for(capacity)
        cdef int64_t page = self.take(&self._small, order)
        cdef Block* block = self._spare
        if page < 0 and from_large:
            page = self.take(&self._large, order)
        if page < 0:
            return NULL
        if block != NULL:
            self._spare = block.next_free
        else:
            block = <Block*>malloc(sizeof(Block))
            if block == NULL:
                self.give_back(page, order)
                return NULL
        self._acquired += 1
        if (page << PAGE_SHIFT) + ((<int64_t>1) << (order + PAGE_SHIFT)) > self._touched:
            self._touched = (page << PAGE_SHIFT) + ((<int64_t>1) << (order + PAGE_SHIFT))
        block.offset = page << PAGE_SHIFT
        block.capacity = (<int64_t>1) << (order + PAGE_SHIFT)
        block.refs = 1
        block.next_free = NULL
        self.allocated += block.capacity
        return block

    cdef void release(self, Block* block) noexcept nogil:
        """Drop one reference; the last one frees the block."""
        cdef int order
        block.refs -= 1
        if block.refs > 0:
            return
        order = order_for(block.capacity)
        self.allocated -= block.capacity
        self.freed_total += 1
        self.give_back(block.offset >> PAGE_SHIFT, order)
        block.next_free = self._spare
        self._spare = block

    def trim(self):
        """Give pages back when nothing was allocated since the last call. True when it did."""
        cdef bint quiet = self.allocated == 0 and self._acquired == 0
        self._acquired = 0
        if not quiet or self._touched <= KEEP_BYTES:
            return False
        madvise(self.base + KEEP_BYTES, <size_t>(self._touched - KEEP_BYTES), MADV_REMOVE)
        self._touched = KEEP_BYTES
        return True

    cdef int64_t take(self, Part* part, int order) noexcept nogil:
        """The first page of a block of ``order``, splitting a larger one if need be; -1 when there is none."""
        cdef int found = order
        cdef int32_t page
        while found <= part.max_order and part.heads[found] == NO_PAGE:
            found += 1
        if found > part.max_order:
            return -1
        page = part.heads[found]
        self.unlink_free(part, page, found)
        while found > order:
            found -= 1
            self.push_free(part, page + (1 << found), found)
        self._state[page] = <uint8_t>order
        return page

    cdef void give_back(self, int64_t page, int order) noexcept nogil:
        """Free a block and merge it with its buddy while that is free too."""
        cdef Part* part = &self._small if page < self._large.first else &self._large
        cdef int64_t buddy
        while order < part.max_order:
            buddy = ((page - part.first) ^ ((<int64_t>1) << order)) + part.first
            if self._state[buddy] != (FREE_FLAG | order):
                break
            self.unlink_free(part, <int32_t>buddy, order)
            if buddy < page:
                page = buddy
            order += 1
        self.push_free(part, <int32_t>page, order)

    cdef void push_free(self, Part* part, int32_t page, int order) noexcept nogil:
        self._state[page] = <uint8_t>(FREE_FLAG | order)
        self._previous[page] = NO_PAGE
        self._next[page] = part.heads[order]
        if part.heads[order] != NO_PAGE:
            self._previous[part.heads[order]] = page
        part.heads[order] = page

    cdef void unlink_free(self, Part* part, int32_t page, int order) noexcept nogil:
        if self._previous[page] != NO_PAGE:
            self._next[self._previous[page]] = self._next[page]
        else:
            part.heads[order] = self._next[page]
        if self._next[page] != NO_PAGE:
            self._previous[self._next[page]] = self._previous[page]
        self._state[page] = 0


def forbid_writes(region):
    """Map a region for reading only in this process. A write that is not meant ends it; it harms no request."""
    cdef Py_ssize_t size
    cdef uint8_t* start = region_bytes(region, &size)
    if mprotect(start, size, PROT_READ) != 0:
        raise OSError(errno, "mprotect")


cdef class ArenaProbe:
    """Python face of an Arena for tests: blocks are named by their offset."""

    cdef readonly Arena arena
    cdef dict _blocks

    def __init__(self, arena):
        self.arena = arena
        self._blocks = {}

    def acquire(self, int64_t capacity, bint from_large=True):
        """(offset, capacity) of a new block, or None when the arena is full."""
        cdef Block* block = self.arena.acquire(capacity, from_large)
        if block == NULL:
            return None
        self._blocks[block.offset] = <size_t>block
        return block.offset, block.capacity

    def release(self, int64_t offset):
        """Free the block at ``offset``."""
        self.arena.release(<Block*><size_t>self._blocks.pop(offset))
