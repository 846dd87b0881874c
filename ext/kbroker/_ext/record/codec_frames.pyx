"""Finds the end of zstd and LZ4 frames, and their maximum content, without decompressing them.

The Python decoders of both codecs either do not report a truncated frame or do not limit their
output. Knowing the end and the bound beforehand lets ``kbroker.record.compression`` give them exactly
one whole frame and exactly enough memory. One step per block (at most 128 KiB or 4 MiB each);
contents and checksums are left to the decoder. Sources: RFC 8878 section 3.1; LZ4 Frame Format
Description 1.6. Oracle: ``tests/support/storage/record_oracle.py``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbroker._ext.base.wire cimport Reader

cdef extern from "<endian.h>" nogil:
    uint32_t le32toh(uint32_t)
    uint64_t le64toh(uint64_t)

cdef extern from "Python.h":
    PyObject* PyBytes_FromStringAndSize(const char* data, Py_ssize_t size) except NULL
    char* PyBytes_AS_STRING(PyObject* content) nogil
    int _PyBytes_Resize(PyObject** content, Py_ssize_t size) except -1

cdef extern from "lz4_regular.h" nogil:
    int64_t lz4_regular_decode(const uint8_t* data, size_t size, uint8_t* out, size_t room, int64_t* patience)

cdef enum:
    ZSTD_MAGIC = 0xFD2FB528
    ZSTD_BLOCK_BYTES_MAX = 128 * 1024
    LZ4_MAGIC = 0x184D2204
    # The time that lz4_regular_decode may waste before it gives up; a few microseconds. Then this many frames skip it.
    LZ4_PATIENCE_MAX = 4096
    LZ4_FRAMES_UNTRIED = 15
    # In a smaller block (compressed) most words are new: literals.
    LZ4_REGULAR_BYTES_MIN = 2048

cdef enum FrameStatus:
    FRAME_OK = 0
    FRAME_CUT_SHORT = 1
    FRAME_MALFORMED = 2

cdef struct Frame:
    const uint8_t* end    # first byte after the frame
    int64_t declared      # content size from the header, -1 if it names none
    int64_t bound         # the blocks can hold no more than this


cdef inline bint take(Reader* r, Py_ssize_t n, uint64_t* out) noexcept nogil:
    # The next n (0..8) bytes as a little-endian number.
    cdef uint64_t raw = 0
    if n > r.end - r.pos:
        return False
    memcpy(&raw, r.pos, <size_t>n)
    out[0] = le64toh(raw)
    r.pos += n
    return True


cdef FrameStatus scan_zstd(Reader* r, Frame* frame) noexcept nogil:
    cdef:
        uint64_t magic, flags, block, ignored
        uint64_t content = 0
        Py_ssize_t size, content_size_bytes
        int kind
    if not take(r, 4, &magic) or not take(r, 1, &flags):
        return FRAME_CUT_SHORT
    if magic != <uint64_t>(<uint32_t>ZSTD_MAGIC) or flags & 0x08:
        return FRAME_MALFORMED
    # Window descriptor, unless the frame is a single segment; then the dictionary id of 0, 1, 2 or
    # 4 bytes.
    size = 0 if flags & 0x20 else 1
    size += (1 << (flags & 3)) >> 1
    if size > r.end - r.pos:
        return FRAME_CUT_SHORT
    r.pos += size
    content_size_bytes = 1 << (flags >> 6)
    if content_size_bytes == 1 and not flags & 0x20:
        content_size_bytes = 0
    if not take(r, content_size_bytes, &content):
        return FRAME_CUT_SHORT
    if content_size_bytes == 2:
        content += 256
    if content >> 63:
        return FRAME_MALFORMED
    frame.declared = <int64_t>content if content_size_bytes else -1
    frame.bound = 0
    while True:
        if not take(r, 3, &block):
            return FRAME_CUT_SHORT
        size = <Py_ssize_t>(block >> 3)
        kind = (block >> 1) & 3
        if kind == 3 or size > ZSTD_BLOCK_BYTES_MAX:
            return FRAME_MALFORMED
        frame.bound += ZSTD_BLOCK_BYTES_MAX if kind == 2 else size
        if kind == 1:
            size = 1
        if size > r.end - r.pos:
            return FRAME_CUT_SHORT
        r.pos += size
        if block & 1:
            break
    if flags & 0x04 and not take(r, 4, &ignored):
        return FRAME_CUT_SHORT
    frame.end = r.pos
    return FRAME_OK


cdef FrameStatus scan_lz4(Reader* r, Frame* frame) noexcept nogil:
    cdef:
        uint64_t magic, flags, descriptor, block, ignored
        uint64_t content = 0
        Py_ssize_t size, block_bytes_max
    if not take(r, 4, &magic) or not take(r, 1, &flags) or not take(r, 1, &descriptor):
        return FRAME_CUT_SHORT
    # COMPAT: Kafka's Java code reads version 1 with independent blocks, and no dictionaries.
    if magic != LZ4_MAGIC or flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        return FRAME_MALFORMED
    if descriptor & 0x8F or descriptor >> 4 < 4:
        return FRAME_MALFORMED
    block_bytes_max = 1 << (8 + 2 * (descriptor >> 4))
    if not take(r, 8 if flags & 0x08 else 0, &content) or not take(r, 1, &ignored):
        return FRAME_CUT_SHORT
    if content >> 63:
        return FRAME_MALFORMED
    frame.declared = <int64_t>content if flags & 0x08 else -1
    frame.bound = 0
    while True:
        if not take(r, 4, &block):
            return FRAME_CUT_SHORT
        size = <Py_ssize_t>(block & 0x7FFFFFFF)
        if size == 0:
            break
        if size > block_bytes_max:
            return FRAME_MALFORMED
        frame.bound += size if block >> 31 else block_bytes_max
        size += 4 if flags & 0x10 else 0
        if size > r.end - r.pos:
            return FRAME_CUT_SHORT
        r.pos += size
    if flags & 0x04 and not take(r, 4, &ignored):
        return FRAME_CUT_SHORT
    frame.end = r.pos
    return FRAME_OK


cdef object scan(data, Py_ssize_t start, bint zstd):
    cdef:
        Py_buffer view
        Reader r
        Frame frame
        FrameStatus status
        Py_ssize_t end = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len:
            raise IndexError(f"start {start} is outside {view.len} bytes")
        r.pos = <const uint8_t*>view.buf + start
        r.end = <const uint8_t*>view.buf + view.len
        frame.end = r.pos
        frame.declared = -1
        frame.bound = 0
        with nogil:
            status = scan_zstd(&r, &frame) if zstd else scan_lz4(&r, &frame)
        if status == FRAME_OK:
            end = frame.end - <const uint8_t*>view.buf
    finally:
        PyBuffer_Release(&view)
    if status != FRAME_OK:
        raise ValueError("cut short" if status == FRAME_CUT_SHORT else "malformed frame")
    return end, frame.declared, frame.bound


cdef inline uint32_t rotated(uint32_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (32 - bits))


# The checksum byte after a frame's descriptor: bits 8-15 of its xxHash-32 (seed 0, fewer than 16 bytes).
cdef uint8_t lz4_header_checksum(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t hashed = <uint32_t>374761393 + <uint32_t>size
    cdef uint32_t word
    while size >= 4:
        memcpy(&word, data, 4)
        hashed = rotated(hashed + le32toh(word) * <uint32_t>3266489917, 17) * <uint32_t>668265263
        data += 4
        size -= 4
    while size > 0:
        hashed = rotated(hashed + data[0] * <uint32_t>374761393, 11) * <uint32_t>2654435761
        data += 1
        size -= 1
    hashed = (hashed ^ (hashed >> 15)) * <uint32_t>2246822519
    hashed = (hashed ^ (hashed >> 13)) * <uint32_t>3266489917
    return <uint8_t>((hashed ^ (hashed >> 16)) >> 8)


# Patience for the next frame; below 0, how many more frames are not tried. SAFETY: threads may overwrite each other's
# value; each is a right one.
cdef int64_t _lz4_patience = LZ4_PATIENCE_MAX


# One block, by lz4_regular_decode until *patience is exhausted, then by `decode`. Returns the bytes written, -1 for
# damaged input.
cdef inline int64_t decode_lz4_block(
    const uint8_t* data, Py_ssize_t size, uint8_t* out, int64_t room, Lz4DecodeBlock decode, int64_t* patience
) noexcept nogil:
    cdef int64_t written
    if patience[0] >= 0 and size >= LZ4_REGULAR_BYTES_MIN:
        written = lz4_regular_decode(data, <size_t>size, out, <size_t>room, patience)
        if written >= 0:
            return written
    return decode(<const char*>data, <char*>out, <int>size, <int>room)


# Decode the blocks of a frame that scan_lz4 has accepted. Returns the bytes written, -1 for damaged input.
cdef int64_t decode_lz4_blocks(
    const uint8_t* data, Py_ssize_t size, uint8_t* out, int64_t capacity, Lz4DecodeBlock decode, int64_t* patience
) noexcept nogil:
    cdef:
        Reader r
        uint64_t block = 0
        int64_t written = 0
        Py_ssize_t block_size
        Py_ssize_t descriptor_size = 10 if data[4] & 0x08 else 2
        int64_t block_bytes_max = 1 << (8 + 2 * (data[5] >> 4))
        int64_t n
    if data[4 + descriptor_size] != lz4_header_checksum(data + 4, descriptor_size):
        return -1
    r.pos = data + 4 + descriptor_size + 1
    r.end = data + size
    while take(&r, 4, &block):
        # SAFETY: scan_lz4 has checked that each block is within the frame.
        block_size = <Py_ssize_t>(block & 0x7FFFFFFF)
        if block_size == 0:
            return written
        if block >> 31:
            if block_size > capacity - written:
                return -1
            memcpy(out + written, r.pos, <size_t>block_size)
            written += block_size
        else:
            n = decode_lz4_block(r.pos, block_size, out + written, capacity - written, decode, patience)
            # COMPAT: Java clients cannot read a block that holds more than the frame's header says.
            if n < 0 or n > block_bytes_max:
                return -1
            written += n
        r.pos += block_size
    return -1


cdef int64_t plain_lz4_bound(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Reader r
    cdef Frame frame
    r.pos = data
    r.end = data + size
    if scan_lz4(&r, &frame) != FRAME_OK or r.pos != r.end or data[4] & 0x14 or frame.bound > 0x7FFFFFFF:
        return -1
    # A frame that declares more than it can hold is damaged, which decoding finds.
    return frame.bound


cdef int64_t decode_plain_lz4(
    const uint8_t* data, Py_ssize_t size, uint8_t* out, int64_t bound, Lz4DecodeBlock decode
) noexcept nogil:
    global _lz4_patience
    cdef:
        Reader r
        uint64_t declared = 0
        int64_t before = _lz4_patience
        int64_t patience = before
        int64_t written = decode_lz4_blocks(data, size, out, bound, decode, &patience)
    if before < 0:
        _lz4_patience = before + 1 if before < -1 else LZ4_PATIENCE_MAX
    else:
        _lz4_patience = -LZ4_FRAMES_UNTRIED if patience < 0 else min(patience, LZ4_PATIENCE_MAX)
    if data[4] & 0x08:
        r.pos = data + 6
        r.end = data + size
        if not take(&r, 8, &declared) or <uint64_t>written != declared:
            return -1
    return written


def decode_regular_lz4_block(data, Py_ssize_t room, int64_t patience=LZ4_PATIENCE_MAX):
    """The content of one LZ4 block, at most ``room`` bytes, by lz4_regular_decode; None if it leaves it. For tests."""
    cdef:
        Py_buffer view
        int64_t written
        PyObject* content = NULL
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        content = PyBytes_FromStringAndSize(NULL, room)
        written = lz4_regular_decode(
            <const uint8_t*>view.buf, <size_t>view.len, <uint8_t*>PyBytes_AS_STRING(content), <size_t>room, &patience)
        if written < 0:
            return None
        _PyBytes_Resize(&content, <Py_ssize_t>written)
        return <object>content
    finally:
        PyBuffer_Release(&view)
        Py_XDECREF(content)


def decode_lz4_frame(data, size_t decode_block):
    """The content of one whole LZ4 frame, decoded into place; None if it carries checksums of its content.

    decode_block: the address of liblz4's LZ4_decompress_safe. The caller has checked the frame's bound against its
    budget. Raises ValueError for a frame that scan_lz4_frame rejects or that is damaged.
    """
    cdef:
        Py_buffer view
        int64_t bound
        int64_t written = -1
        const uint8_t* start
        PyObject* content = NULL
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*>view.buf
        bound = plain_lz4_bound(start, view.len)
        if bound < 0:
            if view.len > 4 and scan_lz4_frame(data)[0] == view.len and start[4] & 0x14:
                return None
            raise ValueError("malformed frame")
        content = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>bound)
        with nogil:
            written = decode_plain_lz4(
                start, view.len, <uint8_t*>PyBytes_AS_STRING(content), bound, <Lz4DecodeBlock><void*>decode_block
            )
        if written < 0:
            raise ValueError("damaged frame")
        _PyBytes_Resize(&content, <Py_ssize_t>written)
        found = <object>content
    finally:
        PyBuffer_Release(&view)
        Py_XDECREF(content)
    return found


def scan_zstd_frame(data, Py_ssize_t start=0) -> tuple[int, int, int]:
    """(end, declared content size or -1, most that the blocks can hold) of the frame at ``start``.

    Raises ValueError for a frame that is malformed or cut short. Skippable frames count as
    malformed.
    """
    return scan(data, start, True)


def scan_lz4_frame(data, Py_ssize_t start=0) -> tuple[int, int, int]:
    """The same for an LZ4 frame, if Kafka's Java clients can read it: independent blocks."""
    return scan(data, start, False)
