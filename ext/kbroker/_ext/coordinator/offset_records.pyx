"""Offset commit records of ``__consumer_offsets``: written, read, and replayed in bulk when loading.

WIRE: a key is an int16 (0 or 1, same format), then group, topic and partition; a value is an int16
version, then its fields (``kbroker.coordinator.records.offsets_topic`` has both, and is the oracle
for what is accepted here). ``perf`` has the records per second of a load.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    make_reader,
    read_compact_string,
    read_i16,
    read_i32,
    read_i64,
    read_raw,
    read_string,
    read_uvarint,
    read_varint,
    read_varlong,
    skip,
    store_i16,
    store_i32,
    store_i64,
)
from kbroker._ext.coordinator.offset_store cimport Commit, OffsetStore, Text
from kbroker._ext.record.plain_batch cimport read_plain_batch
from kbroker._ext.record.record_batch cimport ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES, BatchInfo

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    LEGACY_KEY = 0
    KEY = 1
    VALUE_VERSION = 3              # COMPAT: the newest that every Kafka since 2.7 reads
    EXPIRING_VALUE_VERSION = 1     # the only one with an expire timestamp
    VALUE_VERSION_MAX = 4
    FIRST_FLEXIBLE = 4
    TOPIC_ID_TAG = 0
    TEXT_MAX = 32767

cdef enum RecordStatus:
    RECORD_OK = 0
    RECORD_OTHER = 1               # of another type, or written by a newer broker
    RECORD_DAMAGED = 2


# ---- reading -------------------------------------------------------------------------------------

cdef bint is_utf8(const uint8_t* p, int32_t n):
    cdef int32_t i = 0
    cdef uint64_t word
    while n - i >= 8:
        memcpy(&word, p + i, 8)
        if word & 0x8080808080808080u:
            break
        i += 8
    while i < n and p[i] < 0x80:
        i += 1
    if i == n:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char*>p + i, n - i, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef bint read_text(Reader* r, Text* text, bint compact):
    # A string that is not null.
    text.data = NULL
    text.size = 0
    if compact:
        if read_compact_string(r, &text.data, &text.size) != READ_OK:
            return False
    elif read_string(r, &text.data, &text.size) != READ_OK:
        return False
    return text.data != NULL and is_utf8(text.data, text.size)


cdef RecordStatus read_key(const uint8_t* p, Py_ssize_t n, Commit* commit):
    cdef Reader r = make_reader(p, n)
    cdef int16_t kind = 0
    if read_i16(&r, &kind) != READ_OK:
        return RECORD_DAMAGED
    if kind != LEGACY_KEY and kind != KEY:
        return RECORD_OTHER
    if not read_text(&r, &commit.group, False) or not read_text(&r, &commit.topic, False):
        return RECORD_DAMAGED
    if read_i32(&r, &commit.partition) != READ_OK or r.pos != r.end:
        return RECORD_DAMAGED
    return RECORD_OK


cdef bint read_tags(Reader* r, Commit* commit):
    cdef uint32_t fields = 0, tag = 0, size = 0
    cdef const uint8_t* data = NULL
    if read_uvarint(r, &fields) != READ_OK:
        return False
    # BOUND: each iteration consumes two bytes or returns.
    while fields > 0:
        if read_uvarint(r, &tag) != READ_OK or read_uvarint(r, &size) != READ_OK:
            return False
        if read_raw(r, <Py_ssize_t>size, &data) != READ_OK:
            return False
        if tag == TOPIC_ID_TAG:
            if size != 16:
                return False
            commit.topic_id = data
        fields -= 1
    return True


cdef RecordStatus read_value(const uint8_t* p, Py_ssize_t n, bint is_legacy, Commit* commit):
    cdef Reader r = make_reader(p, n)
    cdef int16_t version = 0
    if read_i16(&r, &version) != READ_OK:
        return RECORD_DAMAGED
    if version < 0 or version > (0 if is_legacy else VALUE_VERSION_MAX):
        return RECORD_OTHER
    commit.leader_epoch = -1
    commit.expire_timestamp = -1
    commit.topic_id = NULL
    if read_i64(&r, &commit.offset) != READ_OK:
        return RECORD_DAMAGED
    if version >= 3 and read_i32(&r, &commit.leader_epoch) != READ_OK:
        return RECORD_DAMAGED
    if not read_text(&r, &commit.metadata, version >= FIRST_FLEXIBLE):
        return RECORD_DAMAGED
    if read_i64(&r, &commit.commit_timestamp) != READ_OK:
        return RECORD_DAMAGED
    if version == EXPIRING_VALUE_VERSION:
        if read_i64(&r, &commit.expire_timestamp) != READ_OK:
            return RECORD_DAMAGED
    if version >= FIRST_FLEXIBLE and not read_tags(&r, commit):
        return RECORD_DAMAGED
    return RECORD_OK if r.pos == r.end else RECORD_DAMAGED


# Apply one record to the store, unless it is of another type or damaged; value NULL: a tombstone.
cdef int take(
    OffsetStore store,
    int64_t log_offset,
    int64_t producer_id,
    const uint8_t* key,
    Py_ssize_t key_size,
    const uint8_t* value,
    Py_ssize_t value_size,
) except -1:
    cdef Commit commit
    cdef RecordStatus status
    memset(&commit, 0, sizeof(Commit))
    status = read_key(key, key_size, &commit)
    if status != RECORD_OK:
        return status
    if value == NULL:
        store.drop(commit.group, commit.topic, commit.partition)
        return RECORD_OK
    # SAFETY: the key is long enough to contain its type.
    status = read_value(value, value_size, key[1] == LEGACY_KEY, &commit)
    if status == RECORD_OK:
        store.put(&commit, log_offset, producer_id)
    return status


def replay_record(
    OffsetStore store not None,
    int64_t log_offset,
    int64_t producer_id,
    bytes key not None,
    bytes value,
) -> bool:
    """Apply one record to the store; False, without any change, if it is not an offset commit."""
    cdef const uint8_t* data = NULL
    cdef Py_ssize_t size = 0
    if value is not None:
        data = <const uint8_t*>PyBytes_AS_STRING(value)
        size = PyBytes_GET_SIZE(value)
    return take(
        store,
        log_offset,
        producer_id,
        <const uint8_t*>PyBytes_AS_STRING(key),
        PyBytes_GET_SIZE(key),
        data,
        size,
    ) == RECORD_OK


# ---- loading -------------------------------------------------------------------------------------

# Apply all records of a batch; False: one of them is of another type, or damaged. The records before
# it do no harm: the whole batch can be replayed again.
cdef bint take_records(
    OffsetStore store, const uint8_t* p, Py_ssize_t size, const BatchInfo* info
) except *:
    cdef:
        Reader r = make_reader(p, size)
        Reader record
        int32_t length = 0, delta = 0, key_size = 0, value_size = 0
        int64_t timestamp_delta = 0
        int64_t producer_id = -1
        int32_t i
        const uint8_t* key
        const uint8_t* value
    if info.attributes & ATTRIBUTE_TRANSACTIONAL:
        producer_id = info.producer_id
    # SAFETY: read_plain_batch has checked every length, so no read here can fail; they are
    # bounds-checked anyway.
    for i in range(info.record_count):
        key = value = NULL
        read_varint(&r, &length)
        record = make_reader(r.pos, length)
        skip(&r, length)
        skip(&record, 1)
        read_varlong(&record, &timestamp_delta)
        read_varint(&record, &delta)
        read_varint(&record, &key_size)
        if key_size < 0:
            return False
        read_raw(&record, key_size, &key)
        read_varint(&record, &value_size)
        if value_size >= 0:
            read_raw(&record, value_size, &value)
        if take(
            store, info.base_offset + delta, producer_id, key, key_size, value, value_size
        ) != RECORD_OK:
            return False
    return True


def replay_chunk(OffsetStore store not None, bytes data not None, Py_ssize_t position) -> tuple:
    """Apply complete batches of offset commits in ``data``, which come from a log, in order.

    Returns (position of the first batch not applied, records applied, offset after the last batch
    applied or -1). Stops at a batch that is incomplete, damaged or compressed, at a marker, and at
    one that contains anything other than valid offset commits.
    """
    cdef:
        const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        Py_ssize_t size = PyBytes_GET_SIZE(data)
        Py_ssize_t batch_size
        BatchInfo info
        int64_t taken = 0
        int64_t next_offset = -1
    if position < 0 or position > size:
        raise IndexError(f"position {position} is outside {size} bytes")
    while position < size:
        batch_size = read_plain_batch(start + position, size - position, &info)
        if batch_size == 0 or not take_records(
            store, start + position + BATCH_HEADER_BYTES, batch_size - BATCH_HEADER_BYTES, &info
        ):
            break
        taken += info.record_count
        next_offset = info.base_offset + info.last_offset_delta + 1
        position += batch_size
    return position, taken, next_offset


# ---- writing -------------------------------------------------------------------------------------

cdef Text text_of(str value) except *:
    cdef Text text
    cdef Py_ssize_t size = 0
    text.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(value, &size)
    if size > TEXT_MAX:
        raise OverflowError(f"a string of {size} bytes")
    text.size = <int32_t>size
    return text


cdef inline uint8_t* store_text(uint8_t* p, Text text) noexcept:
    store_i16(p, <int16_t>text.size)
    memcpy(p + 2, text.data, <size_t>text.size)
    return p + 2 + text.size


def encode_key(str group not None, str topic not None, int32_t partition) -> bytes:
    """Encode the key of a partition's offset."""
    cdef Text group_text = text_of(group)
    cdef Text topic_text = text_of(topic)
    cdef bytes key = PyBytes_FromStringAndSize(NULL, 10 + group_text.size + topic_text.size)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(key)
    store_i16(p, KEY)
    p = store_text(p + 2, group_text)
    p = store_text(p, topic_text)
    store_i32(p, partition)
    return key


def encode_value(
    int64_t offset,
    int32_t leader_epoch,
    str metadata not None,
    int64_t commit_timestamp,
    int64_t expire_timestamp=-1,
) -> bytes:
    """Encode the value of a commit. With an expire timestamp it has no leader epoch."""
    cdef Text text = text_of(metadata)
    cdef bint is_expiring = expire_timestamp != -1
    # WIRE: the extra field is the leader epoch, or the expire timestamp at the end.
    cdef Py_ssize_t size = 20 + text.size + (8 if is_expiring else 4)
    cdef bytes value = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(value)
    store_i16(p, EXPIRING_VALUE_VERSION if is_expiring else VALUE_VERSION)
    store_i64(p + 2, offset)
    p += 10
    if not is_expiring:
        store_i32(p, leader_epoch)
        p += 4
    p = store_text(p, text)
    store_i64(p, commit_timestamp)
    if is_expiring:
        store_i64(p + 8, expire_timestamp)
    return value
