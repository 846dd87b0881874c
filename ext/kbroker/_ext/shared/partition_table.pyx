"""Slots of the partition table and their sequence lock (see partition_table.pxd for the layout).

Runs in every process. A region starts with a 64-byte header; slots follow.
"""
from libc.stdint cimport INT64_MAX, uint8_t
from libc.string cimport memcpy, memset

from kbroker._ext.base.atomics cimport (
    kb_add_fetch_i64,
    kb_exchange_u64,
    kb_fence_acquire,
    kb_fence_release,
    kb_fetch_or_u64,
    kb_load_acquire_u32,
    kb_load_relaxed_i64,
    kb_load_relaxed_u32,
    kb_store_relaxed_i64,
    kb_load_u64,
    kb_store_relaxed_u32,
    kb_store_release_u32,
    kb_fence_full,
)
from kbroker._ext.base.buffers cimport region_bytes
from kbroker._ext.base.socket_api cimport sched_yield


LAYOUT_VERSION = 3
HEADER_SIZE = 64

STATE_NAMES = {
    SLOT_FREE: "free", SLOT_ONLINE: "online", SLOT_OFFLINE: "offline", SLOT_LOADING: "loading", SLOT_CLOSED: "closed"
}
FREE, ONLINE, OFFLINE, LOADING, CLOSED = SLOT_FREE, SLOT_ONLINE, SLOT_OFFLINE, SLOT_LOADING, SLOT_CLOSED
NO_ROLE, LEADER, FOLLOWER, REPAIRING = ROLE_NONE, ROLE_LEADER, ROLE_FOLLOWER, ROLE_REPAIRING

# BOUND: how often a reader looks at a slot that is being written before it gives up for this turn. A writer holds a
# slot for well under a microsecond, unless it was put off the processor inside (hence the yields) or killed there; the
# restarted owner repairs the lock.
cdef enum:
    READ_TRIES = 2000
    READ_SPINS = 200


def region_size(capacity: int) -> int:
    """Bytes of a region for ``capacity`` slots."""
    return HEADER_SIZE + capacity * sizeof(Slot)


cdef class PartitionTable:
    """A view of the shared table. ``region`` is a writable buffer of ``region_size(capacity)`` bytes."""

    def __cinit__(self, region, int32_t capacity):
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = region_bytes(region, &size)
        assert sizeof(Slot) == 192, sizeof(Slot)
        if size < <Py_ssize_t>(HEADER_SIZE + capacity * sizeof(Slot)):
            raise ValueError(f"region of {size} bytes is too small for {capacity} slots")
        self._region = region
        assert sizeof(TableHeader) == 64, sizeof(TableHeader)
        self.header = <TableHeader*>start
        self.slots = <Slot*>(start + sizeof(TableHeader))
        self.capacity = capacity
        self.segments_changed = set()

    # SAFETY: callers pass 0 <= slot < capacity; the Python methods and every cimporter check at the edge.
    cdef SlotData* begin_write(self, int32_t slot) noexcept nogil:
        cdef Slot* entry = &self.slots[slot]
        cdef uint32_t sequence = kb_load_relaxed_u32(&entry.sequence)
        # An odd value was left by an owner that died inside a write; stay odd.
        kb_store_relaxed_u32(&entry.sequence, sequence | 1)
        kb_fence_release()  # pairs with kb_fence_acquire in read_slot: data stores stay behind the odd mark
        return &entry.data

    cdef void end_write(self, int32_t slot) noexcept nogil:
        cdef Slot* entry = &self.slots[slot]
        # release: pairs with the acquire load at the start of read_slot
        kb_store_release_u32(&entry.sequence, (kb_load_relaxed_u32(&entry.sequence) | 1) + 1)
        self.writes += 1

    cdef int note_segments(self, int32_t slot) except -1:
        self.segments_changed.add(slot)
        return 0

    cdef int note_state(self, int32_t slot, uint32_t before) except -1:
        cdef uint32_t state = self.slots[slot].data.state
        if state == SLOT_ONLINE:
            self.segments_changed.add(slot)
        if state != before and SLOT_OFFLINE in (state, before):
            # acq_rel, after the state: whoever sees the number sees the state. If the owner dies in between, the next
            # one loads the log, which changes the state again.
            kb_add_fetch_i64(&self.header.offline_changes, 1)
        return 0

    @property
    def offline_changes(self) -> int:
        """How often a slot has gone offline or come back, whoever owns it."""
        return <int64_t>kb_load_u64(<const uint64_t*>&self.header.offline_changes)

    def take_segments_changed(self) -> set:
        """The slots whose list of segments this process has changed, or begun to serve, since the last call."""
        taken = self.segments_changed
        if taken:
            self.segments_changed = set()
        return taken

    cdef bint read_slot(self, int32_t slot, SlotData* out) noexcept nogil:
        """Copy a consistent slot; False when it stayed locked (its owner died inside a write)."""
        cdef Slot* entry = &self.slots[slot]
        cdef uint32_t before
        cdef int spin
        for spin in range(READ_TRIES):
            before = kb_load_acquire_u32(&entry.sequence)
            if before & 1:
                if spin >= READ_SPINS:
                    sched_yield()
                continue
            memcpy(out, &entry.data, sizeof(SlotData))
            kb_fence_acquire()
            if kb_load_relaxed_u32(&entry.sequence) == before:
                return True
        return False

    cdef void add_waiter(self, int32_t slot, int network_index, Waiters waiters) noexcept nogil:
        # seq_cst: the waiter then re-reads the slot, the writer publishes and then takes the mask; one of them sees
        # the other. take_waiters has the matching fence.
        cdef Slot* entry = &self.slots[slot]
        kb_fetch_or_u64(
            &entry.committed_waiters if waiters == WAIT_COMMITTED else &entry.written_waiters,
            (<uint64_t>1) << network_index,
        )
        kb_fence_full()

    cdef uint64_t take_waiters(self, int32_t slot, int waiters) noexcept nogil:
        cdef Slot* entry = &self.slots[slot]
        cdef uint64_t taken = 0
        kb_fence_full()
        if waiters & WAIT_COMMITTED and kb_load_u64(&entry.committed_waiters) != 0:
            taken |= kb_exchange_u64(&entry.committed_waiters, 0)
        if waiters & WAIT_WRITTEN and kb_load_u64(&entry.written_waiters) != 0:
            taken |= kb_exchange_u64(&entry.written_waiters, 0)
        return taken

    cdef int check_slot(self, int slot) except -1:
        if slot < 0 or slot >= self.capacity:
            raise IndexError(f"slot {slot} is outside 0..{self.capacity - 1}")
        return 0

    def read(self, int slot):
        """The slot as a dict, for slow paths and tools; None when its owner died inside a write."""
        cdef SlotData data
        self.check_slot(slot)
        if not self.read_slot(slot, &data):
            return None
        return {
            "state": data.state,
            "slot_incarnation": data.slot_incarnation,
            "segment_version": data.segment_version,
            "leader_epoch": data.leader_epoch,
            "log_dir_index": data.log_dir_index,
            "log_start_offset": data.log_start_offset,
            "log_end": (data.log_end.offset, data.log_end.segment_base_offset, data.log_end.position),
            "high_watermark": (
                data.high_watermark.offset, data.high_watermark.segment_base_offset, data.high_watermark.position),
            "last_stable": (data.last_stable.offset, data.last_stable.segment_base_offset, data.last_stable.position),
            "aborted_version": data.aborted_version,
            "checked_from": (data.checked_segment, data.checked_position),
            "gapless": data.flags & SLOT_GAPLESS != 0,
            "role": data.role,
            "partition_epoch": data.partition_epoch,
            "latest_epoch": data.latest_epoch,
            "latest_epoch_start": data.latest_epoch_start,
            "previous_epoch": data.previous_epoch,
        }

    def role(self, int slot, uint32_t slot_incarnation):
        """This broker's role in the slot's partition; None if the slot has no such incarnation, or its owner died
        inside a write.
        """
        cdef SlotData data
        self.check_slot(slot)
        if not self.read_slot(slot, &data) or data.slot_incarnation != slot_incarnation:
            return None
        return data.role

    def readable_end(self, int slot, uint32_t slot_incarnation) -> tuple:
        """(high watermark, whether this broker leads); None unless such an incarnation is online.

        For who looks at thousands of slots.
        """
        cdef SlotData data
        self.check_slot(slot)
        if not self.read_slot(slot, &data) or data.slot_incarnation != slot_incarnation or data.state != SLOT_ONLINE:
            return None
        return data.high_watermark.offset, data.role == ROLE_LEADER

    def reset(
        self, int slot, *, int state, uint32_t role=ROLE_NONE, uint32_t slot_incarnation=0, int leader_epoch=0,
        int partition_epoch=0, int log_dir_index=0
    ):
        """Give the slot to a replica (or free it): every field except the segment version is reset.

        Called by the owning io worker only.
        """
        cdef SlotData* data
        cdef uint32_t segment_version, before
        self.check_slot(slot)
        data = self.begin_write(slot)
        before = data.state
        segment_version = data.segment_version + 1
        memset(data, 0, sizeof(SlotData))
        data.segment_version = segment_version
        data.state = state
        data.slot_incarnation = slot_incarnation
        data.role = role
        data.leader_epoch = leader_epoch
        data.partition_epoch = partition_epoch
        data.log_dir_index = log_dir_index
        data.latest_epoch = data.previous_epoch = -1
        data.latest_epoch_start = -1
        self.end_write(slot)
        self.note_segments(slot)
        self.note_state(slot, before)
        self.set_followers(slot, INT64_MAX, -1)

    def set_epochs(self, int slot, int latest_epoch, int64_t latest_epoch_start, int previous_epoch):
        """The current epochs of the log, -1 if there is none. Owner only.

        A leader's own epoch is among them before it is in the role, so that no reader takes it for unknown.
        """
        cdef SlotData* data
        self.check_slot(slot)
        data = self.begin_write(slot)
        data.latest_epoch = latest_epoch
        data.latest_epoch_start = latest_epoch_start
        data.previous_epoch = previous_epoch
        self.end_write(slot)

    def set_role(self, int slot, uint32_t role, int leader_epoch, int partition_epoch):
        """Set this broker's role for the partition, and the epochs of it. Owner only."""
        cdef SlotData* data
        self.check_slot(slot)
        data = self.begin_write(slot)
        data.role = role
        data.leader_epoch = leader_epoch
        data.partition_epoch = partition_epoch
        self.end_write(slot)

    def set_state(self, int slot, int state):
        """Change only the state. Called by the owning io worker only."""
        cdef SlotData* data
        cdef uint32_t before
        self.check_slot(slot)
        data = self.begin_write(slot)
        before = data.state
        data.state = state
        self.end_write(slot)
        self.note_state(slot, before)

    def set_swapping(self, int slot, bint swapping):
        """Tell readers that segment files are being swapped, or no longer. Called by the owning io worker only.

        The segment version changes each time, so that readers do not mistake old files for new ones.
        """
        cdef SlotData* data
        self.check_slot(slot)
        data = self.begin_write(slot)
        data.flags = data.flags | SLOT_SWAPPING if swapping else data.flags & ~<uint32_t>SLOT_SWAPPING
        data.segment_version += 1
        self.end_write(slot)
        self.note_segments(slot)

    def set_log_dir(self, int slot, int log_dir_index):
        """Tell readers that the log is in another directory; owner only. The segment version changes."""
        cdef SlotData* data
        self.check_slot(slot)
        data = self.begin_write(slot)
        data.log_dir_index = log_dir_index
        data.segment_version += 1
        self.end_write(slot)
        self.note_segments(slot)

    def set_checked_from(self, int slot, int64_t segment_base_offset, int64_t position, bint gapless):
        """Like ``LogTail.set_checked_from`` and ``set_gapless``, for a slot without an appender. Owner only."""
        cdef SlotData* data
        self.check_slot(slot)
        data = self.begin_write(slot)
        data.checked_segment = segment_base_offset
        data.checked_position = position
        data.flags = data.flags | SLOT_GAPLESS if gapless else data.flags & ~<uint32_t>SLOT_GAPLESS
        self.end_write(slot)

    def count_by_log_dir(self, int count) -> list:
        """The number of slots in use, of all owners, in each of the first ``count`` log directories.

        Reads without the lock: what is written meanwhile may be counted or not.
        """
        cdef int32_t slot, found
        counts = [0] * count
        for slot in range(self.capacity):
            if self.slots[slot].data.state != SLOT_FREE:
                found = self.slots[slot].data.log_dir_index
                if 0 <= found < count:
                    counts[found] += 1
        return counts

    def publish(self, int slot, *, log_start_offset, log_end, high_watermark=None, last_stable=None,
                leader_epoch=None, bint segments_changed=False):
        """Publish offsets from a slow path. Ends are (offset, segment base offset, position). Owner only."""
        cdef SlotData* data
        self.check_slot(slot)
        high_watermark = high_watermark or log_end
        last_stable = last_stable or high_watermark
        data = self.begin_write(slot)
        data.log_start_offset = log_start_offset
        data.log_end.offset, data.log_end.segment_base_offset, data.log_end.position = log_end
        data.high_watermark.offset, data.high_watermark.segment_base_offset, data.high_watermark.position = high_watermark
        data.last_stable.offset, data.last_stable.segment_base_offset, data.last_stable.position = last_stable
        if leader_epoch is not None:
            data.leader_epoch = leader_epoch
        if segments_changed:
            data.segment_version += 1
        self.end_write(slot)
        if segments_changed:
            self.note_segments(slot)

    def set_followers(self, int slot, int64_t log_start_max, int64_t most_caught_up):
        """Python face of ``SlotFollowers``. Owner only."""
        self.check_slot(slot)
        kb_store_relaxed_i64(&self.slots[slot].followers.log_start_max, log_start_max)
        kb_store_relaxed_i64(&self.slots[slot].followers.most_caught_up, most_caught_up)

    def followers(self, int slot) -> tuple:
        """(``log_start_max``, ``most_caught_up``), for tests."""
        self.check_slot(slot)
        return (
            kb_load_relaxed_i64(&self.slots[slot].followers.log_start_max),
            kb_load_relaxed_i64(&self.slots[slot].followers.most_caught_up),
        )

    def wait(self, int slot, int network_index, *, bint written=False):
        """Ask for a WAKE when the high watermark or the last stable offset of the slot advances; with ``written``, when the
        log end does (Python face of add_waiter).
        """
        self.check_slot(slot)
        self.add_waiter(slot, network_index, WAIT_WRITTEN if written else WAIT_COMMITTED)

    def waiters(self, int slot) -> int:
        """Take and clear both masks of waiting network processes, as one. Owner only."""
        self.check_slot(slot)
        return self.take_waiters(slot, WAIT_ALL)
