class CorruptSnapshotError(ValueError): ...

class ProducerEntry:
    producer_id: int
    last_timestamp: int
    current_txn_first_offset: int
    coordinator_epoch: int
    producer_epoch: int
    @property
    def recent_batches(self) -> list[tuple[int, int, int, int, int]]: ...

class ProducerState:
    entries: dict[int, ProducerEntry]
    end_offset: int
    def __init__(self, end_offset: int = 0) -> None: ...
    def set_end_offset(self, end_offset: int) -> None: ...
    def expire(self, now_ms: int, expiration_ms: int) -> int: ...
    def first_open_transaction(self) -> int | None: ...
    def append_batch(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        offset_delta: int,
        last_offset: int,
        timestamp: int,
        transactional: bool = False,
    ) -> None: ...
    def check_batch(
        self, producer_id: int, epoch: int, base_sequence: int, offset_delta: int
    ) -> tuple[int, int]: ...
    def to_snapshot(self) -> bytes: ...
    @staticmethod
    def from_snapshot(data: bytes, end_offset: int) -> ProducerState: ...
