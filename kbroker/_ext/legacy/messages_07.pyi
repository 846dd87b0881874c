from _typeshed import ReadableBuffer

class Region:
    batches: list[tuple[bytearray, int]]
    offset: int
    skip: int
    consumed: int
    wanted: int
    lost: bool
    pairs: bytes
    bad: list[tuple[int, int, int, str]]

def read_region(
    data: ReadableBuffer,
    *,
    position: int,
    offset: int,
    skip: int = ...,
    batch_bytes: int = ...,
    output_max: int = ...,
    decompressed_max: int = ...,
    codec: int = ...,
) -> Region: ...
