# Bounded big-endian reads and writes over raw memory: the Kafka protocol's primitive types.
#
# Every function checks the room before it touches a byte, returns a status, and on any status but 0
# leaves both the cursor and its outputs as they were. Nothing allocates, nothing holds a reference:
# the caller keeps the memory between `pos` and `end` alive. The load_*/store_* functions at the top
# check nothing; they are for offsets that the caller has already compared with the end.
#
# Strings and bytes come back as a pointer into the buffer and a length; null is (NULL, -1), empty
# is (pointer, 0). Oracle of the variable-length integers: tests/support/storage/record_oracle.py.
# Source: protocol guide, "Protocol Primitive Types".

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "<endian.h>" nogil:
    uint16_t be16toh(uint16_t)
    uint32_t be32toh(uint32_t)
    uint64_t be64toh(uint64_t)
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)


cdef enum ReadStatus:
    READ_OK = 0
    READ_TRUNCATED = 1     # the value, or the bytes its length announces, end after `end`
    READ_OVERLONG = 2      # a variable-length integer that does not fit its type
    READ_BAD_LENGTH = 3    # a length or count that is negative (below -1 where null is allowed)


cdef enum WriteStatus:
    WRITE_OK = 0
    WRITE_FULL = 1         # no room up to `end`; nothing was written
    WRITE_BAD_LENGTH = 2   # a length below -1, or too long for its length field


cdef struct Reader:
    const uint8_t* pos
    const uint8_t* end     # exclusive


cdef struct Writer:
    uint8_t* pos
    uint8_t* end           # exclusive


# ---- unchecked loads and stores ------------------------------------------------------------------

cdef inline int8_t load_i8(const uint8_t* p) noexcept nogil:
    return <int8_t>p[0]


cdef inline int16_t load_i16(const uint8_t* p) noexcept nogil:
    cdef uint16_t raw
    memcpy(&raw, p, 2)
    return <int16_t>be16toh(raw)


cdef inline int32_t load_i32(const uint8_t* p) noexcept nogil:
    cdef uint32_t raw
    memcpy(&raw, p, 4)
    return <int32_t>be32toh(raw)


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t raw
    memcpy(&raw, p, 4)
    return be32toh(raw)


cdef inline int64_t load_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t raw
    memcpy(&raw, p, 8)
    return <int64_t>be64toh(raw)


cdef inline void store_i8(uint8_t* p, int8_t value) noexcept nogil:
    p[0] = <uint8_t>value


cdef inline void store_i16(uint8_t* p, int16_t value) noexcept nogil:
    cdef uint16_t raw = htobe16(<uint16_t>value)
    memcpy(p, &raw, 2)


cdef inline void store_i32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t raw = htobe32(<uint32_t>value)
    memcpy(p, &raw, 4)


cdef inline void store_u32(uint8_t* p, uint32_t value) noexcept nogil:
    cdef uint32_t raw = htobe32(value)
    memcpy(p, &raw, 4)


cdef inline void store_i64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t raw = htobe64(<uint64_t>value)
    memcpy(p, &raw, 8)


# ---- reader --------------------------------------------------------------------------------------

cdef inline Reader make_reader(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Reader r
    r.pos = data
    r.end = data + size
    return r


cdef inline Py_ssize_t bytes_left(const Reader* r) noexcept nogil:
    return r.end - r.pos


cdef inline ReadStatus skip(Reader* r, Py_ssize_t n) noexcept nogil:
    if n < 0:
        return READ_BAD_LENGTH
    if n > r.end - r.pos:
        return READ_TRUNCATED
    r.pos += n
    return READ_OK


cdef inline ReadStatus read_i8(Reader* r, int8_t* out) noexcept nogil:
    if r.end - r.pos < 1:
        return READ_TRUNCATED
    out[0] = load_i8(r.pos)
    r.pos += 1
    return READ_OK


cdef inline ReadStatus read_i16(Reader* r, int16_t* out) noexcept nogil:
    if r.end - r.pos < 2:
        return READ_TRUNCATED
    out[0] = load_i16(r.pos)
    r.pos += 2
    return READ_OK


cdef inline ReadStatus read_i32(Reader* r, int32_t* out) noexcept nogil:
    if r.end - r.pos < 4:
        return READ_TRUNCATED
    out[0] = load_i32(r.pos)
    r.pos += 4
    return READ_OK


cdef inline ReadStatus read_u32(Reader* r, uint32_t* out) noexcept nogil:
    if r.end - r.pos < 4:
        return READ_TRUNCATED
    out[0] = load_u32(r.pos)
    r.pos += 4
    return READ_OK


cdef inline ReadStatus read_i64(Reader* r, int64_t* out) noexcept nogil:
    if r.end - r.pos < 8:
        return READ_TRUNCATED
    out[0] = load_i64(r.pos)
    r.pos += 8
    return READ_OK


cdef inline ReadStatus read_raw(Reader* r, Py_ssize_t n, const uint8_t** p) noexcept nogil:
    # The next n bytes as they are (a UUID is read_raw(r, 16, &p)).
    if n < 0:
        return READ_BAD_LENGTH
    if n > r.end - r.pos:
        return READ_TRUNCATED
    p[0] = r.pos
    r.pos += n
    return READ_OK


# Decode one unsigned 32-bit varint. WIRE: 1..5 bytes, low 7 bits first, high bit means "more". A
# padded encoding (80 00 for 0) is accepted, as everywhere in Kafka; one whose fifth byte holds bits
# above 31 is READ_OVERLONG.
cdef inline ReadStatus read_uvarint(Reader* r, uint32_t* out) noexcept nogil:
    cdef:
        const uint8_t* p = r.pos
        uint32_t raw = 0
        uint8_t byte
        int shift
    if p < r.end and p[0] < 0x80:
        out[0] = p[0]
        r.pos = p + 1
        return READ_OK
    for shift in range(0, 35, 7):
        if p >= r.end:
            return READ_TRUNCATED
        byte = p[0]
        p += 1
        if shift == 28 and byte > 0x0F:
            return READ_OVERLONG
        raw |= (<uint32_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            out[0] = raw
            r.pos = p
            return READ_OK
    return READ_OVERLONG


# The same with 64 bits: 1..10 bytes.
cdef inline ReadStatus read_uvarlong(Reader* r, uint64_t* out) noexcept nogil:
    cdef:
        const uint8_t* p = r.pos
        uint64_t raw = 0
        uint8_t byte
        int shift
    if p < r.end and p[0] < 0x80:
        out[0] = p[0]
        r.pos = p + 1
        return READ_OK
    for shift in range(0, 70, 7):
        if p >= r.end:
            return READ_TRUNCATED
        byte = p[0]
        p += 1
        if shift == 63 and byte > 0x01:
            return READ_OVERLONG
        raw |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            out[0] = raw
            r.pos = p
            return READ_OK
    return READ_OVERLONG


cdef inline ReadStatus read_varint(Reader* r, int32_t* out) noexcept nogil:
    # Zigzag: 0, -1, 1, -2 are sent as 0, 1, 2, 3.
    cdef uint32_t raw = 0
    cdef ReadStatus status = read_uvarint(r, &raw)
    if status == READ_OK:
        out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return status


cdef inline ReadStatus read_varlong(Reader* r, int64_t* out) noexcept nogil:
    cdef uint64_t raw = 0
    cdef ReadStatus status = read_uvarlong(r, &raw)
    if status == READ_OK:
        out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return status


cdef inline ReadStatus take_sized(
    Reader* r, const uint8_t* body, int64_t n, const uint8_t** p, int32_t* size
) noexcept nogil:
    # Shared end of the four reads below: n bytes at `body`, or null for n == -1.
    if n < 0:
        if n != -1:
            return READ_BAD_LENGTH
        p[0] = NULL
        size[0] = -1
        r.pos = body
        return READ_OK
    if n > r.end - body:
        return READ_TRUNCATED
    p[0] = body
    size[0] = <int32_t>n
    r.pos = body + n
    return READ_OK


cdef inline ReadStatus read_string(Reader* r, const uint8_t** p, int32_t* n) noexcept nogil:
    # STRING and NULLABLE_STRING: int16 length, -1 is null.
    if r.end - r.pos < 2:
        return READ_TRUNCATED
    return take_sized(r, r.pos + 2, load_i16(r.pos), p, n)


cdef inline ReadStatus read_bytes(Reader* r, const uint8_t** p, int32_t* n) noexcept nogil:
    # BYTES, NULLABLE_BYTES and RECORDS: int32 length, -1 is null.
    if r.end - r.pos < 4:
        return READ_TRUNCATED
    return take_sized(r, r.pos + 4, load_i32(r.pos), p, n)


cdef inline ReadStatus read_compact_bytes(Reader* r, const uint8_t** p, int32_t* n) noexcept nogil:
    # COMPACT_BYTES, COMPACT_RECORDS and their nullable kinds: unsigned varint of length + 1, 0 is
    # null.
    cdef uint32_t raw = 0
    cdef Reader ahead = r[0]
    cdef ReadStatus status = read_uvarint(&ahead, &raw)
    if status != READ_OK:
        return status
    if raw > 0x80000000u:
        return READ_BAD_LENGTH
    return take_sized(r, ahead.pos, <int64_t>raw - 1, p, n)


cdef inline ReadStatus read_compact_string(Reader* r, const uint8_t** p, int32_t* n) noexcept nogil:
    # COMPACT_STRING and COMPACT_NULLABLE_STRING: as compact bytes, at most 32767 long.
    cdef uint32_t raw = 0
    cdef Reader ahead = r[0]
    cdef ReadStatus status = read_uvarint(&ahead, &raw)
    if status != READ_OK:
        return status
    if raw > 0x8000:
        return READ_BAD_LENGTH
    return take_sized(r, ahead.pos, <int64_t>raw - 1, p, n)


cdef inline ReadStatus read_array_count(
    Reader* r, Py_ssize_t element_bytes_min, int32_t* count
) noexcept nogil:
    # ARRAY: int32 count, -1 is null. BOUND: a count whose smallest elements would not fit in what
    # is left is READ_TRUNCATED at once, so a caller may size memory by it.
    cdef int32_t n
    if r.end - r.pos < 4:
        return READ_TRUNCATED
    n = load_i32(r.pos)
    if n < -1:
        return READ_BAD_LENGTH
    if n > 0 and <int64_t>n * element_bytes_min > r.end - r.pos - 4:
        return READ_TRUNCATED
    r.pos += 4
    count[0] = n
    return READ_OK


cdef inline ReadStatus read_compact_array_count(
    Reader* r, Py_ssize_t element_bytes_min, int32_t* count
) noexcept nogil:
    # COMPACT_ARRAY: unsigned varint of count + 1, 0 is null. Bounded as read_array_count.
    cdef uint32_t raw = 0
    cdef Reader ahead = r[0]
    cdef ReadStatus status = read_uvarint(&ahead, &raw)
    if status != READ_OK:
        return status
    if raw > 0x80000000u:
        return READ_BAD_LENGTH
    if raw > 1 and (<int64_t>raw - 1) * element_bytes_min > ahead.end - ahead.pos:
        return READ_TRUNCATED
    r.pos = ahead.pos
    count[0] = <int32_t>(<int64_t>raw - 1)
    return READ_OK


cdef inline ReadStatus skip_tagged_fields(Reader* r) noexcept nogil:
    # The tagged-field section that ends each structure of a flexible version (KIP-482), whatever it
    # holds.
    cdef:
        Reader ahead = r[0]
        uint32_t fields = 0
        uint32_t tag = 0
        uint32_t size = 0
        ReadStatus status
    if ahead.pos < ahead.end and ahead.pos[0] == 0:
        r.pos += 1
        return READ_OK
    status = read_uvarint(&ahead, &fields)
    if status != READ_OK:
        return status
    # BOUND: each turn consumes at least two bytes or returns, so a false count costs no more than
    # the buffer.
    while fields > 0:
        status = read_uvarint(&ahead, &tag)
        if status != READ_OK:
            return status
        status = read_uvarint(&ahead, &size)
        if status != READ_OK:
            return status
        status = skip(&ahead, <Py_ssize_t>size)
        if status != READ_OK:
            return status
        fields -= 1
    r.pos = ahead.pos
    return READ_OK


# ---- writer --------------------------------------------------------------------------------------

cdef inline Writer make_writer(uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Writer w
    w.pos = data
    w.end = data + size
    return w


cdef inline Py_ssize_t room_left(const Writer* w) noexcept nogil:
    return w.end - w.pos


cdef inline uint32_t zigzag32(int32_t value) noexcept nogil:
    return (<uint32_t>value << 1) ^ <uint32_t>(value >> 31)


cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int uvarlong_size(uint64_t value) noexcept nogil:
    # Encoded size in bytes, 1..10; also right for the 32-bit kind.
    cdef int n = 1
    while value >= 0x80:
        value >>= 7
        n += 1
    return n


cdef inline int varint_size(int32_t value) noexcept nogil:
    return uvarlong_size(zigzag32(value))


cdef inline int varlong_size(int64_t value) noexcept nogil:
    return uvarlong_size(zigzag64(value))


cdef inline uint8_t* store_uvarlong(uint8_t* p, uint64_t value) noexcept nogil:
    # Unchecked: the caller has uvarlong_size(value) bytes at p. Returns the byte after.
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


cdef inline WriteStatus write_i8(Writer* w, int8_t value) noexcept nogil:
    if w.end - w.pos < 1:
        return WRITE_FULL
    store_i8(w.pos, value)
    w.pos += 1
    return WRITE_OK


cdef inline WriteStatus write_i16(Writer* w, int16_t value) noexcept nogil:
    if w.end - w.pos < 2:
        return WRITE_FULL
    store_i16(w.pos, value)
    w.pos += 2
    return WRITE_OK


cdef inline WriteStatus write_i32(Writer* w, int32_t value) noexcept nogil:
    if w.end - w.pos < 4:
        return WRITE_FULL
    store_i32(w.pos, value)
    w.pos += 4
    return WRITE_OK


cdef inline WriteStatus write_u32(Writer* w, uint32_t value) noexcept nogil:
    if w.end - w.pos < 4:
        return WRITE_FULL
    store_u32(w.pos, value)
    w.pos += 4
    return WRITE_OK


cdef inline WriteStatus write_i64(Writer* w, int64_t value) noexcept nogil:
    if w.end - w.pos < 8:
        return WRITE_FULL
    store_i64(w.pos, value)
    w.pos += 8
    return WRITE_OK


cdef inline WriteStatus write_raw(Writer* w, const uint8_t* p, Py_ssize_t n) noexcept nogil:
    if n < 0:
        return WRITE_BAD_LENGTH
    if n > w.end - w.pos:
        return WRITE_FULL
    if n > 0:
        memcpy(w.pos, p, <size_t>n)
        w.pos += n
    return WRITE_OK


cdef inline WriteStatus write_uvarlong(Writer* w, uint64_t value) noexcept nogil:
    if w.end - w.pos < 10 and w.end - w.pos < uvarlong_size(value):
        return WRITE_FULL
    w.pos = store_uvarlong(w.pos, value)
    return WRITE_OK


cdef inline WriteStatus write_uvarint(Writer* w, uint32_t value) noexcept nogil:
    return write_uvarlong(w, value)


cdef inline WriteStatus write_varint(Writer* w, int32_t value) noexcept nogil:
    return write_uvarlong(w, zigzag32(value))


cdef inline WriteStatus write_varlong(Writer* w, int64_t value) noexcept nogil:
    return write_uvarlong(w, zigzag64(value))


cdef inline WriteStatus write_string(Writer* w, const uint8_t* p, int32_t n) noexcept nogil:
    # n == -1 writes null; p is not looked at then.
    if n < -1 or n > 32767:
        return WRITE_BAD_LENGTH
    if w.end - w.pos < 2 + (<Py_ssize_t>n if n > 0 else 0):
        return WRITE_FULL
    write_i16(w, <int16_t>n)
    if n > 0:
        write_raw(w, p, n)
    return WRITE_OK


cdef inline WriteStatus write_bytes(Writer* w, const uint8_t* p, int32_t n) noexcept nogil:
    if n < -1:
        return WRITE_BAD_LENGTH
    if w.end - w.pos < 4 + (<Py_ssize_t>n if n > 0 else 0):
        return WRITE_FULL
    write_i32(w, n)
    if n > 0:
        write_raw(w, p, n)
    return WRITE_OK


cdef inline WriteStatus write_compact_bytes(Writer* w, const uint8_t* p, int32_t n) noexcept nogil:
    cdef uint64_t raw = <uint64_t>(<int64_t>n + 1)
    if n < -1:
        return WRITE_BAD_LENGTH
    if w.end - w.pos < uvarlong_size(raw) + (<Py_ssize_t>n if n > 0 else 0):
        return WRITE_FULL
    w.pos = store_uvarlong(w.pos, raw)
    if n > 0:
        write_raw(w, p, n)
    return WRITE_OK


cdef inline WriteStatus write_compact_string(Writer* w, const uint8_t* p, int32_t n) noexcept nogil:
    if n > 32767:
        return WRITE_BAD_LENGTH
    return write_compact_bytes(w, p, n)


cdef inline WriteStatus write_array_count(Writer* w, int32_t count) noexcept nogil:
    if count < -1:
        return WRITE_BAD_LENGTH
    return write_i32(w, count)


cdef inline WriteStatus write_compact_array_count(Writer* w, int32_t count) noexcept nogil:
    if count < -1:
        return WRITE_BAD_LENGTH
    return write_uvarlong(w, <uint64_t>(<int64_t>count + 1))


cdef inline WriteStatus write_no_tagged_fields(Writer* w) noexcept nogil:
    return write_i8(w, 0)
