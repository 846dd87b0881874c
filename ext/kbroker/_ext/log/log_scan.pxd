# What others read of an entry in the way the walk does.
from libc.stdint cimport int32_t, uint8_t


# The coordinator epoch of a transaction marker, -1 when the batch holds none (it was cleaned, or is another record).
# *is_abort says which of the two it is.
cdef int32_t marker_epoch(const uint8_t* p, Py_ssize_t size, bint* is_abort) noexcept nogil
