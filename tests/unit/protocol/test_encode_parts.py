"""Messages encoded in pieces, for requests that carry record batches."""

from __future__ import annotations

import pytest

from kbroker.protocol import codec
from kbroker.protocol.messages.produce import ProduceRequest

SMALL = b"s" * 100
LARGE = bytearray(b"l" * 100_000)


def request(*records: bytes | bytearray | None) -> ProduceRequest:
    rows = [
        ProduceRequest.PartitionProduceData(index=number, records=one)
        for number, one in enumerate(records)
    ]
    data = [ProduceRequest.TopicProduceData(name="t", partition_data=[row]) for row in rows]
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize(
    "records", [(), (SMALL,), (LARGE,), (LARGE, SMALL, LARGE, LARGE), (SMALL, None, LARGE)]
)
def test_pieces_make_the_encoding(records: tuple[bytes, ...], version: int) -> None:
    parts = codec.encode_parts(request(*records), version)

    assert b"".join(parts) == codec.encode(request(*records), version)


def test_large_values_are_not_copied() -> None:
    parts = codec.encode_parts(request(LARGE, SMALL, LARGE), 9)

    assert [part is LARGE for part in parts] == [False, True, False, True, False]


def test_misfit_is_named() -> None:
    broken = request(LARGE)
    broken.acks = 1 << 20

    with pytest.raises(codec.EncodeError, match="acks"):
        codec.encode_parts(broken, 9)
