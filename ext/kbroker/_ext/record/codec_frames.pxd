# LZ4 frames without an object per frame. See codec_frames.pyx.
from libc.stdint cimport int64_t, uint8_t

# LZ4_decompress_safe of liblz4: decodes one block into at most `capacity` bytes, negative for damaged input.
ctypedef int (*Lz4DecodeBlock)(const char* source, char* out, int size, int capacity) noexcept nogil

# The most that `size` bytes can hold, if they are exactly one LZ4 frame without checksums of its content; else -1.
cdef int64_t plain_lz4_bound(const uint8_t* data, Py_ssize_t size) noexcept nogil

# Decode such a frame into `bound` bytes at `out`. Returns the size of its content, -1 for damaged input.
cdef int64_t decode_plain_lz4(
    const uint8_t* data, Py_ssize_t size, uint8_t* out, int64_t bound, Lz4DecodeBlock decode
) noexcept nogil

# The checksum byte of a frame's header, over `size` (below 16) bytes from its flags on.
cdef uint8_t lz4_header_checksum(const uint8_t* data, Py_ssize_t size) noexcept nogil
