"""The standing partitions of followers' sessions, which have nothing new.

A follower's session may have thousands of partitions, most of them idle, and sends requests all the time. What has
nothing new is taken out of the session's order of service and stands here, with this process's bit in the slot's mask, until
the slot changes. So a request looks only at partitions of which something is known to be new, or not yet told.

INVARIANT: the bit is set before the slot is read for the last time, as for requests that are parked.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from kbroker._ext.base.growing cimport grow

cdef enum:
    NONE = -1
    FIRST_CAPACITY = 64


cdef class StandingWaits:
    """One per FetchEngine, whose sessions add and remove their partitions."""

    def __cinit__(self, int32_t slot_count):
        self.slot_count = slot_count
        self.free_node = NONE

    def __dealloc__(self):
        free(self.slot_heads)
        free(self.nodes)

    cdef int32_t add(self, void* session, int32_t entry, int32_t slot) except -1:
        cdef int32_t number, capacity
        cdef StandingWait* node
        if self.slot_heads == NULL:  # nobody has followed before
            self.slot_heads = <int32_t*>malloc(<size_t>self.slot_count * sizeof(int32_t))
            if self.slot_heads == NULL:
                raise MemoryError
            for number in range(self.slot_count):
                self.slot_heads[number] = NONE
        if self.free_node == NONE:
            # BOUND: a node for each partition of a follower's session.
            capacity = <int32_t>grow(
                &self.nodes, self.capacity, <int64_t>self.capacity + 1, sizeof(StandingWait), FIRST_CAPACITY)
            for number in range(self.capacity, capacity):
                self.nodes[number].next_of_slot = number + 1
            self.nodes[capacity - 1].next_of_slot = NONE
            self.free_node = self.capacity
            self.capacity = capacity
        number = self.free_node
        node = &self.nodes[number]
        self.free_node = node.next_of_slot
        node.session = session
        node.entry = entry
        node.slot = slot
        node.previous_of_slot = NONE
        node.next_of_slot = self.slot_heads[slot]
        if node.next_of_slot != NONE:
            self.nodes[node.next_of_slot].previous_of_slot = number
        self.slot_heads[slot] = number
        self.count += 1
        return number

    cdef void remove(self, int32_t number) noexcept:
        cdef StandingWait* node = &self.nodes[number]
        if node.previous_of_slot == NONE:
            self.slot_heads[node.slot] = node.next_of_slot
        else:
            self.nodes[node.previous_of_slot].next_of_slot = node.next_of_slot
        if node.next_of_slot != NONE:
            self.nodes[node.next_of_slot].previous_of_slot = node.previous_of_slot
        node.session = NULL
        node.next_of_slot = self.free_node
        self.free_node = number
        self.count -= 1

    cdef int32_t head(self, int32_t slot) noexcept:
        return NONE if self.slot_heads == NULL else self.slot_heads[slot]
