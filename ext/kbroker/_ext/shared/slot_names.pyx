"""The partition whose replica has each slot, in shared memory: for programs that look at the tables of a broker.

The controller process assigns slots and is the only writer; its next incarnation writes all of them again. The processes of
the broker get names from the cluster image and do not read this.
"""
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from kbroker._ext.base.atomics cimport kb_fence_release, kb_load_relaxed_u32, kb_store_relaxed_u32, kb_store_release_u32
from kbroker._ext.base.buffers cimport region_bytes
from kbroker._ext.shared.layouts cimport TOPIC_NAME_BYTES, SlotName


def region_size(capacity: int) -> int:
    """Bytes of a region for ``capacity`` slots."""
    return capacity * sizeof(SlotName)


cdef class SlotNames:
    """The rows of all slots. region: of ``region_size(capacity)`` bytes."""

    cdef object _region         # keeps the mapping alive
    cdef SlotName* rows
    cdef readonly int32_t capacity

    def __cinit__(self, region):
        cdef Py_ssize_t size = 0
        self.rows = <SlotName*>region_bytes(region, &size)
        self._region = region
        self.capacity = <int32_t>(size // <Py_ssize_t>sizeof(SlotName))

    def name(self, int slot, uint32_t incarnation, bytes topic not None, int partition):
        """The slot has this replica from now on."""
        cdef Py_ssize_t size = min(PyBytes_GET_SIZE(topic), <Py_ssize_t>TOPIC_NAME_BYTES)
        cdef SlotName* row = self.row_of(slot)
        cdef uint32_t sequence
        sequence = kb_load_relaxed_u32(&row.sequence) | 1  # odd already if a writer died inside
        kb_store_relaxed_u32(&row.sequence, sequence)
        kb_fence_release()
        row.slot_incarnation = incarnation
        row.partition = partition
        row.topic_size = <uint8_t>size
        memset(row.topic, 0, TOPIC_NAME_BYTES)
        memcpy(row.topic, PyBytes_AS_STRING(topic), size)
        kb_store_release_u32(&row.sequence, sequence + 1)

    def free(self, int slot):
        """The slot has no replica."""
        cdef SlotName* row = self.row_of(slot)
        kb_store_relaxed_u32(&row.slot_incarnation, 0)

    cdef SlotName* row_of(self, int slot) except NULL:
        if not 0 <= slot < self.capacity:
            raise IndexError(f"slot {slot} is outside 0..{self.capacity - 1}")
        return &self.rows[slot]
