from collections.abc import Iterable

from _typeshed import ReadableBuffer

class RecordCounter:
    def __init__(
        self,
        start: int,
        end: int,
        bucket_ms: int,
        *,
        decompressed_max: int = ...,
        check_crcs: bool = ...,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    def count(
        self, records: ReadableBuffer | None, aborted: Iterable[tuple[int, int]] = ...
    ) -> None: ...
    def buckets(self) -> dict[int, tuple[int, int]]: ...
