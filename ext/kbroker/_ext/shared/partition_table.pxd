# The partition table: one fixed-size slot per replica hosted here, in memory shared by every process of the broker.
# Only the io worker that owns a slot writes it, inside begin_write/end_write; readers retry on the sequence lock.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kbroker._ext.shared.layouts cimport LogEnd, Slot, SlotData, SlotFollowers, TableHeader


cdef enum SlotState:
    SLOT_FREE = 0
    SLOT_ONLINE = 1
    SLOT_OFFLINE = 2     # its log directory failed: KAFKA_STORAGE_ERROR
    SLOT_LOADING = 3     # owner is recovering the log: NOT_LEADER_OR_FOLLOWER, retriable
    SLOT_CLOSED = 4      # clean shutdown in progress


# This broker's role for the partition. A slot is served to clients only if it is ONLINE and LEADER.
cdef enum SlotRole:
    ROLE_NONE = 0        # it has a log, but the controller has not assigned a role yet
    ROLE_LEADER = 1
    ROLE_FOLLOWER = 2
    ROLE_REPAIRING = 3   # about to lead, but its newest records may be on other replicas only: NOT_LEADER_OR_FOLLOWER


cdef enum Waiters:
    WAIT_COMMITTED = 1   # consumers: for the high watermark or the last stable offset
    WAIT_WRITTEN = 2     # followers: for the log end
    WAIT_ALL = 3


cdef enum SlotFlag:
    SLOT_SWAPPING = 1    # segment files are being exchanged: what is read of the directory now may not fit together
    SLOT_GAPLESS = 2     # never compacted: each segment ends where the next one begins


cdef class PartitionTable:
    cdef object _region         # keeps the mapping alive
    cdef TableHeader* header
    cdef Slot* slots
    cdef readonly int32_t capacity
    # What this process has written, so that who looks now and then looks at nothing while nothing has changed.
    cdef readonly int64_t writes
    cdef set segments_changed   # slots, until they are taken
    cdef SlotData* begin_write(self, int32_t slot) noexcept nogil
    cdef void end_write(self, int32_t slot) noexcept nogil
    # After a write that has changed the list of segments, or the state.
    cdef int note_segments(self, int32_t slot) except -1
    cdef int note_state(self, int32_t slot, uint32_t before) except -1
    cdef bint read_slot(self, int32_t slot, SlotData* out) noexcept nogil
    # waiters: one of Waiters; to take, one or both.
    cdef void add_waiter(self, int32_t slot, int network_index, Waiters waiters) noexcept nogil
    cdef uint64_t take_waiters(self, int32_t slot, int waiters) noexcept nogil
    cdef int check_slot(self, int slot) except -1
