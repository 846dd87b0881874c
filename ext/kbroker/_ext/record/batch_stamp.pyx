"""The fields that a producer sets in the header of a whole batch before it sends it."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.wire cimport store_i16, store_i32, store_i64, store_u32
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_BASE_SEQUENCE_AT,
    BATCH_CRC_AT,
    BATCH_CRC_FROM,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_OK,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
    BatchInfo,
    read_batch_header,
)


def stamp_batch(
    bytearray batch not None, int64_t producer_id, int16_t producer_epoch, int32_t sequence, bint transactional
) -> int:
    """Set the batch's producer, base offset 0 and a new checksum; returns its number of records.

    batch: exactly one batch of format 2, from any producer. producer_id -1: none.
    Raises ValueError for anything else and leaves ``batch`` unchanged.
    """
    cdef:
        uint8_t* p = <uint8_t*>PyByteArray_AS_STRING(batch)
        Py_ssize_t size = PyByteArray_GET_SIZE(batch)
        BatchInfo info
        int16_t attributes
        uint32_t crc
    if read_batch_header(p, size, &info) != BATCH_OK or info.batch_length + BATCH_LENGTH_END != size:
        raise ValueError("not exactly one batch of format 2")
    attributes = info.attributes & ~ATTRIBUTE_TRANSACTIONAL
    if transactional:
        attributes |= ATTRIBUTE_TRANSACTIONAL
    store_i64(p, 0)
    store_i32(p + BATCH_LENGTH_END, -1)
    store_i16(p + BATCH_ATTRIBUTES_AT, attributes)
    store_i64(p + BATCH_PRODUCER_ID_AT, producer_id)
    store_i16(p + BATCH_PRODUCER_EPOCH_AT, producer_epoch)
    store_i32(p + BATCH_BASE_SEQUENCE_AT, sequence)
    with nogil:
        # SAFETY: no other code has the batch before it is sent.
        crc = crc32c(p + BATCH_CRC_FROM, <size_t>(size - BATCH_CRC_FROM))
    store_u32(p + BATCH_CRC_AT, crc)
    return info.record_count
