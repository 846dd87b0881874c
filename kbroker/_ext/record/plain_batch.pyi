def build_batch(
    records: list[tuple[bytes, bytes | None]],
    timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes: ...
