"""Known CRC-32C values, and both implementations against each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._ext.base import crc32c as ext

pytestmark = pytest.mark.wire


@pytest.mark.parametrize("checksum", [ext.crc32c, ext.crc32c_table])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),  # the check value of the algorithm
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_of_published_vectors_is_exact(checksum, data, expected):
    assert checksum(data) == expected


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 767, 768, 769, 6143, 6144, 6145, 6912, 40_000])
def test_crc32c_at_each_stride_edge_equals_the_table(size):
    data = bytes(i * 31 & 0xFF for i in range(size + 1))[1:]

    assert ext.crc32c(data) == ext.crc32c_table(data)
    assert ext.crc32c(data[size // 3 :], ext.crc32c(data[: size // 3])) == ext.crc32c(data)


@given(st.binary(max_size=3000), st.integers(0, 7))
def test_crc32c_of_unaligned_memory_equals_the_table(data, start):
    assert ext.crc32c(memoryview(data)[start:]) == ext.crc32c_table(data[start:])
