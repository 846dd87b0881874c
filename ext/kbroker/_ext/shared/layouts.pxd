# The rows of the shared tables. Written by tools/gen_docs.py from kbroker/ipc/layouts.py.
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t, uint8_t


cdef enum:
    CLIENT_ID_BYTES = 96
    SOFTWARE_NAME_BYTES = 48
    SOFTWARE_VERSION_BYTES = 32
    TOPIC_NAME_BYTES = 249


# A place in the log.
cdef struct LogEnd:
    int64_t offset              # exclusive end
    int64_t segment_base_offset
    int64_t position            # in the file of the segment


# What the sequence lock of a slot guards.
cdef struct SlotData:
    uint32_t state              # SlotState
    uint32_t slot_incarnation   # changes when another replica gets the slot
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
    int32_t partition_epoch     # version of leader, leader epoch and ISR in metadata
    int32_t latest_epoch        # of the log; -1: there is none
    int64_t latest_epoch_start  # its first offset
    int32_t previous_epoch      # -1: there is none
    uint32_t unused
    # base offset; the owner has not checked the batches before this place since its start: readers check them before
    # sending
    int64_t checked_segment
    int64_t checked_position


# The followers in sync with a leader, for consumers that may read from them (KIP-392). Kept only with
# replica.selector.class; outside of the sequence lock, as each field stands for itself.
cdef struct SlotFollowers:
    int64_t log_start_max       # of their log start offsets; INT64_MAX: one is unknown
    int64_t most_caught_up      # broker id; -1: none


# In front of the slots.
cdef struct TableHeader:
    int64_t offline_changes     # how often a slot went offline or came back, in all
    int64_t unused[7]


# A replica on this broker.
cdef struct Slot:
    uint32_t sequence           # odd while a write is in progress
    uint32_t unused
    uint64_t committed_waiters  # bit i: network process i wants a WAKE when the slot advances; see Waiters
    uint64_t written_waiters
    SlotData data
    SlotFollowers followers


# The partition whose replica has a slot.
cdef struct SlotName:
    uint32_t sequence           # odd while a write is in progress; 0: never used
    uint32_t slot_incarnation   # 0: the slot is free
    int32_t partition
    uint8_t topic_size
    uint8_t topic[TOPIC_NAME_BYTES]
    uint8_t unused[2]


# What a replica got, by slot. Written by the io worker that owns the slot.
cdef struct Written:
    uint32_t incarnation        # of the slot, as of the numbers
    uint32_t segments           # of the log now
    int64_t messages_in
    int64_t bytes_in
    int64_t produces
    int64_t failed_produces
    int64_t bytes_rejected
    int64_t sealed_bytes        # of the log now, without its active segment
    uint32_t segment_version    # of the slot, when these two were right
    uint32_t behind             # the leader by one less so many records; 0: it does not copy


# What was read of a replica, by slot. Written by one network process.
cdef struct Read:
    uint32_t incarnation
    uint32_t unused
    int64_t bytes_out           # to consumers
    int64_t bytes_to_followers
    int64_t fetches
    int64_t failed_fetches
    int64_t more[3]


# A client of a network process, the only writer.
cdef struct ClientRow:
    uint32_t version            # odd while the names change; 0: not in use
    uint32_t unused
    int64_t connections         # open now
    int64_t requests
    int64_t bytes_in
    int64_t bytes_out
    int16_t listener
    uint8_t client_id_size
    uint8_t name_size
    uint8_t version_size
    uint8_t unused_too[3]
    uint8_t client_id[CLIENT_ID_BYTES]
    uint8_t name[SOFTWARE_NAME_BYTES]
    uint8_t software_version[SOFTWARE_VERSION_BYTES]
    uint8_t more[32]


# In front of the process table: what makes it the index of a run.
cdef struct ProcessHead:
    int64_t magic               # MAGIC
    int64_t layout              # LAYOUT
    int64_t pid_namespace       # in which the pids are; 0: unknown
    int64_t status_bytes        # of the document in the status region
    int64_t rows
    int64_t counter_cells       # of a process in the region of counters
    int64_t unused[2]


# A process of the broker. Written by it, but pid and incarnation by the supervisor.
cdef struct ProcessRow:
    int64_t pid
    int64_t incarnation         # number of its starts
    int64_t state
    int64_t heartbeat_ns        # of the monotonic clock
    int64_t connections
    int64_t handed_over         # from the controller: controlled shutdown has ended
    int64_t unused[2]
