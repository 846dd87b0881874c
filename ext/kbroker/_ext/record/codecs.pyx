"""The only way from extensions to the codecs; see codecs.pxd."""
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory

from kbroker.batch_errors import DecompressedTooLargeError, DecompressionError
from kbroker.errors import InvariantError

# What `register` was given.
cdef object _decompress = None
cdef object _compress = None
cdef object _find_lz4 = None
cdef Lz4DecodeBlock _decode_block = NULL
cdef bint _decode_block_known = False


def register(decompress, compress, lz4_decode_block):
    """Called by ``kbroker.record.compression`` when it is imported."""
    global _decompress, _compress, _find_lz4
    _decompress = decompress
    _compress = compress
    _find_lz4 = lz4_decode_block


cdef object registered(object function):
    if function is None:
        raise InvariantError("kbroker.record, which has the codecs, is not imported")
    return function


cdef bytes unpack(int codec, const uint8_t* data, Py_ssize_t size, int64_t limit):
    # SAFETY: the view borrows the caller's memory and is released before this returns.
    view = PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ)
    try:
        return <bytes?>registered(_decompress)(codec, view, limit)
    finally:
        view.release()


cdef bytes try_unpack(int codec, const uint8_t* data, Py_ssize_t size, int64_t limit, UnpackStatus* status):
    status[0] = UNPACKED
    try:
        return unpack(codec, data, size, limit)
    except DecompressedTooLargeError:
        status[0] = UNPACK_TOO_LARGE
    except DecompressionError:
        status[0] = UNPACK_REJECTED
    return None


cdef bytes pack(int codec, const uint8_t* data, Py_ssize_t size, object level):
    # SAFETY: as in `unpack`.
    view = PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ)
    try:
        return <bytes?>registered(_compress)(codec, view, level)
    finally:
        view.release()


cdef Lz4DecodeBlock lz4_block_decoder() except? NULL:
    global _decode_block, _decode_block_known
    if not _decode_block_known:
        _decode_block = <Lz4DecodeBlock><void*><size_t>registered(_find_lz4)()
        _decode_block_known = True
    return _decode_block
