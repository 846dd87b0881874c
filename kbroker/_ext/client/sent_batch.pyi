class SentBatch:
    topic: str
    partition: int
    records: int
    attempts: int
    base_offset: int
    failed: bool
    codec: int
    producer: tuple[int, int, int]
    data: bytes
    taken: bool
    ended: bool
