"""The one way from extensions to the codecs; see codecs.pxd."""
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory

# kbroker.record.compression, once it is needed.
cdef object _compression = None
cdef Lz4DecodeBlock _decode_block = NULL
cdef bint _decode_block_known = False


cdef object compression():
    global _compression
    if _compression is None:
        from kbroker.record import compression as module
        _compression = module
    return _compression


cdef bytes unpack(int codec, const uint8_t* data, Py_ssize_t size, int64_t limit):
    # SAFETY: the view borrows the caller's memory and is released before this returns.
    view = PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ)
    try:
        return <bytes?>compression().decompress(codec, view, limit)
    finally:
        view.release()


cdef bytes try_unpack(int codec, const uint8_t* data, Py_ssize_t size, int64_t limit, UnpackStatus* status):
    module = compression()
    status[0] = UNPACKED
    try:
        return unpack(codec, data, size, limit)
    except module.DecompressedTooLargeError:
        status[0] = UNPACK_TOO_LARGE
    except module.DecompressionError:
        status[0] = UNPACK_REJECTED
    return None


cdef bytes pack(int codec, const uint8_t* data, Py_ssize_t size, object level):
    # SAFETY: as in `unpack`.
    view = PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ)
    try:
        return <bytes?>compression().compress(codec, view, level)
    finally:
        view.release()


cdef Lz4DecodeBlock lz4_block_decoder() except? NULL:
    global _decode_block, _decode_block_known
    if not _decode_block_known:
        _decode_block = <Lz4DecodeBlock><void*><size_t>compression().lz4_decode_block()
        _decode_block_known = True
    return _decode_block
