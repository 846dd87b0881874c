# What an io worker has for the network processes at the end of a turn. See produce_results.pyx.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.descriptors cimport ProduceResult
from kbroker._ext.lane cimport Lane


cdef struct ResultBundle:
    ProduceResult* items
    int32_t* slots           # of each result, for a sync that fails after the append
    uint32_t count
    uint32_t capacity
    uint8_t* texts
    uint32_t texts_size
    uint32_t texts_capacity


cdef struct WakeBundle:
    int32_t* slots
    uint32_t count
    uint32_t capacity


cdef class TurnResults:
    cdef int network_count
    cdef ResultBundle* bundles    # by index of the network process
    cdef WakeBundle* wakes
    cdef list touched             # appenders with something to publish
    cdef bint called_out          # Python code of the process ran since `IoLoop.turns` began
    # Wake the network processes of a mask because of a slot.
    cdef int wake(self, int32_t slot, uint64_t mask) except -1
    # Send a network process its results and wake-ups; False when its lane is full.
    cdef bint send(self, Lane lane) except -1
    cdef bint send_results(self, Lane lane) except -1
    cdef bint send_wakes(self, Lane lane) except -1
    # Drop the results for a network process that is gone.
    cdef void forget(self, int network_index) noexcept
    # A sync failed: what was appended to this slot in this turn is not acknowledged.
    cdef void fail(self, int32_t slot) noexcept
    cdef bint is_empty(self) noexcept


cdef ProduceResult* new_result(ResultBundle* bundle, int32_t slot) except NULL
# The UTF-8 of an error text, behind the structs.
cdef int add_text(ResultBundle* bundle, ProduceResult* result, object text) except -1
# The indexes of more bad records, behind its text.
cdef int add_indexes(ResultBundle* bundle, ProduceResult* result, list indexes) except -1
