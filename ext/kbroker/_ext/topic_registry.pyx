"""Topic lookup of a network process's produce path: one dict access per topic of a request.

Maintained from the cluster image by the network worker; read by produce_path.
"""
from libc.stdlib cimport free, malloc


cdef class TopicRef:
    """One topic. Never changed after it was made; a changed topic gets a new one."""

    def __cinit__(self, bytes name, bytes topic_id, list slots, list slot_incarnations, bint internal):
        cdef int32_t i
        self.name = name
        self.topic_id = topic_id
        self.internal = internal
        self.partition_count = <int32_t>len(slots)
        self.slots = <int32_t*>malloc(max(1, len(slots)) * sizeof(int32_t))
        self.slot_incarnations = <uint32_t*>malloc(max(1, len(slots)) * sizeof(uint32_t))
        if self.slots == NULL or self.slot_incarnations == NULL:
            raise MemoryError()
        for i in range(self.partition_count):
            self.slots[i] = slots[i]
            self.slot_incarnations[i] = slot_incarnations[i]

    def __dealloc__(self):
        free(self.slots)
        free(self.slot_incarnations)


cdef class TopicRegistry:
    """All topics by name and by id."""

    def __cinit__(self):
        self._by_name = {}
        self._by_id = {}

    def put(self, bytes name, bytes topic_id, list slots, list slot_incarnations, bint internal=False):
        """Add or replace a topic. slots[i] is the slot of partition i, -1 when this broker has no replica."""
        self.remove(name)
        ref = TopicRef(name, topic_id, slots, slot_incarnations, internal)
        self._by_name[name] = ref
        self._by_id[topic_id] = ref

    def remove(self, bytes name):
        """Forget a topic; unknown names are fine."""
        ref = self._by_name.pop(name, None)
        if ref is not None:
            self._by_id.pop(ref.topic_id, None)

    cdef TopicRef find_name(self, const uint8_t* name, Py_ssize_t size):
        return <TopicRef>self._by_name.get((<const char*>name)[:size])

    cdef TopicRef find_id(self, const uint8_t* topic_id):
        return <TopicRef>self._by_id.get((<const char*>topic_id)[:16])
