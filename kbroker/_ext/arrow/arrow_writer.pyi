from collections.abc import Callable
from typing import Any

def partition_of(key: bytes, partitions: int) -> int: ...

class ArrowWriter:
    rows: int
    waiting_bytes: int
    def __init__(
        self,
        partitions_of: Callable[[str], int],
        *,
        topic: str | None = ...,
        codec: int = ...,
        level: int | None = ...,
        batch_bytes: int = ...,
        seed: int = ...,
    ) -> None: ...
    def add(self, schema: Any, array: Any, now_ms: int) -> None: ...
    def close_all(self) -> None: ...
    def discard(self) -> None: ...
    def take(self) -> list[tuple[str, int, bytearray, int]]: ...
