"""The four compression codecs of record batches, each within a byte budget.

Runs in io workers (produce), clients and tools. Compressed bytes come from anyone, and 16 KiB of
them can hold 512 MiB, so every path either knows the size beforehand and rejects it, or stops at
limit + 1 bytes. Truncated data and bytes after the end are errors: a consumer in another language
would stop there or return less.

Third-party codecs are imported with the first batch that needs them; decoder objects are kept and
reused, and nothing here may be called from two threads at once.

Importing this module gives the extensions their codecs (``_ext/record/codecs.pxd``).
"""

import zlib
from collections.abc import Callable
from typing import Any

from kbroker._ext.record import codecs
from kbroker._ext.record.codec_frames import decode_lz4_frame, scan_lz4_frame, scan_zstd_frame
from kbroker.batch_errors import DecompressedTooLargeError, DecompressionError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

Buffer = bytes | bytearray | memoryview

# BOUND: pieces (gzip members, zstd frames) of one batch. Producers write one; each costs about a
# microsecond.
_PIECES_MAX = 1024
# BOUND: gzip input per step from the second member on, because zlib copies what follows a member.
_GZIP_STEP_BYTES = 64 * 1024
# BOUND: zstd's own default and the largest window of its level 22; it is address space until it is
# written to.
_ZSTD_WINDOW_BYTES_MAX = 1 << 27
# The header of SnappyOutputStream in Java: magic, version 1, readable since version 1.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
# BOUND: blocks of a xerial stream. Producers fill 32 KiB blocks, except for flushes; a stream of
# empty blocks would cost a call for every five bytes.
_XERIAL_BLOCKS_FREE = 64
_XERIAL_BLOCK_BYTES_MEAN_MIN = 512

_inflater: Any = None
_lz4_address: int | None = None
# Contexts that nobody uses at the moment: a context serves one thread at a time, and works without
# the GIL. Encoders are by level.
_zstd_decoders: list[Any] = []
_zstd_encoders: dict[int, list[Any]] = {}


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """The whole content of ``data``, at most ``limit`` bytes.

    codec: attribute bits 0-2 of a batch. data: contiguous; no reference to it is kept.

    Raises DecompressedTooLargeError when there is more, having held no more than about twice
    ``limit``; DecompressionError for anything the codec rejects, a cut, or trailing bytes.
    """
    if codec == NONE:
        if len(data) > limit:
            raise _too_large(codec, limit)
        return bytes(data)
    if not 0 < codec < len(_DECODERS):
        raise DecompressionError(f"unknown codec {codec}")
    return _DECODERS[codec](data, limit)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data`` in the form that Kafka's clients use; level None is the default."""
    if codec == NONE:
        return bytes(data)
    if not 0 < codec < len(_ENCODERS):
        raise ValueError(f"unknown codec {codec}")
    return _ENCODERS[codec](data, level)


def _too_large(codec: int, limit: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"{CODEC_NAMES[codec]} data holds more than {limit} bytes")


def _rejected(codec: int, why: object) -> DecompressionError:
    return DecompressionError(f"{CODEC_NAMES[codec]} data: {why}")


# ---- gzip ----------------------------------------------------------------------------------------


def _inflate() -> Any:
    """zlib-ng, or zlib where it is not installed: it rejects the same input, in half of the time.

    ISA-L is as fast, but reads headers and code tables that zlib, and so a consumer, does not.
    """
    global _inflater
    if _inflater is None:
        try:
            from zlib_ng import zlib_ng
        except ImportError:
            _inflater = zlib
        else:
            _inflater = zlib_ng
    return _inflater


def _gunzip(data: Buffer, limit: int) -> bytes:
    # Consecutive members are one stream (RFC 1952 section 2.2), and Java reads them like that.
    source = memoryview(data)
    parts: list[bytes] = []
    total = position = 0
    inflate = _inflate()
    # Producers write one member: a single step saves joining several.
    step_bytes = len(source)
    for _ in range(_PIECES_MAX):
        decoder = inflate.decompressobj(wbits=31)
        while not decoder.eof:
            step = source[position : position + step_bytes]
            if not step:
                raise _rejected(GZIP, "cut short")
            try:
                # zlib takes 0 for "no limit"; limit + 1 - total is never below 1.
                part = decoder.decompress(step, limit + 1 - total)
            except inflate.error as err:
                raise _rejected(GZIP, err) from None
            position += len(step) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
            total += len(part)
            parts.append(part)
            if total > limit:
                raise _too_large(GZIP, limit)
        if position == len(source):
            return parts[0] if len(parts) == 1 else b"".join(parts)
        step_bytes = _GZIP_STEP_BYTES
    raise _rejected(GZIP, f"more than {_PIECES_MAX} members")


def _gzip(data: Buffer, level: int | None) -> bytes:
    encoder = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=31)
    return encoder.compress(data) + encoder.flush()


# ---- snappy --------------------------------------------------------------------------------------


def _snappy_length(block: Buffer) -> int:
    """The declared content length of a raw snappy block, which its decoder enforces."""
    length = shift = 0
    for byte in block[:5]:
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length
        shift += 7
    raise _rejected(SNAPPY, "no length")


def _unsnappy_block(block: Buffer) -> bytes:
    import snappy

    try:
        content: bytes = snappy.uncompress(block)
        return content
    except Exception as err:
        # The package turns only some of its decoder's errors into its own class.
        raise _rejected(SNAPPY, err) from None


def _unsnappy(data: Buffer, limit: int) -> bytes:
    source = memoryview(data)
    if bytes(source[:8]) == _XERIAL_MAGIC:
        return _unsnappy_xerial(source, limit)
    if _snappy_length(source) > limit:
        raise _too_large(SNAPPY, limit)
    return _unsnappy_block(source)


def _unsnappy_xerial(source: memoryview, limit: int) -> bytes:
    # WIRE: header of 16 bytes, then (int32 length, raw snappy block) until the end.
    blocks: list[memoryview] = []
    total = 0
    position = len(_XERIAL_HEADER)
    if len(source) < position:
        raise _rejected(SNAPPY, "cut short")
    if source[8:12] != _XERIAL_HEADER[8:12] or source[12:16] != _XERIAL_HEADER[12:16]:
        raise _rejected(SNAPPY, "unknown version of the stream format")
    while position < len(source):
        start = position + 4
        position = start + int.from_bytes(source[position:start], "big")
        if start > len(source) or position > len(source):
            raise _rejected(SNAPPY, "cut short")
        block = source[start:position]
        total += _snappy_length(block)
        if total > limit:
            raise _too_large(SNAPPY, limit)
        blocks.append(block)
        if len(blocks) > _XERIAL_BLOCKS_FREE + total // _XERIAL_BLOCK_BYTES_MEAN_MIN:
            raise _rejected(SNAPPY, "too many small blocks")
    return b"".join(map(_unsnappy_block, blocks))


def _snappy(data: Buffer, level: int | None) -> bytes:
    import snappy

    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(memoryview(data)[start : start + _XERIAL_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


# ---- lz4 -----------------------------------------------------------------------------------------


def _unlz4(data: Buffer, limit: int) -> bytes:
    # COMPAT: Kafka's Java code stops after the first frame, so a second one would be lost on its
    # consumers.
    from lz4.frame import LZ4FrameDecompressor

    try:
        end, declared, bound = scan_lz4_frame(data)
    except ValueError as err:
        raise _rejected(LZ4, err) from None
    if end != len(data):
        raise _rejected(LZ4, "bytes after the end of the frame")
    if declared > limit:
        raise _too_large(LZ4, limit)
    if bound <= limit and (decode_block := lz4_decode_block()):
        try:
            direct = decode_lz4_frame(data, decode_block)
        except ValueError as err:
            raise _rejected(LZ4, err) from None
        if direct is not None:
            return direct
    decoder = LZ4FrameDecompressor()
    try:
        # One byte more than the content can have, or the decoder would stop short of the frame's
        # end mark.
        content: bytes = decoder.decompress(data, min(bound, limit) + 1)
    except RuntimeError as err:
        raise _rejected(LZ4, err) from None
    if len(content) > limit:
        raise _too_large(LZ4, limit)
    if not decoder.eof:
        raise _rejected(LZ4, "cut short")
    return content


def lz4_decode_block() -> int:
    """The address of the library's own block decoder, 0 if it does not export it.

    With it a frame is decoded straight into its bytes object: the frame decoder of the lz4 package
    decodes into a buffer of its own and copies, which costs a third of the decoding.
    """
    global _lz4_address
    if _lz4_address is None:
        import ctypes

        from lz4.frame import _frame

        try:
            function = ctypes.CDLL(_frame.__file__).LZ4_decompress_safe
            _lz4_address = ctypes.cast(function, ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            _lz4_address = 0
    return _lz4_address


def _lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    compressed: bytes = frame.compress(
        data,
        compression_level=0 if level is None else level,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return compressed


# ---- zstd ----------------------------------------------------------------------------------------


def _unzstd(data: Buffer, limit: int) -> bytes:
    source = memoryview(data)
    parts: list[bytes] = []
    total = position = 0
    for _ in range(_PIECES_MAX):
        try:
            end, declared, bound = scan_zstd_frame(source, position)
        except ValueError as err:
            raise _rejected(ZSTD, err) from None
        room = limit - total
        if declared > room:
            raise _too_large(ZSTD, limit)
        part = _unzstd_frame(source[position:end], declared, bound, room)
        if part is None:
            raise _too_large(ZSTD, limit)
        parts.append(part)
        total += len(part)
        position = end
        if position == len(source):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _rejected(ZSTD, f"more than {_PIECES_MAX} frames")


def _unzstd_frame(frame: memoryview, declared: int, bound: int, room: int) -> bytes | None:
    """The content of exactly one whole frame; None if it is more than ``room`` bytes."""
    import zstandard

    try:
        decoder = _zstd_decoders.pop()
    except IndexError:
        decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    if declared == 0 or bound == 0:
        # The one-shot call takes 0 for "unknown" and decodes nothing at all; the stream still
        # checks the checksum.
        room = min(room, 0)
    try:
        if 0 < declared or 0 < bound <= room:
            content: bytes = decoder.decompress(
                frame, max_output_size=bound, allow_extra_data=False
            )
            room = max(room, len(content))
        else:
            with decoder.stream_reader(frame) as reader:
                content = reader.read(room + 1)
    except zstandard.ZstdError as err:
        _zstd_decoders.append(decoder)
        raise _rejected(ZSTD, err) from None
    if len(content) > room:
        return None  # the decoder's window has grown with the bomb and would stay so
    _zstd_decoders.append(decoder)
    return content


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    level = 3 if level is None else level
    idle = _zstd_encoders.setdefault(level, [])
    try:
        encoder = idle.pop()
    except IndexError:
        encoder = zstandard.ZstdCompressor(level=level)
    packed: bytes = encoder.compress(data)
    idle.append(encoder)
    return packed


_DECODERS: tuple[Callable[..., bytes], ...] = (bytes, _gunzip, _unsnappy, _unlz4, _unzstd)
_ENCODERS: tuple[Callable[..., bytes], ...] = (bytes, _gzip, _snappy, _lz4, _zstd)

codecs.register(decompress, compress, lz4_decode_block)
