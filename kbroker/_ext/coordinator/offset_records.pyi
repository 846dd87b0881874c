from kbroker._ext.coordinator.offset_store import OffsetStore

def replay_record(
    store: OffsetStore, log_offset: int, producer_id: int, key: bytes, value: bytes | None
) -> bool: ...
def replay_chunk(store: OffsetStore, data: bytes, position: int) -> tuple[int, int, int]: ...
def encode_key(group: str, topic: str, partition: int) -> bytes: ...
def encode_value(
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp: int,
    expire_timestamp: int = -1,
) -> bytes: ...
