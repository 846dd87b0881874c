"""The fetch purgatory of a network process: parked requests by slot and by deadline.

INVARIANT: a parked request is found by its token, in the heap, and in the list of each of its slots. Only FetchPurgatory
adds it to them and removes it from them.
"""

from libc.stdlib cimport free, malloc

from kbroker._ext.base.growing cimport grow

cdef enum:
    NONE = -1
    FIRST_CAPACITY = 64


cdef class ParkedFetch:
    """A request that waits for bytes or its deadline. Created and completed by FetchEngine."""


cdef class FetchPurgatory:
    """Holds the parked requests. FetchEngine decides when one is complete."""

    def __cinit__(self, int32_t slot_count):
        cdef int32_t slot
        self.by_token = {}
        self.free_node = NONE
        self.slot_count = slot_count
        self.slot_heads = <int32_t*>malloc(<size_t>slot_count * sizeof(int32_t))
        if self.slot_heads == NULL:
            raise MemoryError
        for slot in range(slot_count):
            self.slot_heads[slot] = NONE

    def __dealloc__(self):
        free(self.heap)
        free(self.slot_heads)
        free(self.nodes)

    def __len__(self):
        return len(self.by_token)

    cdef ParkedFetch enter(self, FetchSession session, FetchTerms* terms, int64_t deadline_ms):
        cdef ParkedFetch waiting = ParkedFetch.__new__(ParkedFetch)
        if terms.token in self.by_token:
            raise ValueError(f"token {terms.token} is parked already")
        waiting.terms = terms[0]
        waiting.session = session
        waiting.deadline_ms = deadline_ms
        waiting.heap_index = NONE
        waiting.first_node = NONE
        self.heap_push(waiting)
        self.by_token[terms.token] = waiting
        session.parked = waiting
        return waiting

    cdef WaitNode* wait_for(self, ParkedFetch waiting, int32_t entry, int32_t slot) except NULL:
        cdef int32_t number = self.take_node()
        cdef WaitNode* node = &self.nodes[number]
        node.request = <void*>waiting
        node.entry = entry
        node.slot = slot
        node.counted = 0
        node.next_of_request = waiting.first_node
        waiting.first_node = number
        node.previous_of_slot = NONE
        node.next_of_slot = self.slot_heads[slot]
        if node.next_of_slot != NONE:
            self.nodes[node.next_of_slot].previous_of_slot = number
        self.slot_heads[slot] = number
        return node

    cdef ParkedFetch find(self, uint64_t token):
        return self.by_token.get(token)

    cdef ParkedFetch first_due(self, int64_t now_ms):
        if self.heap_count > 0 and (<ParkedFetch>self.heap[0]).deadline_ms <= now_ms:
            return <ParkedFetch>self.heap[0]
        return None

    cdef int64_t next_deadline_ms(self) noexcept:
        return (<ParkedFetch>self.heap[0]).deadline_ms if self.heap_count > 0 else NONE

    cdef int leave(self, ParkedFetch waiting) except -1:
        cdef int32_t number = waiting.first_node
        cdef int32_t following
        cdef WaitNode* node
        while number != NONE:
            node = &self.nodes[number]
            following = node.next_of_request
            if node.previous_of_slot == NONE:
                self.slot_heads[node.slot] = node.next_of_slot
            else:
                self.nodes[node.previous_of_slot].next_of_slot = node.next_of_slot
            if node.next_of_slot != NONE:
                self.nodes[node.next_of_slot].previous_of_slot = node.previous_of_slot
            node.next_of_request = self.free_node
            self.free_node = number
            number = following
        waiting.first_node = NONE
        self.heap_remove(waiting)
        waiting.session.parked = None
        self.by_token.pop(waiting.terms.token, None)
        return 0

    cdef int32_t take_node(self) except -1:
        cdef int32_t number = self.free_node
        cdef int32_t capacity
        if number == NONE:
            # BOUND: one node per partition of a parked request, at most one parked request per connection.
            capacity = grow(&self.nodes, self.node_capacity, self.node_capacity + 1, sizeof(WaitNode), FIRST_CAPACITY)
            for number in range(self.node_capacity, capacity):
                self.nodes[number].next_of_request = number + 1
            self.nodes[capacity - 1].next_of_request = NONE
            number = self.node_capacity
            self.node_capacity = capacity
        self.free_node = self.nodes[number].next_of_request
        return number

    # Deadlines: a binary heap, smallest first.

    cdef int heap_push(self, ParkedFetch waiting) except -1:
        self.heap_capacity = grow(
            &self.heap, self.heap_capacity, self.heap_count + 1, sizeof(void*), FIRST_CAPACITY)
        self.heap[self.heap_count] = <void*>waiting
        waiting.heap_index = self.heap_count
        self.heap_count += 1
        self.heap_settle(waiting.heap_index)
        return 0

    cdef int heap_remove(self, ParkedFetch waiting) except -1:
        cdef int32_t hole = waiting.heap_index
        if hole == NONE:
            return 0
        waiting.heap_index = NONE
        self.heap_count -= 1
        if hole < self.heap_count:
            self.heap[hole] = self.heap[self.heap_count]
            (<ParkedFetch>self.heap[hole]).heap_index = hole
            self.heap_settle(hole)
        return 0

    cdef void heap_settle(self, int32_t index) noexcept:
        """Move the entry at ``index`` up or down to its place."""
        cdef:
            void* moving = self.heap[index]
            int64_t deadline_ms = (<ParkedFetch>moving).deadline_ms
            int32_t other
        while index > 0 and deadline_ms < (<ParkedFetch>self.heap[(index - 1) // 2]).deadline_ms:
            other = (index - 1) // 2
            self.heap[index] = self.heap[other]
            (<ParkedFetch>self.heap[index]).heap_index = index
            index = other
        while True:
            other = 2 * index + 1
            if other >= self.heap_count:
                break
            if (
                other + 1 < self.heap_count
                and (<ParkedFetch>self.heap[other + 1]).deadline_ms < (<ParkedFetch>self.heap[other]).deadline_ms
            ):
                other += 1
            if (<ParkedFetch>self.heap[other]).deadline_ms >= deadline_ms:
                break
            self.heap[index] = self.heap[other]
            (<ParkedFetch>self.heap[index]).heap_index = index
            index = other
        self.heap[index] = moving
        (<ParkedFetch>moving).heap_index = index
