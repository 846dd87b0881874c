from _typeshed import ReadableBuffer

Headers = tuple[tuple[bytes, bytes | None], ...]
DecodedRecord = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]

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
