"""Columns of bytes and of headers, appended to row by row and handed over as Arrow arrays."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kbroker._ext.arrow.arrow_abi cimport free_array, new_array, own_buffer
from kbroker._ext.base.growing cimport resize
from kbroker._ext.record.record_cursor cimport next_header

cdef enum:
    # An arena that is less than a quarter full is cut to its size when it is handed over.
    SPARE_SHARE = 4
    SPARE_BYTES_MIN = 65536


cdef inline int64_t bitmap_bytes(int64_t rows) noexcept nogil:
    return (rows + 7) // 8 + 8


# ---- bytes ---------------------------------------------------------------------------------------

cdef int begin_bytes(BytesColumn* column, int64_t rows_max, int64_t capacity) noexcept nogil:
    memset(column, 0, sizeof(BytesColumn))
    column.offsets = <int32_t*>malloc(<size_t>(rows_max + 1) * sizeof(int32_t))
    column.valid = <uint8_t*>malloc(<size_t>bitmap_bytes(rows_max))
    column.data = <uint8_t*>malloc(<size_t>(capacity + 8))
    if column.offsets == NULL or column.valid == NULL or column.data == NULL:
        free_bytes(column)
        return -1
    column.offsets[0] = 0
    memset(column.valid, 0xFF, <size_t>bitmap_bytes(rows_max))
    column.capacity = capacity
    column.rows_max = rows_max
    return 0


cdef void free_bytes(BytesColumn* column) noexcept nogil:
    free(column.offsets)
    free(column.valid)
    free(column.data)
    memset(column, 0, sizeof(BytesColumn))


cdef int grow_data(BytesColumn* column, int64_t size) noexcept nogil:
    cdef int64_t wanted = max(2 * column.capacity, column.size + size)
    if not resize(&column.data, <size_t>(wanted + 8)):
        return -1
    column.capacity = wanted
    return 0


cdef int grow_rows(BytesColumn* column) noexcept nogil:
    cdef int64_t wanted = 2 * column.rows_max + 16
    cdef int64_t had = bitmap_bytes(column.rows_max)
    if not resize(&column.offsets, <size_t>(wanted + 1) * sizeof(int32_t)):
        return -1
    if not resize(&column.valid, <size_t>bitmap_bytes(wanted)):
        return -1
    memset(column.valid + had, 0xFF, <size_t>(bitmap_bytes(wanted) - had))
    column.rows_max = wanted
    return 0


# The bytes (1 to 4) of the UTF-8 character at p, 0 if there is none.
cdef inline int character_size(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef uint8_t lead = p[0]
    cdef int size, i
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return 0
    size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    if end - p < size:
        return 0
    for i in range(1, size):
        if p[i] & 0xC0 != 0x80:
            return 0
    # Longer than it need be, a surrogate, or beyond U+10FFFF.
    if lead == 0xE0 and p[1] < 0xA0 or lead == 0xED and p[1] > 0x9F:
        return 0
    if lead == 0xF0 and p[1] < 0x90 or lead == 0xF4 and p[1] > 0x8F:
        return 0
    return size


cdef int append_text(BytesColumn* column, const uint8_t* p, int32_t size) noexcept nogil:
    cdef:
        const uint8_t* end = p + size
        const uint8_t* at = p
        uint8_t* out
        int n, i
    while at < end:
        n = character_size(at, end)
        if n == 0:
            break
        at += n
    # BOUND: offsets are 32 bits. Replaced text may become three times as long, also in earlier rows.
    if column.size + size > INT32_MAX:
        return -1
    if at >= end:
        return append_bytes(column, p, size)
    if column.size + 3 * <int64_t>size > INT32_MAX:
        return -1
    if column.capacity - column.size < 3 * <int64_t>size and grow_data(column, 3 * <int64_t>size) != 0:
        return -1
    out = column.data + column.size
    while p < end:
        n = character_size(p, end)
        if n == 0:
            out[0] = 0xEF
            out[1] = 0xBF
            out[2] = 0xBD
            out += 3
            p += 1
        for i in range(n):
            out[i] = p[i]
        out += n
        p += n
    column.size = out - column.data
    column.rows += 1
    column.offsets[column.rows] = <int32_t>column.size
    return 0


cdef ArrowArray* bytes_array(BytesColumn* column) noexcept nogil:
    cdef ArrowArray* array = new_array(column.rows, column.nulls, 3, 0)
    if array == NULL:
        return NULL
    if column.nulls:
        own_buffer(array, 0, column.valid)
    else:
        free(column.valid)
    own_buffer(array, 1, column.offsets)
    if column.capacity > SPARE_BYTES_MIN and column.size < column.capacity // SPARE_SHARE:
        resize(&column.data, <size_t>(column.size + 8))
    own_buffer(array, 2, column.data)
    memset(column, 0, sizeof(BytesColumn))
    return array


# ---- headers -------------------------------------------------------------------------------------

cdef int begin_headers(HeadersColumn* column, int64_t rows_max) noexcept nogil:
    memset(column, 0, sizeof(HeadersColumn))
    column.offsets = <int32_t*>malloc(<size_t>(rows_max + 1) * sizeof(int32_t))
    column.valid = <uint8_t*>malloc(<size_t>bitmap_bytes(rows_max))
    if (
        column.offsets == NULL or column.valid == NULL
        or begin_bytes(&column.keys, 64, 1024) != 0
        or begin_bytes(&column.values, 64, 1024) != 0
    ):
        free_headers(column)
        return -1
    column.offsets[0] = 0
    memset(column.valid, 0xFF, <size_t>bitmap_bytes(rows_max))
    return 0


cdef void free_headers(HeadersColumn* column) noexcept nogil:
    free(column.offsets)
    free(column.valid)
    free_bytes(&column.keys)
    free_bytes(&column.values)
    memset(column, 0, sizeof(HeadersColumn))


cdef bint are_headers(const uint8_t* p, const uint8_t* end, int32_t count) noexcept nogil:
    cdef:
        const uint8_t* key
        const uint8_t* value
        int32_t key_size, value_size, i
    for i in range(count):
        if not next_header(&p, end, &key, &key_size, &value, &value_size):
            return False
    return p == end


cdef int append_headers(HeadersColumn* column, const uint8_t* p, const uint8_t* end, int32_t count) noexcept nogil:
    cdef:
        const uint8_t* key = NULL
        const uint8_t* value = NULL
        int32_t key_size = 0, value_size = 0, i
        int64_t row = column.rows
    # Check first: nothing of a malformed row may be added.
    if not are_headers(p, end, count):
        return 1
    if count == 0:
        column.valid[row >> 3] &= <uint8_t>~(1 << (row & 7))
        column.nulls += 1
    for i in range(count):
        next_header(&p, end, &key, &key_size, &value, &value_size)
        if column.keys.rows == column.keys.rows_max and grow_rows(&column.keys) != 0:
            return -1
        if column.values.rows == column.values.rows_max and grow_rows(&column.values) != 0:
            return -1
        if append_text(&column.keys, key, key_size) != 0 or append_bytes(&column.values, value, value_size) != 0:
            return -1
    column.rows = row + 1
    column.offsets[row + 1] = <int32_t>column.keys.rows
    return 0


cdef ArrowArray* headers_array(HeadersColumn* column) noexcept nogil:
    cdef int64_t count = column.keys.rows
    cdef ArrowArray* headers = new_array(column.rows, column.nulls, 2, 1)
    cdef ArrowArray* pairs
    if headers == NULL:
        return NULL
    pairs = headers.children[0] = new_array(count, 0, 1, 2)
    if pairs != NULL:
        pairs.children[0] = bytes_array(&column.keys)
        pairs.children[1] = bytes_array(&column.values)
    if pairs == NULL or pairs.children[0] == NULL or pairs.children[1] == NULL:
        free_array(headers)
        return NULL
    if column.nulls:
        own_buffer(headers, 0, column.valid)
    else:
        free(column.valid)
    own_buffer(headers, 1, column.offsets)
    memset(column, 0, sizeof(HeadersColumn))
    return headers
