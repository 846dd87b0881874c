from _typeshed import ReadableBuffer

from kbroker._ext.log.log_tail import LogTail
from kbroker.types import Offset

class LogAppender(LogTail):
    error_text: str | None
    more_bad_records: list[int] | None
    def configure(
        self,
        *,
        message_bytes_max: int,
        decompressed_bytes_max: int,
        segment_bytes: int,
        segment_ms: int,
        index_interval_bytes: int,
        flush_messages: int,
        timestamp_before_max_ms: int,
        timestamp_after_max_ms: int,
        log_append_time: bool,
        compacted: bool,
        codec: int = -1,
        level: int | None = None,
        stored_magic: int = 2,
    ) -> None: ...
    def append_batch(
        self, batch: ReadableBuffer, now_ms: int, verification: int = -1
    ) -> tuple[int, Offset, int, int, int]: ...
    def append_set(
        self, data: ReadableBuffer, now_ms: int
    ) -> tuple[int, Offset, int, int, int]: ...
    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> tuple[int, Offset]: ...
    def verify(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        now_ms: int,
        *,
        starts_at_zero: bool = False,
    ) -> int: ...
