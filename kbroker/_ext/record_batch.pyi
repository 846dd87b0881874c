from _typeshed import ReadableBuffer

from kbroker.record.summary import BatchSummary

Headers = tuple[tuple[bytes, bytes | None], ...]
DecodedRecord = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]

def check_batch(
    data: ReadableBuffer, decompressed_max: int, *, stored: bool = False
) -> BatchSummary: ...
def read_header(data: ReadableBuffer, offset: int = 0) -> BatchSummary: ...
def decode_records(
    records: ReadableBuffer, count: int, last_offset_delta: int, first_timestamp: int
) -> list[DecodedRecord]: ...
def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bytes: ...
def stamp_for_append(data: bytearray, base_offset: int, leader_epoch: int) -> None: ...
def stamp_log_append_time(data: bytearray, now_ms: int) -> None: ...
def stamp_max_timestamp(data: bytearray, max_timestamp: int) -> None: ...
