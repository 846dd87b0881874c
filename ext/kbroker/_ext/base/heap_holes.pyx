"""Fills the holes of Python's heap, so that what is allocated next gets pages of its own."""
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_RawFree, PyMem_RawMalloc

cdef enum:
    # Of CPython's allocator: blocks up to 512 bytes, by 16, in pools of one size each. A pool begins with a header.
    SIZE_STEP = 16
    SIZE_MAX = 512
    POOL_BYTES = 16384 - 48
    # BOUND: holes of one size. With more, or with another allocator than CPython's own, that size is left as it is.
    BLOCKS_MAX = 32768


def fill_holes() -> int:
    """Fill the holes of partly used pools; returns how many bytes that took.

    They stay filled for the life of the process. Pools and larger blocks that are free as a whole stay free.
    """
    cdef size_t size, filled = 0
    cdef char** blocks = <char**>PyMem_RawMalloc(BLOCKS_MAX * sizeof(char*))
    if blocks == NULL:
        raise MemoryError()
    for size in range(SIZE_STEP, SIZE_MAX + 1, SIZE_STEP):
        filled += size * fill(size, blocks)
    PyMem_RawFree(blocks)
    return filled


cdef size_t fill(size_t size, char** blocks) noexcept:
    """Allocate blocks until they come from a pool that was free; give that one back. Returns how many are kept."""
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
