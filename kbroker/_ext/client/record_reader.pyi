from collections.abc import Callable, Iterable
from typing import Any

from _typeshed import ReadableBuffer

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker.client.batches.record_arrays import RecordArrays

class RecordColumns:
    topic: str
    partition: int
    @property
    def keys(self) -> list[Any]: ...
    @property
    def values(self) -> list[Any]: ...
    arrays: RecordArrays | None
    buffer: memoryview
    key_starts: memoryview[int] | None
    key_sizes: memoryview[int] | None
    value_starts: memoryview[int]
    value_sizes: memoryview[int]
    offsets: memoryview[int]
    timestamps: memoryview[int]
    timestamp_type: int
    next_offset: int
    size_bytes: int
    def __len__(self) -> int: ...

class RecordReader:
    position: int
    leader_epoch: int
    error: tuple[int, int, str, Exception | None] | None
    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        check_crcs: bool = ...,
        key_deserializer: Callable[[str, bytes], Any] | None = ...,
        value_deserializer: Callable[[str, bytes], Any] | None = ...,
        decompressed_max: int = ...,
    ) -> None: ...
    def load(
        self, records: ReadableBuffer | None, aborted: Iterable[tuple[int, int]] = ...
    ) -> None: ...
    def unload(self) -> None: ...
    def read(self, into: list[ConsumerRecord], limit: int) -> int: ...
    def read_columns(
        self, limit: int, with_keys: bool = ..., bytes_max: int = ...
    ) -> RecordColumns | None: ...
    def read_arrays(
        self, limit: int, with_keys: bool = ..., bytes_max: int = ...
    ) -> RecordColumns | None: ...
