from libc.stdint cimport int16_t, int64_t, uint8_t


# The header of a batch of `count` records that fill `size` bytes with it; all but the checksum.
cdef void begin_batch(
    uint8_t* start, Py_ssize_t size, Py_ssize_t count, int64_t timestamp, int64_t producer_id, int16_t producer_epoch
) noexcept
# The checksum, once the records are there.
cdef void end_batch(uint8_t* start, Py_ssize_t size) noexcept
