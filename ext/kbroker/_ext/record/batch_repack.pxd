# A produced batch of format 2, checked and recompressed with the codec of its topic.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.record.record_batch cimport BatchInfo, BatchStatus

# All checks of check_produced_batch; then the batch with `codec`, in new memory. None if *status is not BATCH_OK.
# level: None, or a level of that codec. BOUND: decompressed_max bytes of records, and their compressed size.
cdef bytearray repacked_batch(
    const uint8_t* data, Py_ssize_t size, int64_t decompressed_max, int codec, object level, BatchInfo* info,
    BatchStatus* status, int32_t* bad_index,
)
