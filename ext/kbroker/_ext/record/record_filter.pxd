# Compaction of a batch of format 2: which records are kept, and a copy without the others. `message_filter` does the
# same for formats 0 and 1.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.base.offset_map cimport OffsetMap
from kbroker._ext.record.record_batch cimport BatchInfo


cdef enum RecordsStatus:
    RECORDS_OK = 0
    RECORDS_BAD = 1
    RECORDS_MAP_FULL = 2


# One pass over the records of a batch, and its results.
cdef struct Pass:
    const uint8_t* records
    Py_ssize_t size
    uint8_t* keep                # one byte per record
    int32_t kept
    bint tombstone               # one of the kept records is a tombstone
    int32_t keyless
    int64_t max_timestamp        # of the kept records
    bint drop_tombstones         # the delete horizon of the batch has passed


# Put the keys of the records at or above start_offset into the map.
cdef RecordsStatus index_records(
    OffsetMap map, const BatchInfo* info, const Pass* records, int64_t start_offset
) noexcept nogil

# Decide which records to keep. All records of a control batch are kept.
cdef RecordsStatus choose_records(OffsetMap map, const BatchInfo* info, Pass* found) noexcept nogil

# Copy the kept records, which choose_records has walked, to `out`; returns the byte after. shifted: add `shift` to the
# timestamp deltas.
cdef uint8_t* copy_records(
    const BatchInfo* info, const Pass* found, bint shifted, uint64_t shift, uint8_t* out
) noexcept nogil

# The type of a control batch's first record (0 abort, 1 commit); -1 if the batch is empty, -2 if it cannot be read.
cdef int marker_type(const BatchInfo* info, const uint8_t* records, Py_ssize_t size) noexcept nogil
