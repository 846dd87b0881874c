from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker._ext.record.record_batch cimport BatchInfo


# Write the header of a batch of `count` records, `size` bytes in all; without the checksum.
cdef void begin_batch(
    uint8_t* start, Py_ssize_t size, Py_ssize_t count, int64_t timestamp, int64_t producer_id, int16_t producer_epoch
) noexcept
# Write the checksum, after the records.
cdef void end_batch(uint8_t* start, Py_ssize_t size) noexcept
# Check a complete stored batch that is neither compressed nor a control batch, including every
# record; returns its size, 0 for anything else.
cdef Py_ssize_t read_plain_batch(const uint8_t* start, Py_ssize_t size, BatchInfo* info) noexcept
