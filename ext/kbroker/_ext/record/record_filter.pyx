"""Which records of a batch compaction keeps; see record_filter.pxd.

Runs in the threads of the cleaner process, without the GIL if a batch is large. Reads stay within the bounds of each
record; a batch with inconsistent records is RECORDS_BAD.
"""
from libc.string cimport memcpy

from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    load_i16,
    make_reader,
    read_varint,
    read_varlong,
    store_uvarlong,
    varlong_size,
    zigzag32,
    zigzag64,
)
from kbroker._ext.record.record_batch cimport ATTRIBUTE_CONTROL

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* sum) noexcept nogil

cdef enum:
    RECORD_BYTES_MIN = 7


# One record, in place. WIRE: length, attributes, timestamp delta, offset delta, key, value, headers.
cdef struct RecordView:
    const uint8_t* rest          # from the offset delta on
    const uint8_t* next          # the byte after the record
    int64_t timestamp_delta
    int32_t offset_delta
    const uint8_t* key
    int32_t key_size             # -1: no key
    bint has_value


cdef bint view_record(const uint8_t* p, const uint8_t* end, RecordView* out) noexcept nogil:
    cdef Reader r = make_reader(p, end - p)
    cdef int32_t size = 0
    if read_varint(&r, &size) != READ_OK or size < RECORD_BYTES_MIN - 1 or size > r.end - r.pos:
        return False
    r.end = r.pos + size
    out.next = r.end
    r.pos += 1
    if read_varlong(&r, &out.timestamp_delta) != READ_OK:
        return False
    out.rest = r.pos
    if read_varint(&r, &out.offset_delta) != READ_OK or read_varint(&r, &out.key_size) != READ_OK:
        return False
    out.key = r.pos
    if out.key_size > 0:
        if out.key_size > r.end - r.pos:
            return False
        r.pos += out.key_size
    elif out.key_size < -1:
        return False
    if read_varint(&r, &size) != READ_OK or size < -1 or (size > 0 and size > r.end - r.pos):
        return False
    out.has_value = size >= 0
    return True


cdef RecordsStatus index_records(
    OffsetMap map, const BatchInfo* info, const Pass* records, int64_t start_offset
) noexcept nogil:
    cdef const uint8_t* p = records.records
    cdef const uint8_t* end = p + records.size
    cdef RecordView record
    cdef int64_t last_delta = -1
    cdef int32_t i
    if info.record_count > records.size / RECORD_BYTES_MIN:
        return RECORDS_BAD
    for i in range(info.record_count):
        if (
            not view_record(p, end, &record)
            or record.offset_delta <= last_delta
            or record.offset_delta > info.last_offset_delta
        ):
            return RECORDS_BAD
        last_delta = record.offset_delta
        if record.key_size >= 0 and info.base_offset + last_delta >= start_offset:
            if not map.put(record.key, record.key_size, info.base_offset + last_delta):
                return RECORDS_MAP_FULL
        p = record.next
    return RECORDS_OK if p == end else RECORDS_BAD


cdef RecordsStatus choose_records(OffsetMap map, const BatchInfo* info, Pass* found) noexcept nogil:
    cdef const uint8_t* p = found.records
    cdef const uint8_t* end = p + found.size
    cdef RecordView record
    cdef int64_t last_delta = -1
    cdef int64_t offset, timestamp = 0
    cdef bint is_control = info.attributes & ATTRIBUTE_CONTROL
    cdef bint keep
    cdef int32_t i
    for i in range(info.record_count):
        if (
            not view_record(p, end, &record)
            or record.offset_delta <= last_delta
            or record.offset_delta > info.last_offset_delta
            or __builtin_add_overflow(info.first_timestamp, record.timestamp_delta, &timestamp)
        ):
            return RECORDS_BAD
        last_delta = record.offset_delta
        offset = info.base_offset + last_delta
        if is_control or offset > map.latest_offset:
            keep = True
        elif record.key_size < 0:
            keep = False
            found.keyless += 1
        else:
            keep = (record.has_value or not found.drop_tombstones) and offset >= map.get(record.key, record.key_size)
        found.keep[i] = keep
        if keep:
            found.kept += 1
            found.tombstone |= not record.has_value and not is_control
            found.max_timestamp = max(found.max_timestamp, timestamp)
        p = record.next
    return RECORDS_OK if p == end else RECORDS_BAD


cdef uint8_t* copy_records(
    const BatchInfo* info, const Pass* found, bint shifted, uint64_t shift, uint8_t* out
) noexcept nogil:
    cdef const uint8_t* p = found.records
    cdef const uint8_t* end = p + found.size
    cdef RecordView record
    cdef int64_t delta
    cdef Py_ssize_t rest
    cdef int32_t i
    for i in range(info.record_count):
        view_record(p, end, &record)
        if found.keep[i]:
            if shifted:
                # Wraps around, as the sum that readers compute does.
                delta = <int64_t>(<uint64_t>record.timestamp_delta + shift)
                rest = record.next - record.rest
                out = store_uvarlong(out, zigzag32(<int32_t>(1 + varlong_size(delta) + rest)))
                out[0] = 0
                out = store_uvarlong(out + 1, zigzag64(delta))
                memcpy(out, record.rest, <size_t>rest)
                out += rest
            else:
                memcpy(out, p, <size_t>(record.next - p))
                out += record.next - p
        p = record.next
    return out


cdef int marker_type(const BatchInfo* info, const uint8_t* records, Py_ssize_t size) noexcept nogil:
    cdef RecordView record
    if info.record_count == 0:
        return -1
    if not view_record(records, records + size, &record) or record.key_size < 4:
        return -2
    return load_i16(record.key + 2)
