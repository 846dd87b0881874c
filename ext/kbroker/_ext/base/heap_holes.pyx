"""Fills the holes of the heap, so that new allocations get pages of their own.

Python has blocks of up to 512 bytes in pools of one size each, and takes the others from the C library.
"""
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdlib cimport free, malloc

cdef enum:
    SIZE_STEP = 16
    SIZE_MAX = 512
    POOL_BYTES = 16384 - 48      # without its header
    # Larger than holes, and smaller than what the C library maps separately.
    LARGE_BYTES = 120 << 10
    LARGE_HOLE_BYTES = 64 << 10
    # BOUND: holes of one size, and bytes of holes in the C library's heap. If there are more, the allocator is not the
    # expected one, which allocates from the end of the heap last.
    BLOCKS_MAX = 32768
    HEAP_HOLES_BYTES_MAX = 8 << 20


def fill_holes() -> int:
    """Fill the holes between blocks that are in use; returns how many bytes that took.

    They stay filled for the life of the process. Pools that are free as a whole, and the end of the heap, stay free.
    """
    cdef size_t size, filled = 0
    cdef char** blocks = <char**>malloc(BLOCKS_MAX * sizeof(char*))
    if blocks == NULL:
        raise MemoryError()
    for size in range(SIZE_STEP, SIZE_MAX + 1, SIZE_STEP):
        filled += size * fill_pools(size, blocks)
    filled += fill_heap(blocks)
    free(blocks)
    return filled


cdef size_t fill_pools(size_t size, char** blocks) noexcept:
    """Allocate blocks until one comes from a free pool; free that one. Returns the number of blocks kept."""
    cdef size_t count = 0, run = 0, kept = 0
    while count < BLOCKS_MAX:
        blocks[count] = <char*>PyMem_Malloc(size)
        if blocks[count] == NULL:
            break
        run = run + 1 if count and blocks[count] == blocks[count - 1] + size else 1
        count += 1
        if run == POOL_BYTES // size:
            kept = count - run
            break
    while count > kept:
        count -= 1
        PyMem_Free(blocks[count])
    return kept


cdef size_t fill_heap(char** blocks) noexcept:
    """The same for the C library: everything below a large block, which is at the end of the heap, was a hole."""
    cdef:
        size_t size = LARGE_HOLE_BYTES, count, filled = 0
        char* end = <char*>malloc(LARGE_BYTES)
    while end != NULL and size >= SIZE_STEP:
        count = 0
        while True:
            if count == BLOCKS_MAX or count * size >= HEAP_HOLES_BYTES_MAX:
                while count:
                    count -= 1
                    free(blocks[count])
                size = 0
                break
            blocks[count] = <char*>malloc(size)
            if blocks[count] == NULL or blocks[count] > end:
                free(blocks[count])
                break
            count += 1
        filled += size * count
        size -= min(max(size // 8, <size_t>SIZE_STEP), size)
    free(end)
    return filled
