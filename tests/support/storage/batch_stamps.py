"""What a producer writes into the header of a batch that exists already, before it sends it."""

from __future__ import annotations

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record.record_batch import read_header
from kbroker.batch_summary import CRC_AT, CRC_FROM, HEADER, HEADER_BYTES, TRANSACTIONAL


def stamp_batch(
    batch: bytearray,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    is_transactional: bool = False,
) -> None:
    """Give one batch of format 2 a producer (-1: none), base offset 0, no leader epoch, and the
    checksum of all that.
    """
    header = read_header(batch)
    kept = header.attributes & ~TRANSACTIONAL
    header = header._replace(
        base_offset=0,
        partition_leader_epoch=-1,
        attributes=kept | TRANSACTIONAL if is_transactional else kept,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    batch[:HEADER_BYTES] = HEADER.pack(*header[:13])
    batch[CRC_AT:CRC_FROM] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
