from _typeshed import ReadableBuffer

from kbroker._ext.offset_index import OffsetIndex, TimeIndex
from kbroker._ext.partition_table import PartitionTable
from kbroker._ext.producer_state import ProducerState

class LogAppender:
    slot: int
    needs_sync: bool
    dirty: bool
    error_text: str | None
    producers: ProducerState
    base_offset: int
    position: int
    next_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int
    unflushed_messages: int
    flushed_offset: int
    def __init__(
        self, table: PartitionTable, slot: int, log: object, producers: ProducerState
    ) -> None: ...
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
    ) -> None: ...
    def attach(
        self,
        *,
        fd: int,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        base_offset: int,
        position: int,
        next_offset: int,
        created_ms: int,
        max_timestamp: int = -1,
        max_timestamp_offset: int = -1,
        first_timestamp: int = -1,
        bytes_since_index: int = 0,
        preallocated: bool = False,
    ) -> None: ...
    def change_files(
        self,
        *,
        fd: int,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        preallocated: bool = False,
    ) -> None: ...
    def set_producers(self, producers: ProducerState) -> None: ...
    def set_leader_epoch(self, leader_epoch: int) -> None: ...
    def set_log_start_offset(self, log_start_offset: int) -> None: ...
    def set_high_watermark(self, offset: int, segment_base_offset: int, position: int) -> None: ...
    def follow_log_end(self) -> None: ...
    def mark_segments_changed(self) -> None: ...
    def mark_older_unsynced(self, unsynced: bool) -> None: ...
    def mark_flushed(self, end_offset: int, messages: int) -> None: ...
    def set_flushed_offset(self, offset: int) -> None: ...
    def refuse_all(self) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def high_watermark_offset(self) -> int: ...
    def append_batch(
        self, batch: ReadableBuffer, now_ms: int, verification: int = -1
    ) -> tuple[int, int, int, int, int]: ...
    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> tuple[int, int]: ...
    def verify(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        now_ms: int,
        *,
        starts_at_zero: bool = False,
    ) -> int: ...
    def expire_producers(self, now_ms: int, expiration_ms: int) -> int: ...
    def set_aborted_version(self, version: int) -> None: ...
    @property
    def last_stable_offset(self) -> int: ...
    def sync_now(self) -> None: ...
    def publish_now(self) -> None: ...
