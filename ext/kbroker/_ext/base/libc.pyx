"""Calls of the C library that Python lacks; ctypes would take half a MiB."""
from cpython.exc cimport PyErr_SetFromErrno

cdef extern from *:
    """
    #include <malloc.h>
    static int keep_blocks_of(int kept_bytes, int block_bytes_max) {
    #ifdef M_MMAP_THRESHOLD
        return mallopt(M_MMAP_THRESHOLD, block_bytes_max) && mallopt(M_TRIM_THRESHOLD, kept_bytes);
    #else
        return 0;
    #endif
    }
    static int share_heap_of_all(void) {
    #ifdef M_ARENA_MAX
        return mallopt(M_ARENA_MAX, 1);
    #else
        return 0;
    #endif
    }
    """
    bint keep_blocks_of(int kept_bytes, int block_bytes_max) nogil
    bint share_heap_of_all() nogil

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, ...)
    enum:
        PR_SET_PDEATHSIG

cdef extern from "<unistd.h>" nogil:
    int c_syncfs "syncfs"(int fd)


def keep_blocks(int kept_bytes, int block_bytes_max) -> bool:
    """Have malloc keep ``kept_bytes`` at the end of the heap, and map only blocks above ``block_bytes_max`` separately.

    False: this C library knows no such thing.
    """
    return keep_blocks_of(kept_bytes, block_bytes_max)


def share_heap() -> bool:
    """Have threads that begin from now on share malloc's heap, instead of one for each. False: as above."""
    return share_heap_of_all()


def signal_at_parents_death(int number) -> None:
    """Have the kernel send this process a signal when its parent dies; prctl(2). Raises OSError."""
    if prctl(PR_SET_PDEATHSIG, <unsigned long>number, 0, 0, 0) != 0:
        PyErr_SetFromErrno(OSError)


def syncfs(int fd) -> None:
    """Sync the file system of an open file; syncfs(2). Raises OSError."""
    cdef int failed
    with nogil:
        failed = c_syncfs(fd)
    if failed != 0:
        PyErr_SetFromErrno(OSError)
