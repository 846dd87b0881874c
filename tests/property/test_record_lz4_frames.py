"""LZ4 frames decoded in place equal the result of the library's frame decoder."""

import random

import lz4.block
import lz4.frame
import pytest
from support.storage import record_oracle

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record import record_batch
from kbroker._ext.record.codec_frames import decode_lz4_frame
from kbroker.batch_errors import CorruptBatchError
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import LZ4, lz4_decode_block

pytestmark = pytest.mark.property


@pytest.fixture(scope="module")
def decode_block() -> int:
    address = lz4_decode_block()
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
def test_damaged_frame_is_rejected_or_is_what_the_library_reads(
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


def test_block_that_holds_more_than_the_frame_allows_is_rejected(decode_block: int) -> None:
    empty = lz4.frame.compress(b"", block_size=4, block_linked=False, store_size=False)
    frame = empty[:-4]
    for content in (b"\0" * 100_000, b"another, so that both together have room"):
        packed = lz4.block.compress(content, store_size=False)
        frame += len(packed).to_bytes(4, "little") + packed
    frame += bytes(4)

    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame)
    with pytest.raises(ValueError):
        decode_lz4_frame(frame, decode_block)


def batch_of(chance: random.Random) -> bytearray:
    """An LZ4 batch of one to many blocks."""
    builder = BatchBuilder(LZ4)
    for _ in range(chance.choice([1, 3, 300])):
        builder.append(chance.choice([b"word " * 100, chance.randbytes(700)]), None, 1000, ())
    return bytearray(builder.build())


def verdict(check, batch: bytes, limit: int, stored: bool):
    try:
        return check(batch, limit, stored=stored)
    except CorruptBatchError as error:
        return error.status, error.bad_index


@pytest.mark.parametrize("seed", range(20))
def test_damaged_batches_of_many_sizes_get_the_verdict_of_the_twin(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        batch = batch_of(chance)
        for _ in range(chance.randint(0, 2)):
            batch[chance.randrange(61, len(batch))] = chance.randrange(256)
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        limit, stored = chance.choice([1000, 1 << 17, 1 << 22]), chance.random() < 0.5
        compiled = verdict(record_batch.check_batch, bytes(batch), limit, stored)
        assert compiled == verdict(record_oracle.check_batch, bytes(batch), limit, stored), seed
