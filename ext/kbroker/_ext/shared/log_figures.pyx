"""What passes through each partition, in shared memory: a row by slot for the io workers, and one for each network process.

Every row has one writer, the owner of the slot or the network process, so that counting is an addition. A slot gets another
replica at times: the incarnation in front of a row says whose numbers it has. A writer empties a row of another incarnation,
and a reader takes it for empty (docs/decisions/0026-metrics.md).
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from kbroker._ext.base.atomics cimport kb_load_relaxed_i64, kb_load_relaxed_u32
from kbroker._ext.base.buffers cimport region_bytes
from kbroker._ext.shared.partition_table cimport SLOT_ONLINE, SlotData


cdef int64_t LAG_MAX = 0xFFFFFFFE


def region_size(capacity: int, network_count: int) -> int:
    """Bytes of a region for ``capacity`` slots; only what is used takes memory."""
    return capacity * (sizeof(Written) + network_count * sizeof(Read))


cdef class LogFigures:
    """A view of the region. network_index: of the process, if it is a network process that counts."""

    def __cinit__(self, region, int32_t capacity, int network_count, int network_index=-1):
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = region_bytes(region, &size)
        if capacity < 0 or size < region_size(capacity, network_count) or network_index >= network_count:
            raise ValueError(f"a region of {size} bytes has no {capacity} slots for {network_count} network processes")
        self._region = region
        self.capacity = capacity
        self.network_count = network_count
        self.written = <Written*>start
        if network_index >= 0:
            self.read = self.read_by(network_index)

    cdef Read* read_by(self, int network_index) noexcept nogil:
        return <Read*>(<uint8_t*>self.written + capacity_bytes(self.capacity)) + network_index * <Py_ssize_t>self.capacity

    cdef void clear_written(self, int32_t slot, uint32_t incarnation) noexcept nogil:
        memset(&self.written[slot], 0, sizeof(Written))
        self.written[slot].incarnation = incarnation

    cdef void clear_read(self, int32_t slot, uint32_t incarnation) noexcept nogil:
        memset(&self.read[slot], 0, sizeof(Read))
        self.read[slot].incarnation = incarnation

    cdef int check(self, int slot) except -1:
        if not 0 <= slot < self.capacity:
            raise IndexError(f"slot {slot} is outside 0..{self.capacity - 1}")
        return 0

    def resized(self, PartitionTable table not None) -> list:
        """The slots whose segments their owner, this process, has changed since ``show_size``; each is told once."""
        cdef const SlotData* data
        cdef const Written* row
        cdef int slot
        cdef list found = []
        assert table.capacity <= self.capacity, (table.capacity, self.capacity)
        for slot in table.take_segments_changed():
            data = &table.slots[slot].data
            row = &self.written[slot]
            if data.state == SLOT_ONLINE and (
                row.segment_version != data.segment_version or row.incarnation != data.slot_incarnation
            ):
                found.append(slot)
        return found

    def show_size(self, PartitionTable table not None, int slot, uint32_t segments, int64_t sealed_bytes):
        """The segments of a log as they are now. sealed_bytes: without the active one. Owner only."""
        cdef Written* row
        self.check(slot)
        table.check_slot(slot)
        row = self.written_of(slot, table.slots[slot].data.slot_incarnation)
        row.segments = segments
        row.sealed_bytes = sealed_bytes
        row.segment_version = table.slots[slot].data.segment_version

    def count_own(self, PartitionTable table not None, int slot, int64_t messages, int64_t size):
        """Count what the broker has appended itself: records of coordinators, and markers. size: in bytes. Owner only."""
        cdef Written* row
        self.check(slot)
        table.check_slot(slot)
        row = self.written_of(slot, table.slots[slot].data.slot_incarnation)
        row.produces += 1
        row.messages_in += messages
        row.bytes_in += size

    cdef void show_lag(self, PartitionTable table, int32_t slot, int64_t lag) noexcept nogil:
        # BOUND: what has no room in the cell is told as the most that has.
        self.written_of(slot, table.slots[slot].data.slot_incarnation).behind = <uint32_t>(min(lag, LAG_MAX) + 1)

    def lag(self, int slot, uint32_t incarnation) -> int:
        """By how many committed records a replica is behind its leader; -1 if it is not being copied."""
        self.check(slot)
        cdef const Written* row = &self.written[slot]
        if kb_load_relaxed_u32(&row.incarnation) != incarnation:
            return -1
        return <int64_t>kb_load_relaxed_u32(&row.behind) - 1

    def get(self, int slot, uint32_t incarnation) -> tuple:
        """(messages in, bytes in, produces, failed produces, bytes rejected, segments, sealed bytes, bytes out,
        bytes to followers, fetches, failed fetches) of a replica.
        """
        cdef const Written* row
        cdef const Read* read
        cdef int64_t out = 0, followed = 0, fetches = 0, failed = 0
        cdef int network
        self.check(slot)
        row = &self.written[slot]
        for network in range(self.network_count):
            read = self.read_by(network) + slot
            if kb_load_relaxed_u32(&read.incarnation) == incarnation:
                out += kb_load_relaxed_i64(&read.bytes_out)
                followed += kb_load_relaxed_i64(&read.bytes_to_followers)
                fetches += kb_load_relaxed_i64(&read.fetches)
                failed += kb_load_relaxed_i64(&read.failed_fetches)
        if kb_load_relaxed_u32(&row.incarnation) != incarnation:
            return 0, 0, 0, 0, 0, 0, 0, out, followed, fetches, failed
        return (
            kb_load_relaxed_i64(&row.messages_in),
            kb_load_relaxed_i64(&row.bytes_in),
            kb_load_relaxed_i64(&row.produces),
            kb_load_relaxed_i64(&row.failed_produces),
            kb_load_relaxed_i64(&row.bytes_rejected),
            kb_load_relaxed_u32(&row.segments),
            kb_load_relaxed_i64(&row.sealed_bytes),
            out,
            followed,
            fetches,
            failed,
        )


cdef inline Py_ssize_t capacity_bytes(int32_t capacity) noexcept nogil:
    return capacity * <Py_ssize_t>sizeof(Written)
