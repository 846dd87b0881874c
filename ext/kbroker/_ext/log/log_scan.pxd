# Reads transaction markers for other modules.
from libc.stdint cimport int32_t, uint8_t


# The coordinator epoch of a transaction marker; -1 if the batch has no marker (it was cleaned, or is another control
# record). *is_abort: whether it is an abort or a commit marker.
cdef int32_t marker_epoch(const uint8_t* p, Py_ssize_t size, bint* is_abort) noexcept nogil
