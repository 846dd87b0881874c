"""The result of checking a batch."""

import struct
from typing import NamedTuple

# WIRE: the first thirteen fields of BatchSummary, in its order.
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
# Positions of the fields of a batch, in bytes from its start. The batch length counts the bytes
# after it; the checksum covers everything from the attributes on.
LENGTH_AT, LENGTH_END, MAGIC_AT, CRC_AT, CRC_FROM = 8, 12, 16, 17, 21
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


class BatchSummary(NamedTuple):
    """Header fields of a batch and the results of the walk over its records (struct BatchInfo)."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    walked_max_timestamp: int
    walked_max_timestamp_offset_delta: int
    walked_min_timestamp: int
    keyless_count: int
    uncompressed_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return 12 + self.batch_length

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta
