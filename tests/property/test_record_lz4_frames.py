"""LZ4 frames decoded straight into place equal what the library's frame decoder makes of them."""

import random

import lz4.frame
import pytest

from kbroker._ext.codec_frames import decode_lz4_frame
from kbroker.record.compression import _lz4_decode_block

pytestmark = pytest.mark.property


@pytest.fixture(scope="module")
def decode_block() -> int:
    address = _lz4_decode_block()
    if not address:
        pytest.skip("this build of the lz4 package does not show LZ4_decompress_safe")
    return address


def content_of(chance: random.Random) -> bytes:
    words = [chance.randbytes(chance.randint(1, 20)) for _ in range(50)]
    text = b"".join(chance.choice(words) for _ in range(chance.randint(0, 20_000)))
    return text + chance.randbytes(chance.choice([0, 10, 100_000]))


def frame_of(content: bytes, chance: random.Random, **options: bool) -> bytes:
    return lz4.frame.compress(
        content,
        block_size=chance.choice([4, 5, 6, 7]),
        block_linked=False,
        store_size=chance.random() < 0.5,
        **options,
    )


@pytest.mark.parametrize("seed", range(30))
def test_frame_decodes_to_its_content(seed: int, decode_block: int) -> None:
    chance = random.Random(seed)
    content = content_of(chance)

    assert decode_lz4_frame(frame_of(content, chance), decode_block) == content


@pytest.mark.parametrize("checksum", ["content_checksum", "block_checksum"])
def test_frame_with_checksums_is_left_to_the_library(checksum: str, decode_block: int) -> None:
    frame = frame_of(b"content" * 100, random.Random(0), **{checksum: True})

    assert decode_lz4_frame(frame, decode_block) is None


@pytest.mark.parametrize("seed", range(20))
def test_damaged_frame_is_refused_or_is_what_the_library_reads(
    seed: int, decode_block: int
) -> None:
    chance = random.Random(seed)
    frame = frame_of(content_of(chance), chance)
    for _ in range(100):
        damaged = bytearray(frame)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        del damaged[chance.choice([len(damaged), chance.randrange(len(damaged))]) :]
        try:
            found = decode_lz4_frame(bytes(damaged), decode_block)
        except ValueError:
            continue
        if found is not None:
            assert found == lz4.frame.decompress(bytes(damaged)), seed
