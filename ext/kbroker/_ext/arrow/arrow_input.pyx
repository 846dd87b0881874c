"""Finds the columns of rows to be produced in a record batch of the Arrow C data interface.

The batches are trusted to be well-formed (pyarrow's own validation is not repeated); their types are checked.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset, strcmp, strncmp


cdef object mismatch(const ArrowSchema* schema, str expected):
    return TypeError(f"column {schema.name.decode()} has the Arrow type {schema.format.decode()!r}, not {expected}")


cdef int read_bytes_input(
    const ArrowSchema* schema, const ArrowArray* array, int64_t skipped, BytesInput* column
) except -1:
    if strcmp(schema.format, "z") != 0 and strcmp(schema.format, "u") != 0:
        raise mismatch(schema, "binary or string")
    column.valid = <const uint8_t*>array.buffers[0]
    column.offsets = <const int32_t*>array.buffers[1]
    column.data = <const uint8_t*>array.buffers[2]
    column.at = array.offset + skipped
    if column.offsets == NULL and array.length:
        raise mismatch(schema, "one with offsets")
    return 0


cdef int read_number_input(
    const ArrowSchema* schema, const ArrowArray* array, int64_t skipped, NumberInput* column
) except -1:
    if strcmp(schema.format, "i") == 0:
        column.width = 4
    elif strncmp(schema.format, "ts", 2) == 0 and schema.format[3] == b":":
        column.width = 8
        column.unit = {b"s": 1, b"m": 1000, b"u": 1_000_000, b"n": 1_000_000_000}[<bytes>schema.format[2:3]]
    else:
        raise mismatch(schema, "int32 or timestamp")
    column.valid = <const uint8_t*>array.buffers[0]
    column.values = <const uint8_t*>array.buffers[1]
    column.at = array.offset + skipped
    return 0


cdef int read_headers_input(
    const ArrowSchema* schema, const ArrowArray* array, int64_t skipped, HeadersInput* column
) except -1:
    cdef const ArrowSchema* pair
    cdef const ArrowArray* pairs
    if strcmp(schema.format, "+l") != 0 or strcmp(schema.children[0].format, "+s") != 0:
        raise mismatch(schema, "a list of structs")
    pair = schema.children[0]
    pairs = array.children[0]
    if pair.n_children != 2:
        raise mismatch(schema, "a list of (key, value)")
    column.valid = <const uint8_t*>array.buffers[0]
    column.offsets = <const int32_t*>array.buffers[1]
    column.at = array.offset + skipped
    read_bytes_input(pair.children[0], pairs.children[0], pairs.offset, &column.keys)
    read_bytes_input(pair.children[1], pairs.children[1], pairs.offset, &column.values)
    return 0


cdef int read_input(const ArrowSchema* schema, const ArrowArray* array, RowsInput* rows) except -1:
    cdef:
        int64_t i
        const ArrowSchema* field
        const ArrowArray* child
        bytes name
    memset(rows, 0, sizeof(RowsInput))
    if strcmp(schema.format, "+s") != 0:
        raise TypeError("not a record batch")
    rows.rows = array.length
    for i in range(schema.n_children):
        field = schema.children[i]
        child = array.children[i]
        name = field.name
        if name == b"key":
            read_bytes_input(field, child, array.offset, &rows.key)
        elif name == b"value":
            read_bytes_input(field, child, array.offset, &rows.value)
        elif name == b"topic":
            read_bytes_input(field, child, array.offset, &rows.topic)
        elif name == b"partition":
            read_number_input(field, child, array.offset, &rows.partition)
        elif name == b"timestamp":
            read_number_input(field, child, array.offset, &rows.timestamp)
        elif name == b"headers":
            read_headers_input(field, child, array.offset, &rows.headers)
        else:
            raise KeyError(name.decode())
    if rows.partition.width not in (0, 4) or rows.timestamp.width not in (0, 8):
        raise TypeError("partition must be an int32 and timestamp a timestamp")
    return 0
