import random
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbroker.batch_errors import DecompressedTooLargeError, DecompressionError
from kbroker.record import compression
from kbroker.record.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress

pytestmark = pytest.mark.unit

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
PATTERN = bytes(i * i & 0xFF for i in range(1000))
CONTENTS = [b"", b"x", b"abc" * 1000, PATTERN * 70, bytes(300_000)]
XERIAL_HEADER = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2


def zstd_without_content_size(content: bytes, **options) -> bytes:
    encoder = zstandard.ZstdCompressor(**options).compressobj()
    return encoder.compress(content) + encoder.flush()


@pytest.mark.parametrize("codec", [compression.NONE, *CODECS])
@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_content_comes_back_when_it_just_fits(codec, content):
    encoded = compress(codec, content)

    for buffer in (encoded, bytearray(encoded), memoryview(encoded)):
        assert decompress(codec, buffer, len(content)) == content


@pytest.mark.parametrize("codec", [compression.NONE, *CODECS])
@pytest.mark.parametrize("content", CONTENTS[1:], ids=len)
def test_content_of_one_byte_too_many_is_too_large(codec, content):
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, compress(codec, content), len(content) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_every_level_asked_for_is_readable(codec):
    for level in (1, 6, 9):
        assert decompress(codec, compress(codec, PATTERN, level), 1000) == PATTERN


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
@pytest.mark.parametrize("content", [b"", b"x", PATTERN], ids=len)
def test_every_cut_of_a_framed_codec_is_rejected(codec, content):
    encoded = compress(codec, content)

    for cut in range(len(encoded)):
        with pytest.raises(DecompressionError):
            decompress(codec, encoded[:cut], 1 << 20)


def test_every_cut_of_snappy_is_rejected_or_ends_at_a_block():
    import snappy

    raw = snappy.compress(PATTERN * 70)
    xerial = compress(SNAPPY, PATTERN * 70)

    for cut in range(len(raw)):
        with pytest.raises(DecompressionError):
            decompress(SNAPPY, raw[:cut], 1 << 20)
    whole_blocks = set()
    for cut in range(len(xerial)):
        try:
            whole_blocks.add(len(decompress(SNAPPY, xerial[:cut], 1 << 20)))
        except DecompressionError:
            continue
    assert whole_blocks == {0, 32768, 65536}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("garbage", [b"\x00", b"x", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", bytes(100)])
def test_bytes_after_the_end_are_rejected(codec, garbage):
    with pytest.raises(DecompressionError):
        decompress(codec, compress(codec, PATTERN) + garbage, 1 << 20)


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_pieces_one_after_another_are_one_stream(codec):
    encoded = compress(codec, PATTERN) + compress(codec, b"") + compress(codec, b"end")

    assert decompress(codec, encoded, 1003) == PATTERN + b"end"
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, encoded, 1002)


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_too_many_pieces_are_rejected(codec):
    with pytest.raises(DecompressionError, match="more than"):
        decompress(codec, compress(codec, b"") * 1025, 1 << 20)


def test_second_lz4_frame_is_rejected_because_java_would_not_read_it():
    with pytest.raises(DecompressionError, match="after the end"):
        decompress(LZ4, compress(LZ4, b"a") + compress(LZ4, b"b"), 10)


def test_lz4_frame_with_linked_blocks_is_rejected_because_java_cannot_read_it():
    import lz4.frame

    with pytest.raises(DecompressionError):
        decompress(LZ4, lz4.frame.compress(PATTERN * 100, block_linked=True), 1 << 20)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
@pytest.mark.parametrize("checksum", [False, True])
def test_lz4_frame_of_each_header_form_is_read(size, checksum):
    import lz4.frame

    content = (PATTERN * 201)[:size]
    for store_size in (False, True):
        encoded = lz4.frame.compress(
            content,
            block_linked=False,
            content_checksum=checksum,
            block_checksum=checksum,
            store_size=store_size,
        )
        assert decompress(LZ4, encoded, size) == content


def test_gzip_member_longer_than_a_step_is_read_in_steps():
    noise = b"".join(zlib.crc32(i.to_bytes(4, "big")).to_bytes(4, "big") for i in range(60_000))
    encoded = compress(GZIP, noise)
    assert len(encoded) > 3 * 65536

    assert decompress(GZIP, encoded + encoded, 2 * len(noise)) == noise * 2


@pytest.mark.parametrize("seed", range(40))
def test_gzip_is_read_alike_by_both_libraries(monkeypatch, seed):
    """Messages that zlib rejects cannot be read by most consumers; those that it reads must be
    accepted.
    """
    zlib_ng = pytest.importorskip("zlib_ng.zlib_ng")
    draw = random.Random(seed)
    for _ in range(100):
        content = bytes(draw.choices(range(draw.choice([2, 256])), k=draw.choice([0, 9, 3000])))
        encoded = bytearray(compress(GZIP, content, draw.randrange(10)) * draw.randint(1, 3))
        for _ in range(draw.randrange(3)):
            encoded[draw.randrange(len(encoded))] ^= 1 << draw.randrange(8)
        del encoded[draw.choice([len(encoded), draw.randrange(len(encoded))]) :]
        limit = draw.choice([len(content), 3 * len(content), 1 << 20])

        found = []
        for library in (zlib, zlib_ng):
            monkeypatch.setattr(compression, "_inflater", library)
            try:
                found.append(decompress(GZIP, encoded, limit))
            except (DecompressionError, DecompressedTooLargeError) as rejected:
                found.append(type(rejected))

        assert found[0] == found[1], encoded.hex()


def test_gzip_is_read_where_zlib_ng_is_not_installed(monkeypatch):
    monkeypatch.setattr(compression, "_inflater", None)
    monkeypatch.setitem(sys.modules, "zlib_ng", None)

    assert decompress(GZIP, compress(GZIP, PATTERN), 1000) == PATTERN
    assert compression._inflater is zlib


def test_gzip_with_a_wrong_checksum_is_rejected():
    encoded = bytearray(compress(GZIP, PATTERN))
    encoded[-8] ^= 1

    with pytest.raises(DecompressionError):
        decompress(GZIP, encoded, 1 << 20)


@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_zstd_frame_as_java_writes_it_without_a_size_is_read(content):
    encoded = zstd_without_content_size(content, write_checksum=True)

    assert decompress(ZSTD, encoded, len(content)) == content
    assert decompress(ZSTD, encoded, 1 << 20) == content
    if content:
        with pytest.raises(DecompressedTooLargeError):
            decompress(ZSTD, encoded, len(content) - 1)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_zstd_checksum_of_an_empty_frame_is_checked(limit):
    encoded = bytearray(zstd_without_content_size(b"", write_checksum=True))
    assert decompress(ZSTD, encoded, limit) == b""
    encoded[-1] ^= 1

    with pytest.raises(DecompressionError):
        decompress(ZSTD, encoded, limit)


def test_zstd_decoder_works_on_after_a_bomb_and_after_garbage():
    good = compress(ZSTD, PATTERN)
    with pytest.raises(DecompressedTooLargeError):
        decompress(ZSTD, zstd_without_content_size(bytes(1 << 22)), 1 << 20)
    with pytest.raises(DecompressionError):
        decompress(ZSTD, good[:20] + bytes(len(good) - 20), 1 << 20)

    assert decompress(ZSTD, good, 1000) == PATTERN


def test_snappy_of_both_framings_is_read():
    import snappy

    content = PATTERN * 70

    assert decompress(SNAPPY, snappy.compress(content), len(content)) == content
    assert compress(SNAPPY, content).startswith(XERIAL_HEADER)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xff\xff\xff\xff\xff",  # a length that never ends
        b"\x05abc",
        XERIAL_HEADER[:15],
        XERIAL_HEADER[:8] + bytes(8),  # version 0
        XERIAL_HEADER + b"\x00\x00\x00",
        XERIAL_HEADER + b"\xff\xff\xff\xff\x00",
        XERIAL_HEADER + b"\x00\x00\x00\x00",  # a block without even a length
        XERIAL_HEADER + b"\x00\x00\x00\x01\x00" * 100,  # a call for every five bytes
    ],
)
def test_malformed_snappy_is_rejected(encoded):
    with pytest.raises(DecompressionError):
        decompress(SNAPPY, encoded, 1 << 20)


@given(st.sampled_from(CODECS), st.binary(max_size=200), st.data())
def test_damaged_data_gives_bytes_within_the_limit_or_a_typed_error(codec, content, data):
    encoded = bytearray(compress(codec, content * 3))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))

    try:
        found = decompress(codec, encoded, 1000)
    except DecompressionError:
        return
    assert len(found) <= 1000


@given(st.sampled_from(CODECS), st.binary(max_size=100))
def test_any_bytes_give_bytes_within_the_limit_or_a_typed_error(codec, data):
    magic = {GZIP: b"\x1f\x8b\x08\x00", LZ4: b"\x04\x22\x4d\x18\x60\x40", ZSTD: b"\x28\xb5\x2f\xfd"}
    for encoded in (data, magic.get(codec, XERIAL_HEADER) + data):
        try:
            found = decompress(codec, encoded, 1000)
        except DecompressionError:
            continue
        assert len(found) <= 1000


@pytest.mark.parametrize("codec", range(1, len(compression.CODEC_NAMES)))
def test_threads_do_not_disturb_each_other(codec):
    """Codecs work without the GIL."""
    datas = [random.Random(n).randbytes(50_000) * 8 for n in range(4)]

    def there_and_back(data: bytes) -> bool:
        packed = [compression.compress(codec, data) for _ in range(12)]
        return all(compression.decompress(codec, one, 1 << 20) == data for one in packed)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(there_and_back, datas))
