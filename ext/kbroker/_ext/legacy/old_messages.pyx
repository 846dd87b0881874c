"""Message sets of format 0, written and read by the clients of 0.8 (``kbroker.legacy``); format 1 is read, too.

COPY: of each payload, one when it is read, one when it is written (and what its codec needs). Oracle:
``tests/support/storage/message_sets.py``. Source: protocol guide, "Message sets"; KIP-57 for the checksum of LZ4 frames.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

cimport cython

from kbroker._ext.base.wire cimport load_i32, load_i64, load_u32
from kbroker._ext.record.codecs cimport pack
from kbroker._ext.record.down_convert cimport put_message
from kbroker._ext.record.legacy_records cimport (
    ENTRY_HEADER_BYTES,
    MESSAGE_0_BYTES_MIN,
    MESSAGE_BAD_CRC,
    MESSAGE_BAD_MAGIC,
    MESSAGE_CODEC_MASK,
    MESSAGE_CRC_AT,
    MESSAGE_LOG_APPEND_TIME,
    MESSAGE_OK,
    Message,
    MessageStatus,
    read_message,
    set_lz4_checksum,
    unwrapped,
)
from kbroker._ext.record.record_batch cimport CODEC_LZ4, CODEC_NONE

from kbroker._ext.record.legacy_records import MessageSetRejected

cdef enum:
    MESSAGE_0_HEADER_BYTES = 14      # of a message of format 0 in its entry, without key and value

# BOUND: the messages of a set are addressed by 32 bits.
cdef int64_t SET_BYTES_MAX = 0x7FFFFFFF


class InvalidMessage(ValueError):
    """A message whose checksum is wrong, or bytes that are not a message set."""


@cython.freelist(1024)
cdef class OldMessage:
    """A message: key and payload are bytes or None.

    is_valid: its checksum is right. If it is not, key and payload raise InvalidMessage. timestamp: ms, -1 in format 0.
    """

    def __init__(self, bytes payload=None, bytes key=None):
        self._key = key
        self._payload = payload
        self.timestamp = -1
        self.is_valid = True
        self._checksum = -1

    @property
    def key(self):
        """Its bytes; None if there is none."""
        self.ensure_valid()
        return self._key

    @property
    def payload(self):
        """Its bytes; None in a message that stands for a deletion."""
        self.ensure_valid()
        return self._payload

    @property
    def checksum(self) -> int:
        """As it was read; of one that is to be sent, that of format 0."""
        if self._checksum < 0:
            self._checksum = load_u32(
                <const uint8_t*>PyBytes_AS_STRING(encode_message_set([self])) + MESSAGE_CRC_AT)
        return self._checksum

    @property
    def has_key(self) -> bool:
        return self._key is not None

    @property
    def is_null(self) -> bool:
        """Whether there is no payload."""
        return self._payload is None

    @property
    def compression_codec(self) -> int:
        return self.attributes & MESSAGE_CODEC_MASK

    @property
    def size(self) -> int:
        """Bytes in a message set of format 0, without those of its offset and length."""
        return size_of(self) - ENTRY_HEADER_BYTES

    def ensure_valid(self) -> None:
        """Raises InvalidMessage if the checksum is wrong."""
        if not self.is_valid:
            raise InvalidMessage(f"a message does not match its checksum, {self.checksum}")

    def __eq__(self, other) -> bool:
        cdef OldMessage its
        if not isinstance(other, OldMessage):
            return NotImplemented
        its = other
        return self.is_valid and its.is_valid and self._key == its._key and self._payload == its._payload

    def __hash__(self) -> int:
        return hash((self._key, self._payload))

    def __repr__(self) -> str:
        what = f"payload={self._payload!r}, key={self._key!r}" if self.is_valid else "invalid"
        return f"Message({what})"


@cython.freelist(1024)
cdef class MessageAndOffset:
    """A message of a log. Unpacks: ``message, offset = found``."""

    def __init__(self, OldMessage message not None, long long offset):
        self.message = message
        self.offset = offset

    @property
    def next_offset(self) -> int:
        """The offset to fetch from next."""
        return self.offset + 1

    def __iter__(self):
        return iter((self.message, self.offset))

    def __eq__(self, other) -> bool:
        if not isinstance(other, MessageAndOffset):
            return NotImplemented
        return self.offset == other.offset and self.message == other.message

    __hash__ = None

    def __repr__(self) -> str:
        return f"MessageAndOffset({self.message!r}, offset={self.offset})"


# ---- writing -----------------------------------------------------------------------------------------------------

cdef inline int64_t size_of(OldMessage message) except -1:
    cdef int64_t size = MESSAGE_0_BYTES_MIN
    if message._key is not None:
        size += PyBytes_GET_SIZE(message._key)
    if message._payload is not None:
        size += PyBytes_GET_SIZE(message._payload)
    return size


def encode_message_set(list messages, int codec=CODEC_NONE) -> bytes:
    """A message set of format 0 with offsets from 0 on; with a codec, one message that contains the others.

    COMPAT: the offset of that one is the last of those in it. Raises InvalidMessage for a message that was read with a
    wrong checksum, ValueError for another codec or a set above 2 GiB.
    """
    cdef:
        OldMessage message
        int64_t size = 0
        int64_t offset = 0
        int32_t key_size
        int32_t payload_size
        uint8_t* p
        const uint8_t* key
        const uint8_t* payload
        bytes plain
        bytes packed
    if not CODEC_NONE <= codec <= CODEC_LZ4:
        raise ValueError(f"message format 0 has no codec {codec}")
    for message in messages:
        message.ensure_valid()
        size += size_of(message)
    if size > SET_BYTES_MAX:
        raise ValueError(f"a message set of {size} bytes: at most {SET_BYTES_MAX}")
    plain = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t*>PyBytes_AS_STRING(plain)
    for message in messages:
        key = payload = NULL
        key_size = payload_size = -1
        if message._key is not None:
            key = <const uint8_t*>PyBytes_AS_STRING(message._key)
            key_size = <int32_t>PyBytes_GET_SIZE(message._key)
        if message._payload is not None:
            payload = <const uint8_t*>PyBytes_AS_STRING(message._payload)
            payload_size = <int32_t>PyBytes_GET_SIZE(message._payload)
        # SAFETY: the set has room for the sizes that were summed up above; bytes do not change.
        p = put_message(p, offset, 0, 0, -1, key, key_size, payload, payload_size)
        offset += 1
    if codec == CODEC_NONE or not messages:
        return plain
    packed = pack(codec, <const uint8_t*>PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain), None)
    if codec == CODEC_LZ4:
        # COMPAT: readers of format 0 expect this checksum (KIP-57). No other code has a reference to `packed` yet.
        set_lz4_checksum(<uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), True)
    plain = PyBytes_FromStringAndSize(NULL, MESSAGE_0_BYTES_MIN + PyBytes_GET_SIZE(packed))
    put_message(
        <uint8_t*>PyBytes_AS_STRING(plain), offset - 1, 0, <int8_t>codec, -1, NULL, -1,
        <const uint8_t*>PyBytes_AS_STRING(packed), <int32_t>PyBytes_GET_SIZE(packed))
    return plain


# ---- reading -----------------------------------------------------------------------------------------------------

cdef object field(const uint8_t* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


# at: of the message, which is complete. An invalid one has no fields.
cdef MessageAndOffset found_at(const uint8_t* at, const Message* read, int64_t offset, int64_t timestamp, bint valid):
    cdef OldMessage message = OldMessage.__new__(OldMessage)
    cdef MessageAndOffset found = MessageAndOffset.__new__(MessageAndOffset)
    message._checksum = load_u32(at + MESSAGE_CRC_AT)
    message.is_valid = valid
    message.timestamp = -1
    if valid:
        message.magic = read.magic
        message.attributes = read.attributes
        message.timestamp = timestamp
        message._key = field(read.key, read.key_size)
        message._payload = field(read.value, read.value_size)
    found.message = message
    found.offset = offset
    return found


cdef object damaged(MessageStatus status, int64_t offset):
    if status == MESSAGE_BAD_MAGIC:
        return InvalidMessage(f"the message at offset {offset} is of a format above 1")
    return InvalidMessage(f"the message at offset {offset} is damaged")


# The messages in a wrapper, whose offsets are absolute in format 0 and relative to the first in format 1.
cdef int add_inner(list out, const Message* wrapper, int64_t decompressed_max) except -1:
    cdef:
        Message message
        bytes content
        const uint8_t* p
        const uint8_t* end
        int64_t first = 0
        int64_t last = 0
        bint append_time = wrapper.magic == 1 and wrapper.attributes & MESSAGE_LOG_APPEND_TIME
    try:
        content = unwrapped(wrapper, decompressed_max)
    except MessageSetRejected as error:
        raise InvalidMessage(f"the messages at offset {wrapper.offset}: {error.args[1]}") from None
    p = <const uint8_t*>PyBytes_AS_STRING(content)
    end = p + PyBytes_GET_SIZE(content)
    while wrapper.magic == 1 and p != end:
        if read_message(p, end, &message) != MESSAGE_OK or message.offset < last:
            raise damaged(MESSAGE_OK, wrapper.offset)
        last = message.offset
        p += message.size
    if wrapper.magic == 1:
        if last > wrapper.offset:
            raise damaged(MESSAGE_OK, wrapper.offset)
        first = wrapper.offset - last
    p = <const uint8_t*>PyBytes_AS_STRING(content)
    while p != end:
        if read_message(p, end, &message) != MESSAGE_OK or message.attributes & MESSAGE_CODEC_MASK:
            raise damaged(MESSAGE_OK, wrapper.offset)
        out.append(found_at(
            p, &message, first + message.offset, wrapper.timestamp if append_time else message.timestamp, True))
        p += message.size
    return 0


def read_messages(
    data, Py_ssize_t position=0, Py_ssize_t entries_max=0x7FFFFFFF, int64_t decompressed_max=1 << 27, bint deep=True
) -> tuple[list, int]:
    """The messages from ``position`` on, those in wrappers instead of them if ``deep``, and the position behind them.

    Reads at most ``entries_max`` messages and wrappers, and stops before a message that is not complete. A message with
    a wrong checksum is there, but cannot be read. Raises InvalidMessage for what is no message.
    """
    cdef:
        Py_buffer view
        list out = []
    if position < 0:
        raise IndexError(f"position {position}")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        position = read_entries(
            out, <const uint8_t*>view.buf, view.len, position, entries_max, decompressed_max, deep)
    finally:
        PyBuffer_Release(&view)
    return out, position


cdef Py_ssize_t read_entries(
    list out, const uint8_t* data, Py_ssize_t end, Py_ssize_t position, Py_ssize_t entries_max, int64_t decompressed_max,
    bint deep
) except -1:
    cdef:
        Message message
        MessageStatus status
        int32_t size
    while entries_max > 0 and end - position >= ENTRY_HEADER_BYTES:
        size = load_i32(data + position + ENTRY_HEADER_BYTES - 4)
        if size < MESSAGE_0_HEADER_BYTES:
            raise InvalidMessage(f"a message of {size} bytes at offset {load_i64(data + position)}")
        if size > end - position - ENTRY_HEADER_BYTES:
            break
        status = read_message(data + position, data + position + ENTRY_HEADER_BYTES + size, &message)
        if status == MESSAGE_BAD_CRC:
            out.append(found_at(data + position, &message, load_i64(data + position), -1, False))
        elif status != MESSAGE_OK:
            raise damaged(status, load_i64(data + position))
        elif deep and message.attributes & MESSAGE_CODEC_MASK:
            add_inner(out, &message, decompressed_max)
        else:
            out.append(found_at(data + position, &message, message.offset, message.timestamp, True))
        position += ENTRY_HEADER_BYTES + size
        entries_max -= 1
    return position
