# Batches that an io worker cannot append yet. See held_batches.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.shared.descriptors cimport ProduceDescriptor


cdef class HeldBatch:
    """A batch that waits for a verification or for its log to be opened."""
    cdef ProduceDescriptor descriptor
    cdef int network_index
    cdef int16_t producer_epoch
    cdef int64_t producer_id         # -1: none
    cdef int64_t verification
    cdef int64_t deadline_ms         # monotonic


cdef class Question:
    """A verification requested from a transaction coordinator, and the batches that wait for it, in order."""
    cdef tuple key                   # slot, producer id
    cdef int16_t producer_epoch
    cdef str transactional_id
    cdef int16_t api_version
    cdef int64_t give_up_ms          # monotonic: it is not requested again after that
    cdef list batches


cdef class EarlyBatches:
    cdef readonly dict by_slot       # slot -> [HeldBatch], in order
    cdef readonly int count
    cdef list _left                  # bytes that may still be kept, by network process
    cdef bint keep(self, int network_index, const ProduceDescriptor* d, const uint8_t* batch) except *
    cdef list take(self, int32_t slot)
    cdef list expired(self, int64_t now)
    cdef int drop(self, int network_index) except -1
    cdef int forget(self, HeldBatch held) except -1
    cdef int put_back(self, int32_t slot, list left) except -1


cdef HeldBatch held_batch(int network_index, const ProduceDescriptor* d, const uint8_t* batch)
cdef int64_t monotonic_ms() noexcept nogil
