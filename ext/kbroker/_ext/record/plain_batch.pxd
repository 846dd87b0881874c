from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker._ext.record.record_batch cimport BatchInfo


# The header of a batch of `count` records that fill `size` bytes with it; all but the checksum.
cdef void begin_batch(
    uint8_t* start, Py_ssize_t size, Py_ssize_t count, int64_t timestamp, int64_t producer_id, int16_t producer_epoch
) noexcept
# The checksum, once the records are there.
cdef void end_batch(uint8_t* start, Py_ssize_t size) noexcept
# The size of a whole batch of stored records that is neither compressed nor a control batch, every
# record of it checked; 0 if that is not what lies there.
cdef Py_ssize_t read_plain_batch(const uint8_t* start, Py_ssize_t size, BatchInfo* info) noexcept
