"""LZ4 blocks of regular content: whatever their decoder accepts, liblz4 reads the same way."""

import random
import string
from collections.abc import Callable
from itertools import product

import lz4.block
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running.examples import examples
from support.running.in_one import in_one
from support.storage import record_oracle

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record import record_batch
from kbroker._ext.record.codec_frames import decode_lz4_frame, decode_regular_lz4_block
from kbroker.batch_errors import CorruptBatchError
from kbroker.record import compression
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import LZ4, lz4_decode_block

pytestmark = pytest.mark.property

BLOCK_BYTES = 65536
ENDLESS = 1 << 40


def words_of(chance: random.Random, size: int) -> bytes:
    """Log lines of recurring words, which the decoder is optimised for."""
    vocabulary = ["".join(chance.choices(string.ascii_letters, k=7)) for _ in range(100)]
    lines = ""
    while len(lines) < size:
        words = chance.choices(vocabulary, k=chance.randint(20, 60))
        lines += f"{chance.getrandbits(40)} {' '.join(words)}\n"
    return lines[:size].encode()


def compressed(content: bytes, **options: object) -> bytes:
    return bytes(lz4.block.compress(content, store_size=False, **options))


def by_library(block: bytes, room: int) -> bytes | None:
    try:
        return bytes(lz4.block.decompress(block, uncompressed_size=room))
    except lz4.block.LZ4BlockError:
        return None


def verdict(check: Callable[..., object], batch: bytes) -> object:
    try:
        return check(batch, 1 << 22, stored=False)
    except CorruptBatchError as error:
        return error.status, error.bad_index


def damaged(block: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, often into meaningful lengths and distances, or truncated."""
    changed = bytearray(block)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.choice(
            [0, 1, 15, 240, 255, chance.randrange(256)]
        )
    if chance.random() < 0.2:
        del changed[chance.randrange(len(changed)) :]
    return bytes(changed)


pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"some words ", b"another ", b"1234567 ", b"a", b"longer than sixteen bytes, "]
    ),
    st.builds(
        lambda piece, count: piece * count, st.binary(min_size=1, max_size=20), st.integers(1, 600)
    ),
)
contents = st.lists(pieces, max_size=60).map(b"".join)


@given(contents, st.integers(0, 300))
@settings(max_examples=examples(300), deadline=None)
def test_block_of_any_content_decodes_to_it(content: bytes, spare: int) -> None:
    assert decode_regular_lz4_block(compressed(content), len(content) + spare, ENDLESS) == content


@given(contents.filter(bool), st.randoms(use_true_random=False))
@settings(max_examples=examples(300), deadline=None)
def test_damaged_block_is_left_or_is_what_the_library_reads(
    content: bytes, chance: random.Random
) -> None:
    block = damaged(compressed(content), chance)
    room = chance.choice([len(content), len(content) + 1, len(content) + 64, BLOCK_BYTES])

    found = decode_regular_lz4_block(block, room, ENDLESS)

    assert found is None or found == by_library(block, room)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_block_of_words_is_left_or_is_what_the_library_reads(seed: int) -> None:
    chance = random.Random(seed)
    block = compressed(words_of(chance, BLOCK_BYTES))
    accepted = 0
    for _ in range(200):
        wrong = damaged(block, chance)
        found = decode_regular_lz4_block(wrong, BLOCK_BYTES)
        assert found is None or found == by_library(wrong, BLOCK_BYTES), seed
        accepted += found is not None

    assert accepted > 0


@pytest.mark.parametrize(
    "size", [0, 1, 5, 12, 13, 47, 48, 49, 95, 96, 97, 1000, 4096, 65535, 65536, 300_000]
)
def test_words_are_decoded_within_the_usual_patience(size: int) -> None:
    content = words_of(random.Random(size), size)

    assert decode_regular_lz4_block(compressed(content), size) == content
    if size:
        assert decode_regular_lz4_block(compressed(content), size - 1) is None


def test_content_without_regular_sequences_is_given_up() -> None:
    chance = random.Random(0)
    content = b"".join(chance.randbytes(20) + bytes(20) for _ in range(1500))

    assert decode_regular_lz4_block(compressed(content), len(content)) is None
    assert decode_regular_lz4_block(compressed(content), len(content), ENDLESS) == content


TAIL = b"\xc0" + b"abcdefghijkl"  # a last sequence of twelve literals


def sequence(literals: bytes, distance: int, match: int) -> bytes:
    """One sequence, with lengths in the LZ4 format."""

    def extension(length: int) -> bytes:
        return (
            b"" if length < 15 else b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])
        )

    token = min(len(literals), 15) << 4 | min(match - 4, 15)
    return (
        bytes([token])
        + extension(len(literals))
        + literals
        + distance.to_bytes(2, "little")
        + extension(match - 4)
    )


DISTANCES = [*range(1, 20), 31, 32, 33]
MATCHES = [4, 5, 15, 16, 17, 18, 19, 20, 40, 300]


@in_one("distance match", product(DISTANCES, MATCHES))
def test_match_that_overlaps_itself_repeats_its_bytes(distance: int, match: int) -> None:
    start = bytes(range(64))
    block = sequence(start, distance, match) + sequence(b"", distance, match) * 40 + TAIL
    expected = start + (start[-distance:] * (41 * match // distance + 1))[: 41 * match] + TAIL[1:]

    assert decode_regular_lz4_block(block, len(expected), ENDLESS) == expected
    assert decode_regular_lz4_block(block, len(expected) + 500, ENDLESS) == expected


PLAIN = sequence(b"", 16, 8)
REJECTED = {
    "nothing": b"",
    "distance 0": sequence(b"x" * 20, 0, 8) + TAIL,
    "distance 0 of a pair": sequence(b"x" * 20, 16, 8)
    + PLAIN * 40
    + sequence(b"", 0, 8)
    + PLAIN * 41
    + TAIL,
    "a match before the start": sequence(b"x" * 20, 21, 8) + PLAIN * 40 + TAIL,
    "a match without anything before": sequence(b"", 1, 8) + PLAIN * 40 + TAIL,
    "a far match of a pair": sequence(b"x" * 20, 16, 8)
    + PLAIN * 40
    + sequence(b"", 60_000, 8)
    + PLAIN * 41
    + TAIL,
    "literals cut": b"\xf0\xff\xff\xff\xff" + b"x" * 100,
    "a literal length cut": b"\xf0" + b"\xff" * 100,
    "a match length cut": sequence(b"x" * 20, 16, 8) + b"\x0f\x10\x00" + b"\xff" * 100,
    "an end with a match": sequence(b"x" * 20, 16, 8) + PLAIN * 60,
    "no end": sequence(b"x" * 20, 16, 8) + PLAIN * 40 + b"\xc0abc",
}


@pytest.mark.parametrize("case", REJECTED)
def test_malformed_block_is_left_to_the_library(case: str) -> None:
    for room in (100, 1000, BLOCK_BYTES):
        assert decode_regular_lz4_block(REJECTED[case], room, ENDLESS) is None


@in_one("literals spare", product(range(13), range(14)))
def test_end_of_a_block_follows_the_rules_of_the_library(literals: int, spare: int) -> None:
    """The last match and the last literals, at each distance from the end of input and output."""
    block = sequence(b"x" * 20, 16, 8) + PLAIN * 40 + bytes([literals << 4]) + b"y" * literals
    room = 20 + 8 * 41 + literals + spare - 5

    found = decode_regular_lz4_block(block, room, ENDLESS)

    assert found is None or found == by_library(block, room)
    if literals >= 5 and spare >= 12:
        assert found is not None


def test_frames_of_every_kind_in_turn_decode_to_their_content() -> None:
    """Patience is carried from frame to frame: exhausted, not tried, tried again."""
    address = lz4_decode_block()
    if not address:
        pytest.skip("this build of the lz4 package does not show LZ4_decompress_safe")
    chance = random.Random(7)
    words, noise = (
        words_of(chance, 150_000),
        b"".join(chance.randbytes(9) + b"odd" for _ in range(9000)),
    )
    for turn in range(120):
        content = [words, noise, words + noise + words, noise + words][turn // 7 % 4]
        frame = lz4.frame.compress(content, block_size=4, block_linked=False)
        assert decode_lz4_frame(frame, address) == content, turn


@pytest.mark.parametrize("seed", range(10))
def test_damaged_batches_of_words_get_the_verdict_of_the_library(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin's decoder is that of the lz4 package."""
    chance = random.Random(seed)
    builder = BatchBuilder(LZ4)
    for _ in range(40):
        builder.append(words_of(chance, chance.choice([100, 1000])), None, 1000, ())
    sound = bytearray(builder.build())
    for turn in range(20):
        batch = sound.copy()
        for _ in range(turn % 3):
            batch[chance.randrange(76, len(batch))] = chance.randrange(256)
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        verdicts = [verdict(record_batch.check_batch, bytes(batch))]
        with monkeypatch.context() as patched:
            patched.setattr(compression, "lz4_decode_block", lambda: 0)
            verdicts.append(verdict(record_oracle.check_batch, bytes(batch)))
        assert verdicts[0] == verdicts[1], turn
