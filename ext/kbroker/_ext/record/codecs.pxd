# The only way from extensions to the codecs, which are Python: importing kbroker.record registers them. Each call costs
# a memoryview and the codec's own bytes object; memory is borrowed for the call only.
from libc.stdint cimport int64_t, uint8_t

from kbroker._ext.record.codec_frames cimport Lz4DecodeBlock


cdef enum UnpackStatus:
    UNPACKED = 0
    UNPACK_TOO_LARGE = 1        # more than the limit
    UNPACK_REJECTED = 2          # the codec rejects it, or there are bytes after its end


# The content, or None with *status set.
cdef bytes try_unpack(int codec, const uint8_t* data, Py_ssize_t size, int64_t limit, UnpackStatus* status)
# The content. Raises ValueError with the codec's message.
cdef bytes unpack(int codec, const uint8_t* data, Py_ssize_t size, int64_t limit)
# level: None is the codec's own.
cdef bytes pack(int codec, const uint8_t* data, Py_ssize_t size, object level)
# liblz4's block decoder, NULL if the lz4 package does not expose it.
cdef Lz4DecodeBlock lz4_block_decoder() except? NULL
