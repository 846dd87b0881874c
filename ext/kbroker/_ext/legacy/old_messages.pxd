# Messages of formats 0 and 1 as objects, for the clients of 0.8.
from libc.stdint cimport int64_t


cdef class OldMessage:
    cdef object _key                 # bytes or None
    cdef object _payload
    cdef readonly int64_t timestamp  # -1 in format 0
    cdef int64_t _checksum           # -1: not computed yet
    cdef readonly int magic
    cdef readonly int attributes
    cdef readonly bint is_valid


cdef class MessageAndOffset:
    cdef readonly OldMessage message
    cdef readonly int64_t offset
