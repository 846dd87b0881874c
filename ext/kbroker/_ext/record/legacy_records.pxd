# Message sets of formats 0 and 1: reading, checking and converting them to a batch of format 2.
#
# WIRE: offset int64, size int32, crc int32, magic int8, attributes int8, [timestamp int64, format 1], key bytes,
# value bytes. A message with a codec in its attributes is a wrapper: its value is a compressed message set.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.record.record_batch cimport BatchInfo

cdef enum:
    ENTRY_HEADER_BYTES = 12          # offset and size
    MESSAGE_CRC_AT = 12
    MESSAGE_CRC_FROM = 16            # the checksum covers the bytes from here
    MESSAGE_MAGIC_AT = 16            # as in a batch of format 2
    MESSAGE_ATTRIBUTES_AT = 17
    MESSAGE_TIMESTAMP_AT = 18        # format 1 only
    MESSAGE_0_BYTES_MIN = 26         # of a whole entry
    MESSAGE_1_BYTES_MIN = 34

    MESSAGE_CODEC_MASK = 0x07
    MESSAGE_LOG_APPEND_TIME = 0x08


cdef enum MessageStatus:
    MESSAGE_OK = 0
    MESSAGE_TRUNCATED = 1
    MESSAGE_BAD_SIZE = 2
    MESSAGE_BAD_MAGIC = 3
    MESSAGE_BAD_CRC = 4
    MESSAGE_BAD_FIELDS = 5           # key and value do not fill the message
    MESSAGE_BAD_OFFSET = 6           # not above that of the message before it


# One message, in place.
cdef struct Message:
    int64_t offset
    int64_t timestamp                # -1 in format 0
    const uint8_t* key
    const uint8_t* value
    int32_t key_size                 # -1: null
    int32_t value_size               # -1: null
    Py_ssize_t size                  # of the whole entry
    int8_t magic
    int8_t attributes


cdef uint32_t crc32(const uint8_t* data, size_t size) noexcept nogil

# Read and check the message at p, including its checksum.
cdef MessageStatus read_message(const uint8_t* p, const uint8_t* end, Message* message) noexcept nogil

# Convert a client's message set to one batch of format 2 with its records in order: base offset 0, no producer id.
# codec: compression codec of the batch, -1: the set's own; level: compression level of that codec, or None. Fills `info`
# as check_produced_batch does. Raises MessageSetRejected. BOUND: entries above message_bytes_max are rejected before
# their checksum is computed, nothing is decompressed beyond decompressed_max, and wrappers in wrappers are rejected.
cdef bytearray batch_of_message_set(
    const uint8_t* data, Py_ssize_t size, int64_t message_bytes_max, int64_t decompressed_max, int codec, object level,
    BatchInfo* info,
)

# Set the header checksum of the LZ4 frame at `data`: broken: as clients of format 0 compute it (including the frame's
# magic number), otherwise as the LZ4 frame format specifies. False if these bytes are not a frame.
cdef bint set_lz4_checksum(uint8_t* data, Py_ssize_t size, bint broken) noexcept nogil

# The message set in a wrapper. Raises MessageSetRejected if it cannot be decompressed within decompressed_max.
cdef bytes unwrapped(const Message* wrapper, int64_t decompressed_max)
