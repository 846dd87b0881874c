"""Messages of Kafka 0.7 become batches of format 2: bytes as documents show them, and bytes that
nobody should have written.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running.examples import examples
from support.storage.messages_of_07 import compressed, message, read, records_of

from kbroker._ext.legacy.messages_07 import Region, read_region
from kbroker.record.compression import GZIP, SNAPPY

pytestmark = pytest.mark.wire

# Length 8, magic 0, CRC-32 of "abc", payload.
GOLDEN_0 = bytes.fromhex("00000008 00 352441c2 616263")
# Length 9, magic 1, attributes 0, CRC-32 of "abc", payload.
GOLDEN_1 = bytes.fromhex("00000009 01 00 352441c2 616263")
DECOMPRESSED_MAX = 1 << 20


def region(data: bytes, **more: Any) -> Region:
    given = {"position": 0, "offset": 0, "decompressed_max": DECOMPRESSED_MAX} | more
    return read_region(data, **given)


def pairs(found: Region) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">qq", found.pairs))


@pytest.mark.parametrize("golden", [GOLDEN_0, GOLDEN_1])
def test_message_is_read(golden):
    found = region(golden)

    assert records_of(found.batches) == [b"abc"]
    assert (found.consumed, found.offset, found.bad, found.wanted) == (len(golden), 1, [], 0)
    assert pairs(found) == [(0, 0)]


def test_messages_have_their_positions_and_new_offsets():
    data = GOLDEN_0 + compressed(GZIP, GOLDEN_1, GOLDEN_0) + GOLDEN_0

    found = region(data, position=1000, offset=50)

    assert records_of(found.batches) == [b"abc"] * 4
    middle = len(data) - 2 * len(GOLDEN_0)
    assert pairs(found) == [(1000, 50), (1012, 51), (1012 + middle, 53)]
    assert found.offset == 54


@pytest.mark.parametrize("codec", [GZIP, SNAPPY])
def test_compressed_messages_may_be_in_compressed_ones(codec):
    inner = compressed(codec, message(b"1"), message(b"2"))
    data = compressed(GZIP, message(b"0"), inner, message(b""))

    found = region(data)

    assert records_of(found.batches) == [b"0", b"1", b"2", b""]
    assert pairs(found) == [(0, 0)]


@pytest.mark.parametrize("codec", range(5))
def test_batches_are_limited_and_compressed(codec):
    payloads = [bytes([number]) * 1000 for number in range(50)]
    data = b"".join(map(message, payloads))

    found = region(data, batch_bytes=10_000, codec=codec)

    assert records_of(found.batches) == payloads
    assert [count for _, count in found.batches] == [9, 9, 9, 9, 9, 5]
    assert all(len(batch) <= 10_000 for batch, _ in found.batches)


def test_record_that_is_larger_than_a_batch_is_alone():
    found = region(message(b"a") + message(bytes(5000)) + message(b"b"), batch_bytes=1000)

    assert [count for _, count in found.batches] == [1, 1, 1]


def test_records_that_are_skipped_count():
    data = message(b"0") + compressed(GZIP, message(b"1"), message(b"2"), message(b"3"))

    found = region(data, skip=3)

    assert records_of(found.batches) == [b"3"]
    assert (found.offset, found.skip) == (4, 0)
    assert pairs(found) == [(0, 0), (10, 1)]
    found = region(data, skip=9)
    assert (found.batches, found.offset, found.skip) == ([], 4, 5)


def test_output_is_limited():
    data = b"".join(message(bytes(1000)) for _ in range(20))

    found = region(data, output_max=5000)

    assert 0 < found.consumed < len(data) and found.consumed % 1009 == 0
    assert len(records_of(found.batches)) == found.consumed // 1009 == len(pairs(found))


BROKEN = {
    "checksum": (message(b"x", crc=1), "it does not match its checksum"),
    "magic": (message(b"x", magic=0)[:4] + b"\x02" + message(b"x")[5:], "neither 0 nor 1"),
    "header": (bytes.fromhex("00000005 01 00 000000"), "shorter than its header"),
    "codec": (message(b"x", 1, 3), "there is no codec 3"),
    "content": (message(b"x", 1, GZIP), "it cannot be decompressed"),
    "bomb": (
        compressed(GZIP, message(bytes(DECOMPRESSED_MAX))),
        f"decompresses to more than {DECOMPRESSED_MAX} bytes",
    ),
    "depth": (
        compressed(1, compressed(1, compressed(1, compressed(1, compressed(1, GOLDEN_0))))),
        "it is compressed too often",
    ),
    "inner length": (compressed(GZIP, b"\xff\xff\xff\xff"), "at byte 0 of what is compressed: its"),
    "inner cut": (compressed(GZIP, GOLDEN_0[:-1]), "ends within the message"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_bad_message_is_named_and_the_next_one_is_read(name):
    broken, why = BROKEN[name]

    found = region(GOLDEN_0 + broken + GOLDEN_1, position=7)

    ((position, size, count, said),) = found.bad
    assert (position, size, count) == (7 + len(GOLDEN_0), len(broken), 1)
    assert why in said
    assert records_of(found.batches) == [b"abc"] * 2
    assert found.consumed == len(GOLDEN_0 + broken + GOLDEN_1)


def test_bad_messages_in_a_compressed_one_are_counted():
    bad = message(b"x", crc=1)

    found = region(compressed(SNAPPY, GOLDEN_0, bad, GOLDEN_0, compressed(GZIP, bad), bad))

    ((_, _, count, said),) = found.bad
    assert (count, records_of(found.batches)) == (3, [b"abc"] * 2)
    assert said.startswith(f"at byte {len(GOLDEN_0)} of what is compressed: it does not match")


def test_nested_compression_shares_one_budget():
    half = message(bytes(DECOMPRESSED_MAX // 2 + 100))

    found = region(compressed(GZIP, compressed(GZIP, half), compressed(GZIP, half)))

    assert [count for _, _, count, _ in found.bad] == [1]
    assert len(records_of(found.batches)) == 1


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 4])
def test_impossible_length_loses_the_rest(length):
    found = region(GOLDEN_0 + struct.pack(">i", length) + GOLDEN_0)

    assert (found.lost, found.consumed, found.wanted) == (True, len(GOLDEN_0), 0)


@pytest.mark.parametrize("cut", range(1, len(GOLDEN_1)))
def test_every_cut_is_seen(cut):
    found = region(GOLDEN_0 + GOLDEN_1[:cut])

    assert (found.lost, found.consumed, found.offset) == (False, len(GOLDEN_0), 1)
    assert found.wanted == (len(GOLDEN_1) if cut >= 4 else 4)
    assert region(struct.pack(">i", (1 << 31) - 1)).wanted == (1 << 31) + 3


MESSAGES = st.recursive(
    st.builds(message, st.binary(max_size=20), st.sampled_from([0, 1])),
    lambda inner: st.builds(
        lambda codec, rows: compressed(codec, *rows),
        st.sampled_from([GZIP, SNAPPY]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(50))
@given(st.lists(MESSAGES, max_size=6), st.data())
def test_hostile_bytes_are_read_as_the_oracle_does(rows, choose):
    data = bytearray(b"".join(rows))
    for _ in range(choose.draw(st.integers(0, 3)) if data else 0):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    data = data[: choose.draw(st.integers(0, len(data)))]

    found = region(bytes(data), batch_bytes=choose.draw(st.sampled_from([100, 1 << 20])))
    expected = read(bytes(data), DECOMPRESSED_MAX)

    assert records_of(found.batches) == expected.payloads
    assert pairs(found) == expected.starts
    assert [(position, count) for position, _, count, _ in found.bad] == expected.bad
    assert found.consumed == expected.consumed
