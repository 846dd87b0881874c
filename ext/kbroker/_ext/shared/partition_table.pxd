# The partition table: one fixed-size slot per replica hosted here, in memory shared by every process of the broker.
# Only the io worker that owns a slot writes it, inside begin_write/end_write; readers retry on the sequence lock.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


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


# A place in the log: an offset (exclusive end), the base offset of its segment, and the byte position in that file.
cdef struct LogEnd:
    int64_t offset
    int64_t segment_base_offset
    int64_t position


cdef struct SlotData:
    uint32_t state
    uint32_t slot_incarnation   # changes each time the slot is given to another replica
    uint32_t segment_version    # changes when the list of segment files does
    int32_t leader_epoch        # as of the role
    int32_t log_dir_index
    uint32_t flags              # SlotFlag
    int64_t log_start_offset
    LogEnd log_end
    LogEnd high_watermark
    LogEnd last_stable
    uint32_t aborted_version    # changes when a .txnindex gets an entry; 0: no transaction was ever aborted here
    uint32_t role               # SlotRole
    int32_t partition_epoch     # version of the partition's leader, leader epoch and ISR in the metadata
    # The epochs of the log: the latest with its first offset, and the previous one; -1: there is none.
    int32_t latest_epoch
    int64_t latest_epoch_start
    int32_t previous_epoch
    uint32_t unused
    # The owner has not checked the batches before this place since its start: readers check them before sending.
    int64_t checked_segment     # base offset
    int64_t checked_position


# The followers in sync with a leader, for consumers that may read from them (KIP-392). Kept only with
# replica.selector.class; outside of the sequence lock, as each field stands for itself.
cdef struct SlotFollowers:
    int64_t log_start_max       # the highest of their log start offsets; INT64_MAX: one is unknown
    int64_t most_caught_up      # broker id; -1: none


# In front of the slots, 64 bytes.
cdef struct TableHeader:
    int64_t offline_changes     # how often a slot has gone offline or come back, by all owners together
    int64_t unused[7]


cdef struct Slot:               # 192 bytes
    uint32_t sequence           # odd while a write is in progress
    uint32_t unused
    # Bit i: network process i wants a WAKE when the slot advances; see Waiters. The bits are set by readers and taken by the
    # owner, outside of the sequence lock.
    uint64_t committed_waiters
    uint64_t written_waiters
    SlotData data
    SlotFollowers followers


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
