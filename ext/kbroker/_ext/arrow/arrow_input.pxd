# Columns of an Arrow record batch created by another library, read in place.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.arrow.arrow_abi cimport ArrowArray, ArrowSchema

# A column of binary or string; all NULL: the column is not there, every value is null.
cdef struct BytesInput:
    const int32_t* offsets
    const uint8_t* data
    const uint8_t* valid     # NULL: no nulls
    int64_t at               # index of row 0

# A column of int32 or of a timestamp (int64).
cdef struct NumberInput:
    const uint8_t* values
    const uint8_t* valid
    int64_t at
    int64_t width            # bytes; 0: the column is not there
    int64_t unit             # of a timestamp: how many of it are a second

cdef struct HeadersInput:
    const int32_t* offsets   # NULL: the column is not there
    const uint8_t* valid
    int64_t at
    BytesInput keys
    BytesInput values

cdef struct RowsInput:
    int64_t rows
    BytesInput key
    BytesInput value
    BytesInput topic
    NumberInput partition
    NumberInput timestamp
    HeadersInput headers


cdef inline bint is_valid(const uint8_t* valid, int64_t at) noexcept nogil:
    return valid == NULL or (valid[at >> 3] >> (at & 7)) & 1


# The size of a value, -1 for null; *p points to it.
cdef inline int32_t bytes_at(const BytesInput* column, int64_t row, const uint8_t** p) noexcept nogil:
    cdef int64_t at = column.at + row
    p[0] = NULL
    if column.offsets == NULL or not is_valid(column.valid, at):
        return -1
    p[0] = column.data + column.offsets[at]
    return column.offsets[at + 1] - column.offsets[at]


# Whether there is a number; *out is it.
cdef inline bint number_at(const NumberInput* column, int64_t row, int64_t* out) noexcept nogil:
    cdef int64_t at = column.at + row
    if column.width == 0 or not is_valid(column.valid, at):
        return False
    out[0] = (<const int32_t*>column.values)[at] if column.width == 4 else (<const int64_t*>column.values)[at]
    return True


# Find the columns by name. Raises TypeError for a column of another type, KeyError for one that is not known.
cdef int read_input(const ArrowSchema* schema, const ArrowArray* array, RowsInput* rows) except -1
