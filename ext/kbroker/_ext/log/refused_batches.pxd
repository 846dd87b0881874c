# Batches of idempotent producers that were refused, and the later ones that were sent behind them. See refused_batches.pyx.
from libc.stdint cimport int16_t, int64_t, uint8_t


cdef class RefusedBatches:
    cdef readonly int count      # 0, as it nearly always is: there is nothing to look up
    cdef dict _producers         # (place, producer id) -> (epoch, base sequence, error code, when to forget it), oldest first
    cdef int64_t _keep_ms
    # A batch was refused with this error, which its client repeats; does nothing if it has no producer id.
    cdef int note(self, object place, const uint8_t* batch, Py_ssize_t size, int16_t error_code) except -1
    # The error for a batch that comes too early; 0: it does not.
    cdef int16_t error_of(self, object place, const uint8_t* batch, Py_ssize_t size) except -1
    # A batch of the producer was taken: the refused one, an earlier one, or one that may follow without it.
    cdef int forget(self, object place, const uint8_t* batch, Py_ssize_t size) except -1


# Whether it is a batch with a producer id and sequence numbers. Does not look at the checksum.
cdef bint has_sequence(const uint8_t* batch, Py_ssize_t size) noexcept nogil
