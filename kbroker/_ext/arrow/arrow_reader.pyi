from collections.abc import Iterable
from typing import Any

from _typeshed import ReadableBuffer

COLUMNS: tuple[str, ...]

class ArrowBatch:
    rows: int
    def __arrow_c_array__(self, requested_schema: Any = ...) -> tuple[Any, Any]: ...

class ArrowReader:
    rows: int
    row_offset: int
    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        columns: Iterable[str],
        *,
        rows_max: int = ...,
        bytes_max: int = ...,
        decompressed_max: int = ...,
        check_crcs: bool = ...,
        milliseconds: bool = ...,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def done(self) -> bool: ...
    def load(
        self, records: ReadableBuffer | None, aborted: Iterable[tuple[int, int]] = ...
    ) -> None: ...
    def unload(self) -> None: ...
    def skip_to(self, offset: int) -> None: ...
    def read(self) -> ArrowBatch | None: ...
    def finish(self) -> ArrowBatch | None: ...
