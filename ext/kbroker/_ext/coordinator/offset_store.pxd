# The committed offsets of one partition of `__consumer_offsets`, and those pending in open
# transactions.
#
# An offset is an Entry of 72 bytes in one array, found by an index; fields that few offsets have
# (metadata, an expire timestamp, a topic id) are in a separate block. Names of groups and topics are
# stored once. Index 0 of every array means "none". For one thread; nothing is shared.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.base.index_table cimport IndexTable
from kbroker._ext.base.name_table cimport Names, Text


# One commit, as decoded. The pointers belong to the caller.
cdef struct Commit:
    Text group
    Text topic
    Text metadata
    const uint8_t* topic_id        # 16 bytes; NULL: unknown
    int64_t offset
    int64_t commit_timestamp
    int64_t expire_timestamp       # -1: the broker's retention decides
    int32_t partition
    int32_t leader_epoch           # -1: unknown


cdef struct Extra:
    int64_t expire_timestamp
    uint8_t topic_id[16]           # zeros: unknown
    int32_t metadata_size
    uint8_t metadata[1]            # metadata_size bytes


cdef struct Entry:
    int64_t offset
    int64_t commit_timestamp
    int64_t log_offset             # of the record; the later of a plain and a transactional commit wins
    Extra* extra                   # owned; NULL if all its fields have their defaults
    int32_t leader_epoch
    int32_t partition
    uint32_t group
    uint32_t topic
    uint32_t transaction           # row of the transaction in which it is pending; 0: committed
    uint32_t next                  # in the group's list, or in the list of free entries
    uint32_t previous
    uint32_t transaction_next      # in the transaction's list
    uint32_t transaction_previous


cdef struct Transaction:
    int64_t producer_id
    uint32_t first                 # list of its entries; of a free row: the next free row
    uint32_t count


cdef class OffsetStore:
    cdef:
        Names groups
        Names topics
        Entry* entries
        IndexTable index           # of committed and pending offsets
        uint32_t capacity
        uint32_t end
        uint32_t free_entry
        Transaction* transactions
        uint32_t transaction_capacity
        uint32_t transaction_end
        uint32_t free_transaction
        dict transaction_of        # producer id -> row
        readonly Py_ssize_t committed_count
        readonly Py_ssize_t pending_count
        public int64_t log_end     # offset after the last record replayed into this store

    # Apply a commit record; producer_id: of a transactional one, otherwise -1.
    cdef int put(self, const Commit* commit, int64_t log_offset, int64_t producer_id) except -1
    # Apply a tombstone: removes the partition's committed offset and its pending ones.
    cdef int drop(self, Text group, Text topic, int32_t partition) except -1
    cdef uint32_t find(self, Text group, Text topic, int32_t partition) noexcept

    cdef uint32_t find_entry(
        self, uint32_t group, uint32_t topic, int32_t partition, uint32_t transaction
    ) noexcept
    cdef uint32_t add(
        self, const Commit* commit, uint32_t group, uint32_t topic, uint32_t transaction
    ) except 0
    cdef void remove(self, uint32_t index) noexcept
    cdef int reserve(self) except -1
    cdef void link(self, uint32_t index) noexcept
    cdef void unlink(self, uint32_t index) noexcept
    cdef void place(self, uint32_t index) noexcept
    cdef void displace(self, uint32_t index) noexcept
    cdef uint32_t transaction_row(self, int64_t producer_id) except 0
    cdef int release_transaction(self, uint32_t row) except -1
    cdef object committed(self, const Entry* entry)
