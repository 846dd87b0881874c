"""Errors of record batches."""

from enum import IntEnum


class BatchStatus(IntEnum):
    """The verdicts of ``record_batch.pxd``, same names (less the prefix) and same numbers."""

    OK = 0
    TRUNCATED = 1
    BAD_LENGTH = 2
    BAD_MAGIC = 3
    BAD_CRC = 4
    BAD_RECORD_COUNT = 5
    BAD_OFFSET_DELTA = 6
    BAD_RECORD = 7
    BAD_TIMESTAMP = 8
    UNKNOWN_CODEC = 9
    DECOMPRESS_FAILED = 10
    TOO_LARGE_DECOMPRESSED = 11
    TRAILING_BYTES = 12
    CONTROL_FROM_CLIENT = 13
    BAD_SEQUENCE = 14
    BAD_BASE_OFFSET = 15


class CorruptBatchError(ValueError):
    """A batch that breaks a rule of its format.

    status: which rule. bad_index: the record it was found in, -1 if it lies in the header.
    """

    def __init__(self, status: int, bad_index: int = -1) -> None:
        self.status = BatchStatus(status)
        self.bad_index = bad_index
        where = f" at record {bad_index}" if bad_index >= 0 else ""
        super().__init__(f"corrupt record batch: {self.status.name.lower()}{where}")


class DecompressionError(ValueError):
    """Compressed data that its codec rejects, or that continues after its end."""


class DecompressedTooLargeError(DecompressionError):
    """Compressed data with more content than the limit; nothing after it was decompressed."""
