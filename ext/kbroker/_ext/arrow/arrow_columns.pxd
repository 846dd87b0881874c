# Growing columns of Arrow: variable-length bytes, and lists of headers. Arenas come from malloc and
# go to an ArrowArray as they are, without a copy.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._ext.arrow.arrow_abi cimport ArrowArray

# A column of binary or string. BOUND: size stays below 2 GiB; who appends sees to that.
cdef struct BytesColumn:
    int32_t* offsets        # rows_max + 1
    uint8_t* valid          # bit of a row cleared: null
    uint8_t* data
    int64_t size
    int64_t capacity
    int64_t nulls
    int64_t rows
    int64_t rows_max

# array<struct<key: string, value: binary>>; a record without headers is null.
cdef struct HeadersColumn:
    int32_t* offsets        # rows_max + 1
    uint8_t* valid
    int64_t nulls
    int64_t rows
    BytesColumn keys
    BytesColumn values

# All zero is an empty column that holds nothing; begin_* gives it room. -1 without memory.
cdef int begin_bytes(BytesColumn* column, int64_t rows_max, int64_t capacity) noexcept nogil
cdef int begin_headers(HeadersColumn* column, int64_t rows_max) noexcept nogil
cdef void free_bytes(BytesColumn* column) noexcept nogil
cdef void free_headers(HeadersColumn* column) noexcept nogil

# Room for `size` bytes more, or for as many rows again. -1 without memory.
cdef int grow_data(BytesColumn* column, int64_t size) noexcept nogil
cdef int grow_rows(BytesColumn* column) noexcept nogil

# Append a header key as UTF-8, which Arrow's strings have to be: each byte that is none becomes U+FFFD.
cdef int append_text(BytesColumn* column, const uint8_t* p, int32_t size) noexcept nogil

# Append the headers between p and end, `count` of them: 0, or -1 without memory, or 1 (and no row) when malformed.
cdef int append_headers(HeadersColumn* column, const uint8_t* p, const uint8_t* end, int32_t count) noexcept nogil

# The column as an array, which takes its arenas; the column is empty then. NULL without memory.
cdef ArrowArray* bytes_array(BytesColumn* column) noexcept nogil
cdef ArrowArray* headers_array(HeadersColumn* column) noexcept nogil


# Append a value, null for a size of -1. The column has room for a row. -1 without memory.
cdef inline int append_bytes(BytesColumn* column, const uint8_t* p, int32_t size) noexcept nogil:
    cdef int64_t row = column.rows
    if size > 0:
        if column.capacity - column.size < size and grow_data(column, size) != 0:
            return -1
        memcpy(column.data + column.size, p, <size_t>size)
        column.size += size
    elif size < 0:
        column.valid[row >> 3] &= <uint8_t>~(1 << (row & 7))
        column.nulls += 1
    column.rows = row + 1
    column.offsets[row + 1] = <int32_t>column.size
    return 0
