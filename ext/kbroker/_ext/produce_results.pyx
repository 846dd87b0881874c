"""What an io worker has for a network process at the end of a turn: results, with their texts, and slots to wake.

``produce_engine`` owns the bundles and sends them. Per result in the steady state: no allocation.
"""
import struct

from libc.stdint cimport uint8_t, uint16_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

cdef enum:
    ERROR_TEXT_MAX = 1000


cdef ProduceResult* new_result(ResultBundle* bundle, int32_t slot) except NULL:
    cdef uint32_t capacity
    cdef ProduceResult* items
    cdef int32_t* slots
    if bundle.count == bundle.capacity:
        capacity = max(<uint32_t>64, bundle.capacity * 2)
        items = <ProduceResult*>realloc(bundle.items, capacity * sizeof(ProduceResult))
        if items == NULL:
            raise MemoryError()
        bundle.items = items
        slots = <int32_t*>realloc(bundle.slots, capacity * sizeof(int32_t))
        if slots == NULL:
            raise MemoryError()
        bundle.slots = slots
        bundle.capacity = capacity
    bundle.slots[bundle.count] = slot
    bundle.count += 1
    return &bundle.items[bundle.count - 1]


cdef int add_text(ResultBundle* bundle, ProduceResult* result, object text) except -1:
    """Append the UTF-8 of an error text; it follows the structs."""
    cdef bytes data = text.encode()[:ERROR_TEXT_MAX].decode("utf-8", "ignore").encode()
    result.error_text_size = <uint16_t>len(data)
    return add_bytes(bundle, data)


cdef int add_indexes(ResultBundle* bundle, ProduceResult* result, list indexes) except -1:
    """Append them behind the result's text."""
    result.more_bad_records = <uint32_t>len(indexes)
    return add_bytes(bundle, struct.pack(f"={len(indexes)}i", *indexes))


cdef int add_bytes(ResultBundle* bundle, bytes data) except -1:
    cdef uint32_t size = <uint32_t>len(data)
    cdef uint32_t capacity
    cdef uint8_t* grown
    if bundle.texts_size + size > bundle.texts_capacity:
        capacity = 2 * (bundle.texts_size + size)
        grown = <uint8_t*>realloc(bundle.texts, capacity)
        if grown == NULL:
            raise MemoryError()
        bundle.texts = grown
        bundle.texts_capacity = capacity
    memcpy(bundle.texts + bundle.texts_size, <const char*>data, size)
    bundle.texts_size += size
    return 0


cdef int add_wake(WakeBundle* wakes, int32_t slot) except -1:
    cdef uint32_t capacity
    cdef int32_t* grown
    if wakes.count == wakes.capacity:
        capacity = max(<uint32_t>16, wakes.capacity * 2)
        grown = <int32_t*>realloc(wakes.slots, capacity * sizeof(int32_t))
        if grown == NULL:
            raise MemoryError()
        wakes.slots = grown
        wakes.capacity = capacity
    wakes.slots[wakes.count] = slot
    wakes.count += 1
    return 0
