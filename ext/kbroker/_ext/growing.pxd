# Bytes that grow at their end.
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport uint8_t


cdef struct Bytes:
    uint8_t* data                # of PyMem; whoever has it frees it
    Py_ssize_t size
    Py_ssize_t capacity


# Have room for so many more, and for `least` in all; what `data` points to may move.
cdef inline int reserve(Bytes* bytes, Py_ssize_t more, Py_ssize_t least=4096) except -1:
    cdef Py_ssize_t capacity = bytes.capacity
    cdef void* grown
    if bytes.size + more <= capacity:
        return 0
    capacity = max(2 * capacity, bytes.size + more, least)
    grown = PyMem_Realloc(bytes.data, <size_t>capacity)
    if grown == NULL:
        raise MemoryError
    bytes.data = <uint8_t*>grown
    bytes.capacity = capacity
    return 0
