# Text from clients and other processes, as bytes.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef inline bint is_ascii(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    # Eight bytes at a time: most texts are ids of a few dozen bytes. A null text (size -1) is ASCII.
    cdef uint64_t word, seen = 0
    while size >= 8:
        memcpy(&word, data, 8)
        seen |= word
        data += 8
        size -= 8
    while size > 0:
        seen |= data[0]
        data += 1
        size -= 1
    return seen & <uint64_t>0x8080808080808080 == 0
