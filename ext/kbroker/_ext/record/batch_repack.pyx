"""Recompresses batches whose codec is not the topic's ``compression.type``.

Runs in io workers. Costs one decompression and one compression per batch; batches that already have the codec never come
here.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t
from libc.string cimport memcpy

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.wire cimport store_i16, store_i32, store_u32
from kbroker._ext.record.codecs cimport pack
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    BATCH_ATTRIBUTES_AT,
    BATCH_CRC_AT,
    BATCH_CRC_FROM,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_OK,
    check_crc,
    check_produced_header,
    decompressed,
    read_batch_header,
    walk_records,
)


cdef bytearray repacked_batch(
    const uint8_t* data, Py_ssize_t size, int64_t decompressed_max, int codec, object level, BatchInfo* info,
    BatchStatus* status, int32_t* bad_index,
):
    cdef:
        bytes records, packed
        bytearray batch
        uint8_t* p
    bad_index[0] = -1
    status[0] = read_batch_header(data, size, info)
    if status[0] == BATCH_OK:
        status[0] = check_crc(data, info)
    if status[0] == BATCH_OK:
        status[0] = check_produced_header(info, size)
    if status[0] != BATCH_OK:
        return None
    records = decompressed(data, info, decompressed_max, status)
    if records is None:
        return None
    status[0] = walk_records(
        <const uint8_t*>PyBytes_AS_STRING(records), PyBytes_GET_SIZE(records), info, bad_index)
    if status[0] != BATCH_OK:
        return None
    packed = pack(codec, <const uint8_t*>PyBytes_AS_STRING(records), PyBytes_GET_SIZE(records), level)
    size = BATCH_HEADER_BYTES + PyBytes_GET_SIZE(packed)
    batch = PyByteArray_FromStringAndSize(NULL, size)
    p = <uint8_t*>PyByteArray_AS_STRING(batch)
    memcpy(p, data, BATCH_HEADER_BYTES)
    memcpy(p + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed), <size_t>PyBytes_GET_SIZE(packed))
    info.attributes = <int16_t>((info.attributes & ~ATTRIBUTE_CODEC_MASK) | codec)
    info.batch_length = <int32_t>(size - BATCH_LENGTH_END)
    store_i32(p + 8, info.batch_length)
    store_i16(p + BATCH_ATTRIBUTES_AT, info.attributes)
    store_u32(p + BATCH_CRC_AT, crc32c(p + BATCH_CRC_FROM, <size_t>(size - BATCH_CRC_FROM)))
    return batch
