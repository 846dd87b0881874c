from contextlib import AbstractContextManager
from typing import Any, Protocol

from kbroker._ext.base.offset_map import OffsetMap
from kbroker.types import Offset

class Transactions(Protocol):
    def on_batch(self, producer_id: int, last_offset: Offset) -> bool: ...
    def on_marker(self, producer_id: int, last_offset: Offset, kind: int) -> bool: ...

class BatchCleaner:
    transactions: Transactions
    producers: dict[int, tuple[int, int]]
    drop_old_tombstones: bool
    full: bool
    needed: int
    changed: bool
    messages_indexed: int
    messages_read: int
    messages_kept: int
    keyless: int
    def __init__(
        self,
        map: OffsetMap,
        transactions: Transactions,
        codec_lock: AbstractContextManager[Any],
        *,
        now_ms: int,
        delete_retention_ms: int,
        decompressed_max: int,
    ) -> None: ...
    def index_batches(self, data: memoryview, start_offset: int) -> int: ...
    def map_to(self, offset: int) -> None: ...
    def clean_batches(self, data: memoryview) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    def write_output(self, fd: int, position: int) -> int: ...
    def begin_output(self) -> None: ...
