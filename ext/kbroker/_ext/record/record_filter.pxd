# Compaction's work on the records of a batch of format 2: which are kept, and a copy without the rest. `message_filter` is
# the same for formats 0 and 1.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.base.offset_map cimport OffsetMap
from kbroker._ext.record.record_batch cimport BatchInfo


cdef enum RecordsStatus:
    RECORDS_OK = 0
    RECORDS_BAD = 1
    RECORDS_MAP_FULL = 2


# What the records of one batch are looked at with, and what was found.
cdef struct Pass:
    const uint8_t* records
    Py_ssize_t size
    uint8_t* keep                # one byte a record
    int32_t kept
    bint tombstone               # one of the kept has no value
    int32_t keyless
    int64_t max_timestamp        # of the kept
    bint drop_tombstones         # the delete horizon of the batch has passed


# Put the keys of the records from start_offset on into the map.
cdef RecordsStatus index_records(
    OffsetMap map, const BatchInfo* info, const Pass* records, int64_t start_offset
) noexcept nogil

# Decide about each record. All of a control batch are kept.
cdef RecordsStatus choose_records(OffsetMap map, const BatchInfo* info, Pass* found) noexcept nogil

# Copy the kept records, which choose_records has walked, to `out`; returns the byte after. With a `shift` timestamp
# deltas grow by it.
cdef uint8_t* copy_records(
    const BatchInfo* info, const Pass* found, bint shifted, uint64_t shift, uint8_t* out
) noexcept nogil

# The type of a control batch's first record (0 abort, 1 commit), -1 of an empty batch, -2 of one that is not understood.
cdef int marker_type(const BatchInfo* info, const uint8_t* records, Py_ssize_t size) noexcept nogil
