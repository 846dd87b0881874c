# What an io worker has for a network process at the end of a turn. See produce_results.pyx.
from libc.stdint cimport int32_t, uint8_t, uint32_t

from kbroker._ext.descriptors cimport ProduceResult


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


cdef ProduceResult* new_result(ResultBundle* bundle, int32_t slot) except NULL
# The UTF-8 of an error text, behind the structs.
cdef int add_text(ResultBundle* bundle, ProduceResult* result, object text) except -1
# The indexes of more bad records, behind its text.
cdef int add_indexes(ResultBundle* bundle, ProduceResult* result, list indexes) except -1
cdef int add_wake(WakeBundle* wakes, int32_t slot) except -1
