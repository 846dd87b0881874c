# Reads what a consumer has fetched of a partition; see record_reader.pyx.
from libc.stdint cimport int32_t, int64_t

from kbroker._ext.record.record_cursor cimport RecordCursor, Row

# Whether a record's headers end where the record does.
cdef bint well_formed(const Row* row) noexcept nogil


cdef struct ColumnBlock:   # a block of memory, divided
    int64_t* offsets
    int64_t* timestamps
    int64_t* key_starts
    int64_t* value_starts
    int32_t* key_sizes
    int32_t* value_sizes


cdef class RecordColumns:
    cdef:
        readonly str topic
        readonly int partition
        list _keys
        list _values
        readonly object offsets
        readonly object timestamps
        readonly int timestamp_type
        readonly int64_t next_offset
        readonly int64_t size_bytes
        public object arrays
        readonly object buffer
        readonly object key_starts
        readonly object key_sizes
        readonly object value_starts
        readonly object value_sizes

    cdef list _listed(self, starts, sizes)


cdef class RecordReader:
    cdef:
        RecordCursor _cursor
        str _topic
        int32_t _partition
        object _key_deserializer, _value_deserializer
        bint _plain                  # no deserializers
        bint _open                   # a run is being read
        object _records              # the set
        readonly int64_t position    # of the next record to return
        readonly int32_t leader_epoch
        # (offset, next offset, why, exception or None) of what cannot be read, None if nothing is known of such.
        readonly object error

    cdef bint _begin(self) except -1
    cdef int _finish(self) except -1
    cdef int _stop_at_damage(self) except -1
    cdef bint _next(self, Row* row) except -1
    cdef object _deserialized(self, deserializer, const unsigned char* data, int32_t size)
    cdef int _refuse(self, const Row* row, str what, failure) except -1
    cdef bint _stopped(self)
    cdef int _skip_end(self) except -1
    cdef Py_ssize_t _read_positions(
        self, ColumnBlock* block, RecordColumns found, Py_ssize_t limit, int64_t bytes_max
    ) except -1
