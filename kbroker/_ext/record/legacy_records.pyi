from _typeshed import ReadableBuffer

class MessageSetRejected(Exception): ...

def crc32_of(data: ReadableBuffer) -> int: ...
def to_batch(
    data: ReadableBuffer,
    *,
    message_bytes_max: int = ...,
    decompressed_max: int = ...,
    codec: int = ...,
    level: int | None = ...,
) -> bytearray: ...
def with_right_lz4_checksum(data: ReadableBuffer) -> bytes: ...
