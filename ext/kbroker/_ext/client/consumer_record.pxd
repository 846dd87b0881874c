from libc.stdint cimport int8_t, int32_t, int64_t


cdef class ConsumerRecord:
    cdef:
        readonly str topic
        readonly object key
        readonly object value
        object _headers               # None, encoded (bytes), or decoded (tuple)
        readonly int64_t offset
        readonly int64_t timestamp
        readonly int32_t partition
        readonly int32_t leader_epoch
        readonly int32_t serialized_key_size
        readonly int32_t serialized_value_size
        int32_t _header_count
        readonly int8_t timestamp_type
