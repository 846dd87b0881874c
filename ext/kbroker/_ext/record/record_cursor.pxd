# Reads the records of fetched record sets of any format one by one, for callers in Cython.
#
# A RecordCursor walks the batches of a set (range, checksum, codec, control and aborted batches) and
# opens the records of one batch at a time as a Run; next_row reads them. The pointers in a Row point
# into the set or the cursor's buffer and are valid until the next run is opened.

from cpython.buffer cimport Py_buffer
from libc.stdint cimport INT32_MAX, int8_t, int32_t, int64_t, uint8_t

from kbroker._ext.record.codec_frames cimport Lz4DecodeBlock
from kbroker._ext.record.legacy_records cimport (
    MESSAGE_CODEC_MASK,
    MESSAGE_LOG_APPEND_TIME,
    MESSAGE_OK,
    Message,
    read_message,
)
from kbroker._ext.record.record_batch cimport BatchInfo, Varint, unzigzag, varint_at

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* sum) noexcept nogil

cdef enum RunStatus:
    RUN_DAMAGED = -1      # cursor.damage says what is wrong, cursor.damaged_at where
    RUN_NONE = 0          # the end of the set
    RUN_READY = 1
    RUN_END = 2           # the end of the range
    RUN_NEEDS_GIL = 3     # call RecordCursor.open_run, which decompresses
    RUN_CLOSED = 4        # with keep_closed: a wanted batch of format 2, for _open_batch

cdef enum RowStatus:
    ROW_DAMAGED = -1
    ROW_NONE = 0
    ROW_OK = 1

cdef enum Damage:
    DAMAGE_NONE = 0
    DAMAGE_LENGTH = 1
    DAMAGE_MAGIC = 2
    DAMAGE_CRC = 3
    DAMAGE_HEADER = 4
    DAMAGE_RECORD = 5
    DAMAGE_CODEC = 6
    DAMAGE_COMPRESSED = 7
    DAMAGE_TOO_LARGE = 8
    DAMAGE_ORDER = 9

# The records of one batch, or the messages of one set of format 0 or 1.
cdef struct Run:
    const uint8_t* pos
    const uint8_t* end
    int32_t left                 # format 2: records still to be read
    int32_t last_offset_delta
    int64_t base_offset          # format 1: added to the offset of each message; 0 if those are absolute
    int64_t previous_offset      # offsets must increase
    int64_t first_timestamp
    int64_t append_time          # the timestamp of all records if timestamp_type is 1
    int64_t next_offset          # first offset after the batch
    int8_t magic
    int8_t timestamp_type        # -1: format 0 has none; 0: create time; 1: append time

# One record, in place. Timestamp in milliseconds, -1 without one. A size of -1 is null.
cdef struct Row:
    int64_t offset
    int64_t timestamp
    const uint8_t* start
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers       # the encoded headers, up to headers_end
    const uint8_t* headers_end
    int32_t key_size
    int32_t value_size
    int32_t header_count


cdef struct Aborted:
    int64_t producer_id
    int64_t first_offset


# Read the next record of format 2. WIRE: length, attributes (unused), timestamp delta, offset delta,
# key, value, headers; all but the second are varints or begin with one.
cdef inline RowStatus next_record(Run* run, Row* row) noexcept nogil:
    cdef:
        const uint8_t* p = run.pos
        const uint8_t* end = run.end
        Varint v
        int64_t n
    if run.left == 0:
        return ROW_NONE if p == end else ROW_DAMAGED
    v = varint_at(p, end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < 6 or n > end - v.next:
        return ROW_DAMAGED
    row.start = p
    end = v.next + n
    v = varint_at(v.next + 1, end, True)
    if v.next == NULL or __builtin_add_overflow(run.first_timestamp, unzigzag(v.raw), &row.timestamp):
        return ROW_DAMAGED
    if run.timestamp_type == 1:
        row.timestamp = run.append_time
    v = varint_at(v.next, end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < 0 or n > run.last_offset_delta:
        return ROW_DAMAGED
    # SAFETY: base_offset + last_offset_delta has been checked not to overflow.
    row.offset = run.base_offset + n
    if row.offset <= run.previous_offset:
        return ROW_DAMAGED
    v = varint_at(v.next, end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < -1 or n > end - v.next:
        return ROW_DAMAGED
    row.key = v.next
    row.key_size = <int32_t>n
    v = varint_at(v.next + (n if n > 0 else 0), end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < -1 or n > end - v.next:
        return ROW_DAMAGED
    row.value = v.next
    row.value_size = <int32_t>n
    v = varint_at(v.next + (n if n > 0 else 0), end, False)
    n = unzigzag(v.raw)
    # A header takes at least two bytes.
    if v.next == NULL or n < 0 or 2 * n > end - v.next or (n == 0 and v.next != end):
        return ROW_DAMAGED
    row.headers = v.next
    row.headers_end = end
    row.header_count = <int32_t>n
    run.previous_offset = row.offset
    run.pos = end
    run.left -= 1
    return ROW_OK


cdef inline RowStatus next_message(Run* run, Row* row) noexcept nogil:
    # The same for formats 0 and 1.
    cdef Message message
    if run.pos == run.end:
        return ROW_NONE
    if read_message(run.pos, run.end, &message) != MESSAGE_OK:
        return ROW_DAMAGED
    if message.magic != run.magic or message.attributes & MESSAGE_CODEC_MASK or message.offset < 0:
        return ROW_DAMAGED
    if __builtin_add_overflow(run.base_offset, message.offset, &row.offset):
        return ROW_DAMAGED
    if row.offset <= run.previous_offset or row.offset >= run.next_offset:
        return ROW_DAMAGED
    row.start = run.pos
    row.timestamp = run.append_time if run.timestamp_type == 1 else message.timestamp
    row.key = message.key
    row.key_size = message.key_size
    row.value = message.value
    row.value_size = message.value_size
    row.headers = row.headers_end = run.pos
    row.header_count = 0
    run.previous_offset = row.offset
    run.pos += message.size
    return ROW_OK


cdef inline RowStatus next_row(Run* run, Row* row) noexcept nogil:
    return next_record(run, row) if run.magic == 2 else next_message(run, row)


# Make next_row return `row` again, which must be the last one it returned.
cdef inline void unread(Run* run, const Row* row) noexcept nogil:
    run.pos = row.start
    run.previous_offset = row.offset - 1
    run.left += 1


# Read one header and advance p[0]; False if it is malformed.
cdef inline bint next_header(
    const uint8_t** p, const uint8_t* end, const uint8_t** key, int32_t* key_size, const uint8_t** value,
    int32_t* value_size
) noexcept nogil:
    cdef Varint v = varint_at(p[0], end, False)
    cdef int64_t n = unzigzag(v.raw)
    if v.next == NULL or n < 0 or n > end - v.next:
        return False
    key[0] = v.next
    key_size[0] = <int32_t>n
    v = varint_at(v.next + n, end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < -1 or n > end - v.next:
        return False
    value[0] = v.next
    value_size[0] = <int32_t>n
    p[0] = v.next + (n if n > 0 else 0)
    return True


cdef class RecordCursor:
    cdef:
        Run run                       # opened by next_run or open_run
        int64_t next_offset           # everything below has been read or skipped; ignore rows below it
        int64_t end                   # of the range, exclusive
        int32_t leader_epoch          # of the batch that next_run has opened or skipped last, -1 if it has none
        Damage damage
        int64_t damaged_at            # offset
        int64_t batches               # opened so far
        bint keep_closed              # next_run leaves it to the caller whether to open a batch

        Py_buffer _view               # the set; keeps its buffer alive
        bint _loaded
        const uint8_t* _pos
        const uint8_t* _limit
        const uint8_t* _batch         # the current batch or message
        BatchInfo _info
        Message _wrapper
        bytes _content                # decompressed by Python
        uint8_t* _scratch             # decompressed here
        int64_t _scratch_size
        int64_t _decompressed_max
        bint _check_crcs
        Aborted* _aborted             # ordered by first offset
        Py_ssize_t _aborted_count
        Py_ssize_t _aborted_at        # the walk has reached those before it
        int64_t* _active              # producers whose transaction is aborted; room for _aborted_count
        Py_ssize_t _active_count

    # Open the next batch's records as `run`. Call finish_run after reading them.
    cdef RunStatus next_run(self) noexcept nogil
    # Open `run` after RUN_NEEDS_GIL. False: the batch is damaged.
    cdef bint open_run(self) except -1
    cdef void finish_run(self) noexcept nogil
    cdef RunStatus _damaged(self, Damage damage, int64_t offset) noexcept nogil
    cdef RunStatus _next_batch(self, const uint8_t* p) noexcept nogil
    cdef RunStatus _next_legacy(self, const uint8_t* p) noexcept nogil
    cdef bint _is_aborted(self) noexcept nogil
    cdef RunStatus _open_batch(self) noexcept nogil
    cdef RunStatus _open_lz4(self) noexcept nogil
    cdef void _open_records(self, const uint8_t* p, int64_t size) noexcept nogil
    cdef bint _open_wrapper(self) except -1
    cdef void _open_messages(self) noexcept nogil
    cdef void _unload(self) noexcept
