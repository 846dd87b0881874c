from _typeshed import ReadableBuffer

IMPLEMENTATION: str
"""How checksums are computed on this machine: "sse4.2", "armv8-crc" or "table"."""

def crc32c(data: ReadableBuffer, crc: int = 0) -> int: ...
def crc32c_table(data: ReadableBuffer, crc: int = 0) -> int: ...
